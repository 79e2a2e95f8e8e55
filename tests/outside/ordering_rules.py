"""Pure: rules about order, committed offsets, and who consumes a queue when."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise

from tests.outside.history import DONE, LATER, SECOND, Commit, Delivery, Group, History, Place
from tests.outside.promises import Queue, calls, finished, promise, since_start, standing

NEVER = 1 << 62
SEEN_S = 10.0
"""A commit that was seen for so long is not lost, whatever becomes of the broker."""


class _Behind:
    """For a queue of a group: when all that stands before an offset was finished."""

    def __init__(
        self, history: History, group: Group, queue: Queue, stands: Mapping[int, str],
        ends: Mapping[Place, int],
    ) -> None:  # fmt: skip
        self._rows: list[tuple[int, int, str]] = []
        latest, which = 0, ""
        for offset in sorted(stands):
            send = history.sent.get(stands[offset])
            if send is not None and group.wants(send.content):
                at = ends.get(Place(*queue, offset), NEVER)
                if at > latest:
                    latest, which = at, f"{send.ident} at {Place(*queue, offset)}"
            self._rows.append((offset, latest, which))

    def before(self, offset: int) -> tuple[int, str]:
        """When everything before an offset was finished, and what was finished last."""
        low, high = 0, len(self._rows)
        while low < high:
            middle = (low + high) // 2
            if self._rows[middle][0] < offset:
                low = middle + 1
            else:
                high = middle
        return self._rows[low - 1][1:] if low else (0, "")


@promise("commit-behind", "A committed offset never passes an unfinished message")
def commit_stays_behind(history: History) -> Iterator[str]:
    """All that stands before a committed offset somebody saw was finished by then."""
    stands = standing(history)
    for group in history.consumers():
        ends = finished(history, group.name, (DONE, LATER))
        queues: dict[Queue, list[Commit]] = defaultdict(list)
        for commit in history.commits:
            if commit.group == group.name:
                queues[commit.topic, commit.queue].append(commit)
        for queue, commits in queues.items():
            behind = _Behind(history, group, queue, stands[queue], ends)
            told = set()
            for commit in commits:
                at, which = behind.before(commit.offset)
                if at > commit.at and which not in told:
                    told.add(which)
                    seen = since_start(history, commit.at)
                    end = "never" if at == NEVER else f"at {since_start(history, at)}"
                    yield (
                        f"{group.name} had {commit.offset} of {queue} committed at {seen}, and "
                        f"{which} was finished {end}"
                    )


@promise("commit-kept", "A commit that was seen is not lost")
def commit_is_kept(history: History) -> Iterator[str]:
    """A committed offset falls only where the broker was killed ten seconds later at most.

    Or where the queue changed hands, and its new owner had looked before that commit.
    """
    deaths = history.deaths("broker")
    queues: dict[tuple[str, Queue], list[Commit]] = defaultdict(list)
    for commit in sorted(history.commits, key=lambda each: each.at):
        queues[commit.group, (commit.topic, commit.queue)].append(commit)
    for (group, queue), commits in queues.items():
        first: dict[int, Commit] = {}
        for one, other in pairwise(commits):
            first.setdefault(one.offset, one)
            if other.offset >= one.offset:
                continue
            seen = min(each.at for offset, each in first.items() if offset >= one.offset)
            first = {offset: each for offset, each in first.items() if offset <= other.offset}
            if any(seen - SECOND <= at <= seen + SEEN_S * SECOND for at in deaths):
                continue
            if _began_before(history, other, seen):
                continue
            yield (
                f"{group} had {one.offset} of {queue} committed at {since_start(history, seen)}, "
                f"and {other.offset} at {since_start(history, other.at)}"
            )


def _began_before(history: History, fallen: Commit, seen: int) -> bool:
    """Tell whether a queue's new owner, there before the higher commit was seen, began that low.

    Apache's commits what it found at once, ours what it has consumed from there on.
    """
    queue = fallen.topic, fallen.queue
    made = [
        each
        for each in history.deliveries
        if each.group == fallen.group and (each.place.topic, each.place.queue) == queue
    ]
    earlier = [each for each in made if each.began <= seen]
    owner = max(earlier, key=lambda each: each.began, default=None)
    return owner is not None and any(
        each.began > seen
        and each.by != owner.by
        and each.place.offset <= fallen.offset
        and each.by in history.lives
        and history.lives[each.by].started < seen
        for each in made
    )


@promise("in-order", "In order, no message begins before its predecessors are finished")
def orderly_in_order(history: History) -> Iterator[str]:
    """When an orderly listener is called, all that stands before was finished."""
    stands = standing(history)
    for group in history.consumers():
        if group.kind != "orderly":
            continue
        ends = finished(history, group.name, (DONE,))
        for queue, made in calls(history, group.name).items():
            behind = _Behind(history, group, queue, stands[queue], ends)
            for call in made:
                yield from _call_in_order(history, call, behind)


def _call_in_order(history: History, call: list[Delivery], behind: _Behind) -> Iterator[str]:
    first = call[0]
    at, which = behind.before(first.place.offset)
    if at > first.began:
        began = since_start(history, first.began)
        end = "never" if at == NEVER else f"at {since_start(history, at)}"
        yield f"{first.ident} at {first.place} began at {began}, and {which} was finished {end}"
    for one, other in pairwise(call):
        if one.place.offset >= other.place.offset:
            yield f"a call of {first.by} had {one.place} before {other.place}"


@promise(
    "one-at-a-time", "A queue in order is consumed by one member at a time, one call after another"
)
def orderly_one_at_a_time(history: History) -> Iterator[str]:
    """No two calls of a queue overlap; a killed process is in no call any more."""
    for group in history.consumers():
        if group.kind != "orderly":
            continue
        for made in calls(history, group.name).values():
            longest: list[Delivery] = []
            for call in made:
                if longest and call[0].began < _end(history, longest[0]):
                    one, other = longest[0], call[0]
                    yield (
                        f"{one.by} had {one.ident} at {one.place} from "
                        f"{since_start(history, one.began)} to "
                        f"{since_start(history, min(_end(history, one), other.began + SECOND))}, "
                        f"and {other.by} began {other.place} at {since_start(history, other.began)}"
                    )
                if not longest or _end(history, call[0]) >= _end(history, longest[0]):
                    longest = call


def _end(history: History, delivery: Delivery) -> int:
    if delivery.ended is not None:
        return delivery.ended
    death = history.death_of(delivery.by)
    return NEVER if death is None else death


@promise(
    "again-for-a-cause",
    "A message comes again only for a cause: failure, crash, a queue that changes hands",
)
def comes_again_for_a_cause(history: History) -> Iterator[str]:
    """A finished message comes again only near a fault, or where members come and go."""
    reach = 30 * SECOND
    found: dict[tuple[str, str, Place], list[Delivery]] = defaultdict(list)
    broadcasts = {group.name for group in history.groups if group.kind == "broadcast"}
    for delivery in sorted(history.deliveries, key=lambda each: each.began):
        who = delivery.by.partition("#")[0] if delivery.group in broadcasts else ""
        found[delivery.group, who, delivery.place].append(delivery)
    for (group, _, place), made in found.items():
        for one, other in pairwise(made):
            if one.verdict != DONE or one.ended is None or group == "reader":
                continue
            if not history.disturbances(one.ended - reach, other.began):
                yield (
                    f"{one.ident} at {place} was finished by {one.by} at "
                    f"{since_start(history, one.ended)} and given to {other.by} at "
                    f"{since_start(history, other.began)}, and nothing had happened"
                )
