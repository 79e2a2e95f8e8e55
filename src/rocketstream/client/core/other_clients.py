"""Which clients have a setting: for whoever gives it to one that has not.

Law: pure; the fields of the settings classes are the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from rocketstream.client.core.lite_settings import LitePushConsumerSettings
from rocketstream.client.core.producer_settings import ProducerSettings
from rocketstream.client.core.pull_settings import LitePullConsumerSettings, PullConsumerSettings
from rocketstream.client.core.settings import PushConsumerSettings
from rocketstream.client.core.transaction import TransactionSettings
from rocketstream.settings import keyword_fields

_CLIENTS: Final[dict[str, tuple[type[Any], tuple[str, ...]]]] = {
    "Producer": (ProducerSettings, ()),
    "TransactionProducer": (TransactionSettings, ("transaction_listener",)),
    "PushConsumer": (PushConsumerSettings, ("listener", "subscription", "offset_store")),
    "PullConsumer": (PullConsumerSettings, ()),
    "LitePullConsumer": (LitePullConsumerSettings, ("subscription",)),
    "LitePushConsumer": (LitePushConsumerSettings, ("bind_topic", "listener", "lite_topics")),
}
"""Their own settings, and what else they are made of."""


def clients_with(setting: str) -> Iterator[str]:
    """Yield the names of the clients that have a setting of this name for themselves."""
    for client, (kind, more) in _CLIENTS.items():
        if setting in more or any(each.name == setting for each in keyword_fields(kind)):
            yield client
