"""Which commit log files may go, and why (W 5.7, C-439).

Law: decides only; no files, no clock. The store removes what the plan says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

FILES_PER_ROUND_MAX = 10


@dataclass(frozen=True, slots=True)
class RetentionConfig:
    """Upstream's names: fileReservedTime, deleteWhen, diskMaxUsedSpaceRatio, and the two marks
    diskSpaceCleanForciblyRatio (0.85 there) and diskSpaceWarningLevelRatio (0.90 there).

    The two marks are off here: a disk shared with other programs must not make the store delete
    messages before their time, and space is reserved before it is written, so a disk that is really
    full refuses sends by itself.
    """

    file_reserved_ms: int = 72 * 3_600_000
    delete_when_hours: tuple[int, ...] = (4,)
    disk_max_used_ratio: float = 0.75
    disk_clean_forcibly_ratio: float = 1.0
    disk_warning_ratio: float = 1.0


class LogFile(NamedTuple):
    """A commit log file that is not the newest: where it begins and when it was last written."""

    base: int
    modified_ms: int


class RetentionPlan(NamedTuple):
    """How many of the oldest files go, and whether the disk is too full to take messages."""

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
        manual: an operator asked (admin code 329): expired files go at any hour.
    """
    refuse = disk_used_ratio > config.disk_warning_ratio
    forcibly = disk_used_ratio > config.disk_clean_forcibly_ratio
    due = manual or hour in config.delete_when_hours
    due = due or disk_used_ratio > config.disk_max_used_ratio
    remove = 0
    for file in files[:FILES_PER_ROUND_MAX]:
        expired = due and file.modified_ms + config.file_reserved_ms < now_ms
        if not (expired or forcibly):
            # Oldest first: a file that stays keeps everything behind it.
            break
        remove += 1
    return RetentionPlan(remove, refuse)
