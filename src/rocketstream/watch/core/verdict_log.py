"""The verdict of each group, since when it holds, and which verdicts changed.

Pure: verdicts and times in, verdicts and changes out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from rocketstream.admin.state import GroupVerdict, Verdict


@dataclass(frozen=True, slots=True)
class VerdictChange:
    """The verdict of a group changed.

    Attributes:
        at_ms: when the change was seen, ms since 1970.
        before: the verdict before; None when the group was seen for the first time.
        after: the verdict now. A group that is gone makes no change.
    """

    group: str
    at_ms: int
    before: Verdict | None
    after: GroupVerdict


class VerdictLog:
    """The present verdict of each group; not thread safe."""

    def __init__(self) -> None:
        self._verdicts: dict[str, GroupVerdict] = {}

    def add(self, verdicts: Mapping[str, GroupVerdict], at_ms: int) -> list[VerdictChange]:
        """Take the verdicts of a sweep and return the changes; groups not in it are forgotten.

        A verdict that does not say since when it holds is taken to hold since it was first seen.
        """
        changes: list[VerdictChange] = []
        now: dict[str, GroupVerdict] = {}
        for group, verdict in verdicts.items():
            before = self._verdicts.get(group)
            stays = before is not None and before.verdict is verdict.verdict
            since = verdict.since_ms
            if since is None:
                since = before.since_ms if stays and before is not None else at_ms
            now[group] = dataclasses.replace(verdict, since_ms=since)
            if not stays:
                was = None if before is None else before.verdict
                changes.append(VerdictChange(group, at_ms, was, now[group]))
        self._verdicts = now
        return changes

    def go_on(self, verdicts: Mapping[str, GroupVerdict]) -> None:
        """Begin with the verdicts of the previous collection; one that stays is not a change."""
        self._verdicts = dict(verdicts)

    def verdicts(self) -> dict[str, GroupVerdict]:
        """Return the verdict of every group."""
        return dict(self._verdicts)


def unanswered(
    verdicts: Mapping[str, GroupVerdict], error: str, since_ms: int
) -> dict[str, GroupVerdict]:
    """Return the verdicts during an outage: UNKNOWN for every group."""
    return {
        group: GroupVerdict(
            group, Verdict.UNKNOWN, f"the cluster does not answer: {error}", since_ms=since_ms
        )
        for group in verdicts
    }
