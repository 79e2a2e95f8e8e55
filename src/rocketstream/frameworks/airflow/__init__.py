"""Event-driven scheduling of Airflow over RocketMQ; needs the extra ``airflow``.

Airflow calls ``provider_info`` in each of its processes as soon as the package is installed, so
nothing of Airflow's or of the client's is imported here.
"""

from __future__ import annotations

from typing import Any

__all__ = ["provider_info"]

_TRIGGERS = f"{__name__}.trigger"


def provider_info() -> dict[str, Any]:
    """Return what Airflow's entry point ``apache_airflow_provider`` asks for."""
    integration = "RocketMQ"
    return {
        "package-name": "rocketstream",
        "name": integration,
        "description": "Triggers for event-driven scheduling on RocketMQ",
        "integrations": [
            {"integration-name": integration, "external-doc-url": "https://rocketmq.apache.org/"}
        ],
        "triggers": [{"integration-name": integration, "python-modules": [_TRIGGERS]}],
        "queues": [f"{_TRIGGERS}.BacklogProvider"],
    }
