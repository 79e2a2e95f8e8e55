"""The plan of retention: which commit log files may be removed, and why (C-439).

Pure: the clock's readings come in; the store removes the files of the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rocketstream.errors import ConfigurationError

FILES_PER_ROUND_MAX = 10


@dataclass(frozen=True, slots=True)
class RetentionConfig:
    """Upstream's names: fileReservedTime, deleteWhen, diskMaxUsedSpaceRatio, and the two marks
    diskSpaceCleanForciblyRatio (0.85 there) and diskSpaceWarningLevelRatio (0.90 there).

    The two marks are off here: a disk shared with other programs must not make the store delete
    messages before their time, and space is reserved before it is written, so sends fail by
    themselves when a disk is really full.

    Attributes:
        file_reserved_ms: how long a log file is kept after its last message.
        delete_when_hours: hours of the local day, 0 to 23, in which expired files are removed.
        disk_max_used_ratio: on a disk fuller than this, expired files are removed at any hour.
        disk_clean_forcibly_ratio: on a disk fuller than this, files are removed before their time.
        disk_warning_ratio: on a disk fuller than this, sends are refused.
    """

    file_reserved_ms: int = 72 * 3_600_000
    delete_when_hours: tuple[int, ...] = (4,)
    disk_max_used_ratio: float = 0.75
    disk_clean_forcibly_ratio: float = 1.0
    disk_warning_ratio: float = 1.0

    def check(self) -> None:
        """Check the values.

        Raises:
            ConfigurationError: the text names the value and what is accepted.
        """
        if self.file_reserved_ms < 0:
            raise ConfigurationError(
                f"file_reserved_ms {self.file_reserved_ms} is not accepted: give 0 or more",
                file_reserved_ms=self.file_reserved_ms,
            )
        hours = self.delete_when_hours
        if not hours or not all(0 <= hour <= 23 for hour in hours):
            raise ConfigurationError(
                f"delete_when_hours {hours} is not accepted: give one or more hours, 0 to 23",
                delete_when_hours=hours,
            )
        for name in ("disk_max_used_ratio", "disk_clean_forcibly_ratio", "disk_warning_ratio"):
            ratio = getattr(self, name)
            if not 0 < ratio <= 1:
                raise ConfigurationError(
                    f"{name} {ratio} is not accepted: give more than 0 and at most 1",
                    **{name: ratio},
                )


class LogFile(NamedTuple):
    """A commit log file that is not the newest: its first offset and its last write."""

    base: int
    modified_ms: int


class RetentionPlan(NamedTuple):
    """How many of the oldest files to remove, and whether the disk is too full for messages."""

    remove: int
    refuse_writes: bool


def plan_retention(
    files: Sequence[LogFile],
    config: RetentionConfig,
    *,
    now_ms: int,
    hour: int,
    disk_used_ratio: float,
    manual: bool = False,
) -> RetentionPlan:
    """Decide for one round.

    Args:
        files: without the newest one, oldest first.
        hour: of the local day, 0 to 23.
        disk_used_ratio: used space of the disk, 0 to 1.
        manual: an operator asked (admin code 329): expired files are removed at any hour.
    """
    refuse = disk_used_ratio > config.disk_warning_ratio
    forcibly = disk_used_ratio > config.disk_clean_forcibly_ratio
    due = manual or hour in config.delete_when_hours
    due = due or disk_used_ratio > config.disk_max_used_ratio
    remove = 0
    for file in files[:FILES_PER_ROUND_MAX]:
        expired = due and file.modified_ms + config.file_reserved_ms < now_ms
        if not (expired or forcibly):
            # Oldest first: a file that stays keeps all later ones.
            break
        remove += 1
    return RetentionPlan(remove, refuse)
