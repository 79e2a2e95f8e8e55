"""Settings of clients: made of keyword arguments, unknown ones refused; told by Java's names.

Pure but for the clock it is given.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import fields
from datetime import datetime
from typing import Any, Final, TypeVar

from rocketstream._util.clock import Clock
from rocketstream.client.config import ClientConfig
from rocketstream.client.consumer.settings import (
    TIMESTAMP_FORMAT,
    LitePullConsumerSettings,
    LitePushConsumerSettings,
    PullConsumerSettings,
    PushConsumerSettings,
)
from rocketstream.client.producer.settings import ProducerSettings, TransactionSettings
from rocketstream.settings import camel_case, java_name, keyword_fields, unknown_setting

S = TypeVar("S")

_TIMESTAMP_BACK_MS = 30 * 60_000
_TIMESTAMP = "consume_timestamp"
_CLIENTS: Final[dict[str, tuple[type[Any], tuple[str, ...]]]] = {
    "Producer": (ProducerSettings, ()),
    "TransactionProducer": (TransactionSettings, ("transaction_listener",)),
    "PushConsumer": (PushConsumerSettings, ("listener", "subscription", "offset_store")),
    "PullConsumer": (PullConsumerSettings, ()),
    "LitePullConsumer": (LitePullConsumerSettings, ("subscription",)),
    "LitePushConsumer": (LitePushConsumerSettings, ("bind_topic", "listener", "lite_topics")),
}
"""Their own settings, and what else they are made of."""


def refuse_unknown(
    whose: str,
    given: Iterable[str],
    known: Iterable[str],
    classes: Iterable[type[Any]],
    more: Iterable[str],
) -> None:
    """Refuse the keywords of a client that are not settings of it.

    Args:
        whose: the client's class.
        given: names of the keywords.
        known: those that it takes.
        classes: its settings classes.
        more: further keywords that it takes.

    Raises:
        ConfigurationError: there is one; the text names the clients that have it, or the settings
            that may have been meant.
    """
    for name in sorted(set(given) - set(known)):
        others = [client for client in _CLIENTS if _has(client, name)]
        raise unknown_setting(whose, name, classes, more, elsewhere=others)


def _has(client: str, setting: str) -> bool:
    kind, more = _CLIENTS[client]
    return setting in more or any(each.name == setting for each in keyword_fields(kind))


def settings_of(
    kind: type[S],
    group: str,
    given: dict[str, Any],
    clock: Clock,
    more: Iterable[str] = ("config", "clock"),
) -> S:
    """Return the settings of a consumer from its keyword arguments, unchecked.

    Args:
        kind: the settings class; the consumer's has its name, without "Settings".
        group: the consumer group.
        given: the keywords that are for it alone.
        clock: ``consume_timestamp`` is half an hour before now unless given (C-24, C-73).
        more: further keywords the consumer takes.

    Raises:
        ConfigurationError: a name that is not a setting; the text says what may have been meant.
    """
    known = {each.name for each in fields(kind)} - {"consumer_group"}  # type: ignore[arg-type]
    whose = kind.__name__.removesuffix("Settings")
    refuse_unknown(whose, given, known, (kind, ClientConfig), more)
    if _TIMESTAMP in known and _TIMESTAMP not in given:
        half_an_hour_ago = datetime.fromtimestamp((clock.now_ms() - _TIMESTAMP_BACK_MS) / 1000)
        given = {**given, _TIMESTAMP: half_an_hour_ago.strftime(TIMESTAMP_FORMAT)}
    return kind(group, **given)  # type: ignore[call-arg]


# --- settings as they are told to operators (307; C-540) ------------------------------------------


START_TIMESTAMP = "PROP_CONSUMER_START_TIMESTAMP"
_SECRETS = frozenset({"access_key", "secret_key", "security_token"})
_OBJECTS = frozenset({"ssl_context", "rpc_hook", "offset_store", "message_queue_listener"})
"""Their text says nothing."""


def properties_of(settings: Any) -> dict[str, str]:
    """Return settings by the names Java's consumers tell them by; secrets are left out."""
    return {
        java_name(each) or camel_case(each.name): _java_text(
            each.name, getattr(settings, each.name), settings
        )
        for each in fields(settings)
        if each.name not in _SECRETS | _OBJECTS
    }


def _java_text(name: str, value: Any, settings: Any) -> str:
    if name == "namesrv_addr" and isinstance(settings, ClientConfig):
        return ";".join(settings.name_servers())
    if name == "consume_thread_min":
        value = min(value, settings.consume_thread_max)  # the usual minimum bounds nothing here
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, list | tuple | set | frozenset):
        return f"[{', '.join(sorted(map(str, value)))}]"
    return str(value) if isinstance(value, str | int | float) else type(value).__name__
