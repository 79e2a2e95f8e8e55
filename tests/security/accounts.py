"""The two accounts that brokers with access control have here, of 4.9 and of 5.x alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest

from rocketstream import Message, Producer
from tests.plugins.commands import Quick

SECRETS: Final = {"operator": "secret-of-operator", "salesdesk": "secret-of-sales"}
TOPICS: Final = ("orders", "salaries")
KEYS_HINT: Final = "ROCKETMQ_ACCESS_KEY and ROCKETMQ_SECRET_KEY or --key-file FILE"
_VARIABLES: Final = {
    "access_key": "ROCKETMQ_ACCESS_KEY",
    "secret_key": "ROCKETMQ_SECRET_KEY",
}


def account(name: str) -> dict[str, Any]:
    """Return the settings of a client that has an account."""
    return {"access_key": name, "secret_key": SECRETS[name]}


def with_keys(
    monkeypatch: pytest.MonkeyPatch, namesrv_addr: str
) -> Callable[[Mapping[str, str]], Quick]:
    """Return what gives the command line with keys in its environment."""

    def quick(settings: Mapping[str, str]) -> Quick:
        for name, variable in _VARIABLES.items():
            monkeypatch.delenv(variable, raising=False)
            if name in settings:
                monkeypatch.setenv(variable, settings[name])
        return Quick(namesrv_addr)

    return quick


def send_three_each(producer: Producer) -> None:
    """Send to each topic ``TOPIC 0`` to ``TOPIC 2``, with keys k0 to k2."""
    for topic in TOPICS:
        for number in range(3):
            producer.send(Message(topic, f"{topic} {number}", keys=f"k{number}"))
