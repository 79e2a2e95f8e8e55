"""The limits of one micro-batch of a stream.

Pure: text in, a frozen value out; the driver decides what it means for queues.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rocketstream.errors import ConfigurationError
from rocketstream.spark.options.parsing import bad, number
from rocketstream.spark.options.positions import Mode
from rocketstream.spark.options.times import LENGTH_ACCEPTED, length_ms

LIMIT_OPTIONS: Final = (
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
)
TRIGGER_DELAY_MS: Final = 900_000
"""The 15 minutes that Spark's Kafka source uses too."""

_BYTES: Final = re.compile(r"([0-9]{1,15})\s*([kmgt]?)b?", re.ASCII)
_UNIT_BYTES: Final = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


@dataclass(frozen=True, slots=True)
class TriggerLimits:
    """The limits of a micro-batch; None for none.

    Attributes:
        rows_max: how many offsets a micro-batch holds at most.
        rows_min: how many offsets are worth a micro-batch.
        delay_max_ms: how long fewer offsets than ``rows_min`` wait.
        bytes_max: roughly how many bytes of stored messages a micro-batch holds at most.
    """

    rows_max: int | None = None
    rows_min: int | None = None
    delay_max_ms: int = TRIGGER_DELAY_MS
    bytes_max: int | None = None

    @property
    def given(self) -> tuple[str, ...]:
        """The given options under their documented names."""
        values = (self.rows_max, self.rows_min, None, self.bytes_max)
        names = zip(LIMIT_OPTIONS, values, strict=True)
        return tuple(name for name, value in names if value is not None)


def trigger_limits(values: Mapping[str, str], mode: Mode) -> TriggerLimits:
    """Return the limits of micro-batches.

    Raises:
        ConfigurationError: a limit cannot be used, contradicts another, or is given for a batch.
    """
    given = [name for name in LIMIT_OPTIONS if name in values]
    if given and mode == "batch":
        raise ConfigurationError(
            f"option {given[0]!r} is for streams; a batch is one piece, which 'endingOffsets' or "
            "'endingTimestamp' bound and 'maxRecordsPerPartition' divides",
            option=given[0],
        )
    rows_max = number(values, "maxOffsetsPerTrigger", None, 1)
    rows_min = number(values, "minOffsetsPerTrigger", None, 1)
    if rows_min is None and "maxTriggerDelay" in values:
        raise ConfigurationError(
            "option 'maxTriggerDelay' bounds how long 'minOffsetsPerTrigger' holds rows back, "
            "which is not given: give it too, or leave this out",
            option="maxTriggerDelay",
        )
    if rows_max is not None and rows_min is not None and rows_min > rows_max:
        raise bad(
            "minOffsetsPerTrigger", str(rows_min), f"no more than maxOffsetsPerTrigger, {rows_max}"
        )
    return TriggerLimits(rows_max, rows_min, _delay_ms(values), _bytes(values))


def _delay_ms(values: Mapping[str, str]) -> int:
    text = values.get("maxTriggerDelay")
    if text is None:
        return TRIGGER_DELAY_MS
    found = length_ms(text)
    if found is None:
        raise bad("maxTriggerDelay", text, LENGTH_ACCEPTED)
    return found


def _bytes(values: Mapping[str, str]) -> int | None:
    text = values.get("maxBytesPerTrigger")
    if text is None:
        return None
    found = _BYTES.fullmatch(text.strip().lower())
    size = int(found[1]) * _UNIT_BYTES[found[2]] if found else 0
    if not 0 < size < 2**63:
        raise bad("maxBytesPerTrigger", text, "a number of bytes such as 1000000, 512k, 64m or 1g")
    return size
