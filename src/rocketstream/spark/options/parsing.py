"""Values in the texts of options, parsed for all formats of ours.

Pure: every mistake is a ConfigurationError that names the option, the given text and the accepted
ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Final, TypeVar

from rocketstream.errors import ConfigurationError

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
                    f"a path is given, {value!r}, but this format reads no files: give options "
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


_OF_A_QUERY: Final = PATH_OPTIONS | {"checkpointlocation", "queryname", "outputmode"}


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
