"""The options all formats share: addresses and keys of a cluster; and how a text is a value.

Pure: text in, values out; every mistake is a ConfigurationError that names the option, the given
text and the accepted ones. No clock is read here: a time relative to now stays relative until a
caller with a clock resolves it.
"""

from __future__ import annotations

import dataclasses
import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, TypeVar

from rocketstream._util.when import EPOCH_MS, span_ms
from rocketstream.errors import ConfigurationError
from rocketstream.protocol.addresses import parse_addresses

T = TypeVar("T")

IGNORED_OPTIONS: Final = frozenset({"mergeschema", "recursivefilelookup"})
"""Options Spark itself may pass to any source."""
_OF_A_TABLE: Final = (
    ". If this is a table: Spark hands none of a table's OPTIONS to a Python source. Create it "
    "without and give them with each query, SELECT ... FROM the_table WITH (nameServer = '...', "
    "topic = '...'), or in a view of that query"
)
PATH_OPTIONS: Final = frozenset({"path", "paths"})
"""The options that ``load``, ``save`` and ``start`` make of their argument."""


FOREIGN_NAMES: Final = {
    "subscribe": "topic",
    "subscribepattern": "topicPattern",
    "kafka.bootstrap.servers": "nameServer",
    "nameserver.addr": "nameServer",
    "namesrvaddr": "nameServer",
    "consumer.group": "group",
    "consumergroup": "group",
    "kafka.group.id": "group",
    "consumer.topic": "topic",
    "subexpression": "tags",
    "consumer.tag": "tags",
}
"""Names of the same thing elsewhere: in Spark's Kafka source, in RocketMQ's Java clients."""


def known(given: Mapping[str, str], accepted: Sequence[str]) -> dict[str, str]:
    """Return the given options under their documented spelling; names match in any case.

    Raises:
        ConfigurationError: an option is not among those accepted.
    """
    spelled = {name.lower(): name for name in accepted}
    values: dict[str, str] = {}
    for key, value in given.items():
        lower = key.lower()
        if lower in spelled:
            values[spelled[lower]] = value
        elif lower in PATH_OPTIONS:
            if value.strip():
                raise ConfigurationError(
                    f"a path is given, {value!r}, but this format has no files: give options "
                    f"instead. Accepted: {', '.join(accepted)}",
                    option=key,
                )
        elif lower not in IGNORED_OPTIONS and not lower.startswith("spark."):
            foreign = FOREIGN_NAMES.get(lower, "").lower()
            close = [foreign] if foreign in spelled else get_close_matches(lower, spelled, 1)
            hint = f"; did you mean {spelled[close[0]]!r}?" if close else "."
            raise ConfigurationError(
                f"unknown option {key!r}{hint} Accepted: {', '.join(accepted)}", option=key
            )
    return values


def of_a_sink(given: Mapping[str, str]) -> dict[str, str]:
    """Return options without those Spark passes to a sink but which are meant for the query."""
    return {name: value for name, value in given.items() if name.lower() not in _OF_A_QUERY}


_OF_A_QUERY: Final = frozenset({"checkpointlocation", "queryname", "outputmode"})


def required(values: Mapping[str, str], name: str, what: str) -> str:
    """Return an option that must be given."""
    value = values.get(name, "").strip()
    if not value:
        hint = "" if values else _OF_A_TABLE
        raise ConfigurationError(f"option {name!r} is missing: give {what}{hint}", option=name)
    return value


def number(
    values: Mapping[str, str], name: str, default: T, low: int, high: int = 2**63 - 1
) -> int | T:
    """Return a whole number within bounds; ``default`` when the option is not given."""
    text = values.get(name)
    if text is None:
        return default
    try:
        number = int(text)
    except ValueError:
        number = low - 1
    if not low <= number <= high:
        span = f"from {low} to {high}" if high < 2**63 - 1 else f"of at least {low}"
        raise bad(name, text, f"a whole number {span}")
    return number


def flag(values: Mapping[str, str], name: str, default: bool) -> bool:
    """Return true or false; ``default`` when the option is not given."""
    text = values.get(name)
    if text is None:
        return default
    if text.strip().lower() not in {"true", "false"}:
        raise bad(name, text, "true or false")
    return text.strip().lower() == "true"


def bad(name: str, value: str, accepted: str) -> ConfigurationError:
    """Return the error for an option that cannot be used."""
    return ConfigurationError(
        f"option {name!r} is {value!r}; give {accepted}", option=name, value=value
    )


_NUMBER: Final = re.compile(r"[0-9]{1,18}", re.ASCII)

TIME_ACCEPTED: Final = (
    "milliseconds since 1970 UTC (13 digits: no seconds, microseconds or 20240501), ISO 8601 such "
    "as 2024-05-01T12:00:00Z, or a time before now such as -10m (ms, s, m, h, d, w)"
)
LENGTH_ACCEPTED: Final = "a length of time such as 15m, 30s or 1h (ms, s, m, h, d, w)"


def point_ms(text: str) -> int | None:
    """Return a point in time; None for a text that is not one.

    A number that is not negative is milliseconds since 1970 UTC: 0, or one of ``EPOCH_MS``. Seconds
    or a date such as 20240501 would make a read begin at the oldest message, microseconds at the
    end. A negative number is that many milliseconds before now, where ``since_1970`` sets now.
    """
    text = text.strip()
    if _NUMBER.fullmatch(text):
        return int(text) if int(text) in EPOCH_MS or int(text) == 0 else None
    if text.startswith("-"):
        length = length_ms(text[1:], bare_ms=False)
        return None if length is None else -length or None
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        # Without a zone the text would mean another moment on every machine of a cluster.
        moment = moment.replace(tzinfo=datetime.UTC)
    return max(0, round(moment.timestamp() * 1000))


def since_1970(point: int, now_ms: int) -> int:
    """Return a point in milliseconds since 1970; a relative one is counted from ``now_ms``."""
    return point if point >= 0 else max(0, now_ms + point)


def length_ms(text: str, bare_ms: bool = True) -> int | None:
    """Return a length of time in milliseconds; None for a text that is not one.

    Args:
        text: a number with a unit, such as ``15m`` or ``2 minutes``.
        bare_ms: whether a number without a unit is accepted, as milliseconds.
    """
    text = text.strip().lower()
    if bare_ms and _NUMBER.fullmatch(text):
        return int(text)
    return span_ms(text)


CONNECT_OPTIONS: Final = (
    "nameServer",
    "requestTimeoutMs",
    "connectTimeoutMs",
    "retryTimeoutMs",
    "accessKey",
    "secretKey",
    "securityToken",
    "keyFile",
    "useTls",
    "tlsCaFile",
    "tlsCertFile",
    "tlsKeyFile",
    "tlsKeyPassword",
    "tlsVerify",
    "tlsCheckHostname",
)
"""Every option of a connection, spelled as documented."""


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """How a cluster is reached.

    Attributes:
        name_server: the addresses, separated by ``;``.
        request_timeout_ms: bound of one request.
        connect_timeout_ms: bound of one connect.
        retry_timeout_ms: how long failures that may pass are retried.
        access_key: the user's access key; None takes the keys of each process's own environment, if
            any.
        secret_key: the user's secret key.
        security_token: the user's token, None for none.
        key_file: a file with these three instead, at the same path on driver and executors.
        use_tls: whether all connections speak TLS.
        tls_ca_file: PEM file of trusted certificates, None for the system's.
        tls_cert_file: PEM file of this client's certificate, None for none.
        tls_key_file: PEM file of its key, None when it is in ``tls_cert_file``.
        tls_key_password: the password of the key.
        tls_verify: whether servers must show a trusted certificate.
        tls_check_hostname: whether the certificate must name the address connected to.
    """

    name_server: str
    request_timeout_ms: int
    connect_timeout_ms: int
    retry_timeout_ms: int
    access_key: str | None
    secret_key: str | None
    security_token: str | None
    key_file: str | None
    use_tls: bool
    tls_ca_file: str | None
    tls_cert_file: str | None
    tls_key_file: str | None
    tls_key_password: str | None
    tls_verify: bool
    tls_check_hostname: bool

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name_server={self.name_server!r})"


def connect_options(values: Mapping[str, str]) -> ConnectOptions:
    """Parse the options of a connection, given under their documented names.

    Raises:
        ConfigurationError: an option is missing or unusable.
    """
    _check_keys(values)
    return ConnectOptions(
        name_server=_name_server(values),
        request_timeout_ms=number(values, "requestTimeoutMs", 10_000, 1),
        connect_timeout_ms=number(values, "connectTimeoutMs", 3_000, 1),
        retry_timeout_ms=number(values, "retryTimeoutMs", 30_000, 0),
        access_key=values.get("accessKey"),
        secret_key=values.get("secretKey"),
        security_token=values.get("securityToken"),
        key_file=values.get("keyFile"),
        use_tls=_use_tls(values),
        tls_ca_file=values.get("tlsCaFile"),
        tls_cert_file=values.get("tlsCertFile"),
        tls_key_file=values.get("tlsKeyFile"),
        tls_key_password=values.get("tlsKeyPassword"),
        tls_verify=flag(values, "tlsVerify", True),
        tls_check_hostname=flag(values, "tlsCheckHostname", False),
    )


def connect_settings(values: Mapping[str, str]) -> dict[str, Any]:
    """Return the attributes of ``connect_options`` by name, for options that add to them.

    Raises:
        ConfigurationError: as ``connect_options`` does.
    """
    connect = connect_options(values)
    return {field.name: getattr(connect, field.name) for field in dataclasses.fields(connect)}


def _name_server(values: Mapping[str, str]) -> str:
    accepted = "host:port of the name server, or of several, separated by ';'"
    text = required(values, "nameServer", accepted)
    try:
        parse_addresses(text)
    except ConfigurationError:
        raise bad("nameServer", text, accepted) from None
    return text


def _check_keys(values: Mapping[str, str]) -> None:
    for name in ("accessKey", "secretKey", "securityToken"):
        if name in values and "keyFile" in values:
            raise ConfigurationError(
                f"options {name!r} and 'keyFile' are both given; give one", option=name
            )


def _use_tls(values: Mapping[str, str]) -> bool:
    used = flag(values, "useTls", False)
    for name in values:
        if name.startswith("tls") and not used:
            raise ConfigurationError(
                f"option {name!r} needs option 'useTls' to be true", option=name
            )
    for name in ("tlsKeyFile", "tlsKeyPassword"):
        if name in values and "tlsCertFile" not in values:
            raise ConfigurationError(f"option {name!r} needs option 'tlsCertFile'", option=name)
    return used
