"""The settings of a running broker that clients may change, and the effect of a change.

Law: an allow-list, since anybody who reaches the port may ask (code 25). A setting is listed here
if it takes effect at once; all others belong to the operator who starts the broker.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rocketstream.errors import BrokerError, ConfigurationError
from rocketstream.protocol import fastjson
from rocketstream.protocol.codes import ResponseCode
from rocketstream.protocol.headers.base import parse_int, parse_long
from rocketstream.server.broker.config import BrokerConfig
from rocketstream.server.editing import refuse_others

HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Editable:
    """One setting: where it is kept, and how its text is read and written."""

    field: str
    read: Callable[[str], Any]
    write: Callable[[Any], str] = str


def _flag(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("give true or false")
    return text == "true"


def _shown_flag(value: bool) -> str:
    return str(value).lower()


def _hours(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(";") if part.strip())


def _shown_hours(hours: tuple[int, ...]) -> str:
    return ";".join(f"{hour:02d}" for hour in hours)


EDITABLE: dict[str, Editable] = {
    "autoCreateTopicEnable": Editable("auto_create_topics", _flag, _shown_flag),
    "autoCreateSubscriptionGroup": Editable("auto_create_groups", _flag, _shown_flag),
    "enablePropertyFilter": Editable("enable_property_filter", _flag, _shown_flag),
    "filterSupportRetry": Editable("filter_support_retry", _flag, _shown_flag),
    "rejectTransactionMessage": Editable("reject_transaction_message", _flag, _shown_flag),
    "storeReplyMessageEnable": Editable("store_reply_message", _flag, _shown_flag),
    "transactionTimeOut": Editable("transaction_timeout_ms", parse_long),
    "transactionCheckInterval": Editable("transaction_check_interval_ms", parse_long),
    "transactionCheckMax": Editable("transaction_check_max", parse_int),
    "fileReservedTime": Editable(
        "retention.file_reserved_ms",
        lambda text: parse_int(text) * HOUR_MS,
        lambda kept_ms: f"{kept_ms / HOUR_MS:g}",
    ),
    "deleteWhen": Editable("retention.delete_when_hours", _hours, _shown_hours),
    "diskMaxUsedSpaceRatio": Editable(
        "retention.disk_max_used_ratio",
        lambda text: parse_int(text) / 100,
        lambda ratio: f"{ratio * 100:g}",
    ),
}
"""By upstream's names; times in ms, fileReservedTime in hours, the ratio in percent."""


@dataclass(frozen=True, slots=True)
class Edits:
    """Settings changed while the broker ran, as text; kept over restarts."""

    values: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def encode(self, *, pretty: bool = False) -> bytes:
        """Return the text of its file."""
        return fastjson.dumps(dict(sorted(self.values.items())), pretty=pretty).encode()

    @classmethod
    def decode(cls, text: str | bytes) -> Edits:
        """Read the text of its file.

        Raises:
            ValueError, RemoteProtocolError: the text has another form.
        """
        values = fastjson.loads(text)
        for name, value in values.items():
            if not isinstance(value, str):
                raise ValueError(f"{name} is {value!r:.200}, not a text")
        return cls(values)


def edited(config: BrokerConfig, given: Mapping[str, str]) -> BrokerConfig:
    """Return the settings with all changes made.

    Raises:
        BrokerError: a name is not allowed, or a value is not accepted; then no change is made.
    """
    refuse_others(given, EDITABLE, "the broker")
    for name, text in given.items():
        setting = EDITABLE[name]
        try:
            config = _replaced(config, setting.field, setting.read(text))
            config.check()
        except (ValueError, ConfigurationError) as error:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR, f"{name}={text} is not accepted: {error}"
            ) from error
    return config


def _replaced(config: BrokerConfig, path: str, value: Any) -> BrokerConfig:
    group, _, name = path.rpartition(".")
    if not group:
        return dataclasses.replace(config, **{name: value})
    retention = dataclasses.replace(config.store.retention, **{name: value})
    return dataclasses.replace(config, retention=retention)


def shown(config: BrokerConfig) -> dict[str, str]:
    """Return the settings that may be changed, as text by name."""
    retention = config.store.retention
    return {
        name: setting.write(
            getattr(retention if "." in setting.field else config, setting.field.split(".")[-1])
        )
        for name, setting in EDITABLE.items()
    }
