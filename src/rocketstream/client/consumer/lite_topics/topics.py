"""Pure: the lite topics a consumer subscribes, and the messages it has of them.

Brokers keep in memory what they were told: they forget it when they restart, and 180 s after they
last heard of it. A run is what one answer brought of one lite topic: it is consumed in order, by
one listener call after the other, and two runs of a lite topic never at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from rocketstream.client.consumer.settings import PLACE, OffsetOption
from rocketstream.model import MessageQueue
from rocketstream.protocol.lite import receipt
from rocketstream.protocol.message_ext import MessageExt

TELL_ALL_AGAIN_MS = 60_000
"""Every broker is told the whole set this often: three times before it would forget."""
WRITTEN_MS = 60_000
"""Brokers write offsets every few seconds: one that is killed has forgotten the newest ones, and a
group's first one in a lite topic with them."""
RENEWALS = 3
"""A run is hidden anew this often in the time it stays hidden, so that one may be lost."""


@dataclass(slots=True)
class _Broker:
    """One broker: what it was told, and where the group may have no offset.

    Attributes:
        unplaced: lite topics in which the group may have no offset there, or may lose it again:
            when it was seen to have one, None before.
        told_ms: when it was told everything; None if it must be told now.
        change: counts what made that untrue; an answer to an earlier question says nothing.
    """

    unplaced: dict[str, float | None] = field(default_factory=dict)
    told_ms: float | None = None
    change: int = 0


class LiteTopics:
    """The lite topics of one consumer. Belongs to its loop."""

    def __init__(self) -> None:
        self._wanted: dict[str, OffsetOption] = {}
        """Each with where the group begins at a broker where it never was."""
        self._brokers: dict[str, _Broker] = {}

    @property
    def wanted(self) -> frozenset[str]:
        """The lite topics subscribed."""
        return frozenset(self._wanted)

    def is_wanted(self, name: str) -> bool:
        """Whether a lite topic is subscribed."""
        return name in self._wanted

    def new(self, names: Iterable[str]) -> list[str]:
        """Return those of ``names`` that are not subscribed, each once."""
        return [name for name in dict.fromkeys(names) if name not in self._wanted]

    def known(self, names: Iterable[str]) -> list[str]:
        """Return those of ``names`` that are subscribed, each once."""
        return [name for name in dict.fromkeys(names) if name in self._wanted]

    def add(self, names: Collection[str], option: OffsetOption | None) -> None:
        """Subscribe these lite topics too.

        Where the group begins at the oldest message, or at a place that was named, it has no offset
        at a broker before it has finished one; a broker that restarts meanwhile must be told again
        where to begin.
        """
        begin = OffsetOption.MIN_OFFSET if option is None or option.kind != PLACE else option
        self._wanted |= dict.fromkeys(names, begin)
        if begin == option or begins_at_oldest(option):
            for broker in self._brokers.values():
                broker.unplaced.update(dict.fromkeys(names))

    def remove(self, names: Collection[str]) -> None:
        """Subscribe these lite topics no more."""
        for name in names:
            self._wanted.pop(name, None)
            for broker in self._brokers.values():
                broker.unplaced.pop(name, None)

    # --- brokers ----------------------------------------------------------------------------------

    def serve(self, brokers: Collection[str]) -> None:
        """Take in which brokers carry the parent topic."""
        self._brokers = {
            name: self._brokers.get(name) or _Broker(dict.fromkeys(self._wanted))
            for name in brokers
        }

    @property
    def brokers(self) -> list[str]:
        """The brokers that carry the parent topic."""
        return list(self._brokers)

    def is_due(self, name: str, now_ms: float) -> bool:
        """Whether a broker must be told the whole set now."""
        broker = self._brokers.get(name)
        if broker is None:
            return False
        return broker.told_ms is None or now_ms - broker.told_ms >= TELL_ALL_AGAIN_MS

    def forgot(self, name: str) -> None:
        """A broker may have forgotten everything, or what it has is not what is wanted."""
        broker = self._brokers.get(name)
        if broker is not None:
            broker.told_ms = None
            broker.change += 1

    def mark(self, name: str) -> int:
        """Return what ``told_all`` needs to be sure that nothing changed meanwhile."""
        broker = self._brokers.get(name)
        return -1 if broker is None else broker.change

    def told_all(self, name: str, mark: int, now_ms: float) -> None:
        """A broker has confirmed the whole set it was sent after ``mark``."""
        broker = self._brokers.get(name)
        if broker is not None and broker.change == mark:
            broker.told_ms = now_ms

    def is_told(self, name: str) -> bool:
        """Whether a broker has confirmed the whole set and not been lost since."""
        broker = self._brokers.get(name)
        return broker is not None and broker.told_ms is not None

    # --- where the group begins -------------------------------------------------------------------

    def to_place(self, name: str, now_ms: float) -> list[str]:
        """Return the lite topics where the group may have no offset at a broker.

        While it is to be told the whole set anew: these are to be placed before.
        """
        broker = self._brokers.get(name)
        if broker is None or broker.told_ms is not None:
            return []
        broker.unplaced = {
            lite_topic: since
            for lite_topic, since in broker.unplaced.items()
            if since is None or now_ms - since < WRITTEN_MS
        }
        return sorted(broker.unplaced)

    def begins(self, names: Iterable[str]) -> dict[OffsetOption, list[str]]:
        """Return where the group begins in lite topics where it never was, and in which of them."""
        found: dict[OffsetOption, list[str]] = {}
        for lite_topic in names:
            begin = self._wanted.get(lite_topic, OffsetOption.MIN_OFFSET)
            found.setdefault(begin, []).append(lite_topic)
        return found

    def placed(self, name: str, lite_topics: Iterable[str], now_ms: float) -> None:
        """The group has an offset in these: it was there before, or has finished a message."""
        unplaced = self._brokers[name].unplaced if name in self._brokers else {}
        for lite_topic in lite_topics:
            if unplaced.get(lite_topic, now_ms) is None:
                unplaced[lite_topic] = now_ms


def begins_at_oldest(option: OffsetOption | None) -> bool:
    """Whether a group without an offset is to begin at the oldest message."""
    return option is None or option == OffsetOption.MIN_OFFSET


def parts(names: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    """Cut many names into parts of at most ``size``."""
    return (names[at : at + size] for at in range(0, len(names), size))


# --- messages -----------------------------------------------------------------------------------


class LiteRun:
    """The messages one answer brought of one lite topic, in order.

    Attributes:
        lite_topic: its name.
        queue: the parent topic, the broker, and 0.
        messages: in order.
        offsets: of the messages, in the lite topic.
        pop_time_ms: the broker's clock when it gave them; its receipts name it.
        invisible_ms: how long it hid them then; its receipts name it too.
        hidden_until_ms: until then no other member gets them, by this side's monotonic clock.
        renew_at_ms: when they are to be hidden anew.
        began_ms: when a listener began the first of them; None while they wait.
        done: how many of them are settled: acknowledged, or given back.
    """

    __slots__ = (
        "began_ms", "done", "hidden_until_ms", "invisible_ms", "lite_topic", "messages", "offsets",
        "pop_time_ms", "queue", "renew_at_ms", "size",
    )  # fmt: skip

    def __init__(
        self,
        lite_topic: str,
        queue: MessageQueue,
        messages: Sequence[MessageExt],
        offsets: Sequence[int],
        pop_time_ms: int,
        invisible_ms: int,
        now_ms: float,
    ) -> None:
        self.lite_topic: str = lite_topic
        self.queue: MessageQueue = queue
        self.messages: Sequence[MessageExt] = messages
        self.offsets: Sequence[int] = offsets
        self.pop_time_ms: int = pop_time_ms
        self.invisible_ms: int = invisible_ms
        self.began_ms: float | None = None
        self.done: int = 0
        self.size: int = sum(message.store_size for message in messages)
        self.hidden(now_ms)

    def hidden(self, now_ms: float) -> None:
        """Note that the broker hides the rest of the run again, from ``now_ms`` on."""
        self.hidden_until_ms: float = now_ms + self.invisible_ms
        self.renew_at_ms: float = now_ms + self.invisible_ms / RENEWALS

    @property
    def key(self) -> tuple[str, str]:
        """Broker and lite topic: two runs of one key are never consumed at once."""
        return self.queue.broker_name, self.lite_topic

    @property
    def left(self) -> Sequence[int]:
        """Offsets of the messages that are not settled."""
        return self.offsets[self.done :]

    def receipt(self, offset: int) -> str:
        """Return the handle a broker knows a message by that it gave with this run."""
        return receipt(self.queue.broker_name, offset, self.pop_time_ms, self.invisible_ms)


class LiteRuns:
    """The runs of one consumer that have not ended. Callers serialise the calls.

    Args:
        count_max: how many messages may be received and not be settled.
        bytes_max: how many bytes.
        answer_max: messages of one answer.
    """

    def __init__(self, count_max: int, bytes_max: int, answer_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._answer_max = answer_max
        self._waiting: deque[LiteRun] = deque()
        self._behind: dict[tuple[str, str], deque[LiteRun]] = {}
        self._runs: dict[LiteRun, None] = {}
        self.message_count: int = 0
        self.size_bytes: int = 0

    # --- arrival ----------------------------------------------------------------------------------

    def answer_size(self, brokers: int) -> int:
        """Return how many messages to ask each broker for, so that all can be asked at once.

        A question is held for long: one broker's must not keep another from ever being asked.
        """
        return max(1, min(self._answer_max, self._count_max // max(brokers, 1)))

    def has_room(self, size: int, unconfirmed: int, asked: int) -> bool:
        """Whether one more answer may be asked for.

        Args:
            size: how many messages it may have.
            unconfirmed: messages whose acknowledgement the broker has not confirmed.
            asked: messages that answers on their way may have.
        """
        messages = self.message_count + unconfirmed + asked + size
        return messages <= self._count_max and self.size_bytes < self._bytes_max

    def add(self, run: LiteRun) -> None:
        """Take a run in; it waits for those of its lite topic that came before."""
        self._runs[run] = None
        self.message_count += len(run.messages)
        self.size_bytes += run.size
        behind = self._behind.get(run.key)
        if behind is None:
            self._behind[run.key] = deque()
            self._waiting.append(run)
        else:
            behind.append(run)

    # --- consuming --------------------------------------------------------------------------------

    @property
    def oldest(self) -> LiteRun | None:
        """The run that waits longest of those a listener could begin now, if there is one."""
        return self._waiting[0] if self._waiting else None

    def next_run(self, now_ms: float) -> LiteRun | None:
        """Return a run to consume, None when none can be begun.

        Runs that are hidden no more are left out: the broker gives their messages out again, maybe
        to another member.
        """
        while self._waiting:
            run = self._waiting.popleft()
            if run.hidden_until_ms > now_ms:
                run.began_ms = now_ms
                return run
            self.finish(run)
        return None

    def advance(self, run: LiteRun, count: int) -> None:
        """Count the next ``count`` messages of a run as settled."""
        run.done += count
        self.message_count -= count

    def finish(self, run: LiteRun) -> None:
        """End a run, with all of its messages settled or before."""
        if run not in self._runs:
            return
        self._forget(run)
        behind = self._behind[run.key]
        if behind:
            self._waiting.append(behind.popleft())
        else:
            del self._behind[run.key]

    # --- time -------------------------------------------------------------------------------------

    def to_renew(self, now_ms: float, longest_ms: float) -> list[LiteRun]:
        """Return the runs to hide anew; not those a listener has had for ``longest_ms``."""
        return [
            run
            for run in self._runs
            if run.renew_at_ms <= now_ms < run.hidden_until_ms
            and (run.began_ms is None or now_ms - run.began_ms < longest_ms)
        ]

    def abandon_waiting(self, names: Collection[str] | None = None) -> list[LiteRun]:
        """Take out the runs nobody has begun, of some lite topics or all; the caller gives them
        back.
        """
        left = [
            run
            for run in self._runs
            if run.began_ms is None and (names is None or run.lite_topic in names)
        ]
        for run in left:
            self._forget(run)
        self._waiting = deque(run for run in self._waiting if run in self._runs)
        begun = {run.key for run in self._runs if run.began_ms is not None}
        for key in {run.key for run in left}:
            if key in begun:
                self._behind[key].clear()
            else:
                del self._behind[key]
        return left

    def _forget(self, run: LiteRun) -> None:
        del self._runs[run]
        self.message_count -= len(run.messages) - run.done
        self.size_bytes -= run.size
