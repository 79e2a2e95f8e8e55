"""DAGs of the tests; Airflow imports this file, and nothing else does.

The environment says where the tests look: TOLD is a file of events, LAND the command that lands.
"""

from __future__ import annotations

import json
import os
from datetime import timedelta
from typing import Any

from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, Asset, AssetWatcher


def waiting(topic: str, group: str) -> Asset:
    """Return an asset that has an event when messages of a topic wait."""
    trigger = MessageQueueTrigger(
        scheme="rocketmq", topics=[topic], group=group, poll_interval_s=0.5, repeat_after_s=3600
    )
    return Asset(f"{topic}_waiting", watchers=[AssetWatcher(name=topic, trigger=trigger)])


def tell(triggering_asset_events: Any) -> None:
    """Write what the events carried."""
    with open(os.environ["TOLD"], "a", encoding="utf-8") as file:
        for events in triggering_asset_events.values():
            for event in events:
                file.write(json.dumps(event.extra) + "\n")


patience: dict[str, Any] = {"retries": 3, "retry_delay": timedelta(seconds=1)}

with DAG("tell", schedule=[waiting("notes", "readers")], is_paused_upon_creation=False):
    PythonOperator(task_id="tell", python_callable=tell, **patience)

with DAG(
    "land",
    schedule=[waiting("orders", "landing")],
    max_active_runs=1,
    is_paused_upon_creation=False,
):
    BashOperator(task_id="land", bash_command=os.environ["LAND"], **patience)
