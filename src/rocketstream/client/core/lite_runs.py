"""Runs: messages of lite topics between their arrival and their acknowledgement.

Law: pure. A run is what one answer brought of one lite topic: it is consumed in order, by one
listener call after the other, and two runs of a lite topic never at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

from rocketstream.late import dataclass
from rocketstream.model import MessageQueue
from rocketstream.protocol.message_ext import MessageExt

RENEWALS = 3
"""A run is hidden anew this often in the time it stays hidden, so that one may be lost."""


class LiteRun:
    """What one answer brought of one lite topic, in order.

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
        self.lite_topic = lite_topic
        self.queue = queue
        self.messages = messages
        self.offsets = offsets
        self.pop_time_ms = pop_time_ms
        self.invisible_ms = invisible_ms
        self.began_ms: float | None = None
        self.done = 0
        self.size = sum(message.store_size for message in messages)
        self.hidden(now_ms)

    def hidden(self, now_ms: float) -> None:
        """Reckon with the broker hiding what is left of the run anew, from ``now_ms`` on."""
        self.hidden_until_ms = now_ms + self.invisible_ms
        self.renew_at_ms = now_ms + self.invisible_ms / RENEWALS

    @property
    def key(self) -> tuple[str, str]:
        """Broker and lite topic: two runs of one key are never consumed at once."""
        return self.queue.broker_name, self.lite_topic

    @property
    def left(self) -> Sequence[int]:
        """Offsets of the messages that are not settled."""
        return self.offsets[self.done :]


@dataclass(frozen=True, slots=True)
class LiteBounds:
    """How much may be received and not be settled.

    Attributes:
        messages: how many messages.
        size_bytes: how many bytes.
        one_answer: messages of one answer.
    """

    messages: int
    size_bytes: int
    one_answer: int


class LiteRuns:
    """The runs of one consumer that have not ended. Callers serialise the calls."""

    def __init__(self, bounds: LiteBounds) -> None:
        self._bounds = bounds
        self._waiting: deque[LiteRun] = deque()
        self._behind: dict[tuple[str, str], deque[LiteRun]] = {}
        self._runs: dict[LiteRun, None] = {}
        self.message_count = 0
        self.size_bytes = 0

    # --- arrival ----------------------------------------------------------------------------------

    def has_room(self, unconfirmed: int, asked: int) -> bool:
        """Whether one more answer may be asked for.

        Args:
            unconfirmed: messages whose acknowledgement the broker has not confirmed.
            asked: answers that are on their way.
        """
        bounds = self._bounds
        coming = (asked + 1) * bounds.one_answer
        held = self.message_count + unconfirmed
        return held + coming <= bounds.messages and self.size_bytes < bounds.size_bytes

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
    def waiting(self) -> int:
        """How many runs a listener could begin now."""
        return len(self._waiting)

    @property
    def is_empty(self) -> bool:
        """Whether every run has ended."""
        return not self._runs

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
        due = []
        for run in self._runs:
            if run.renew_at_ms <= now_ms < run.hidden_until_ms:
                began = run.began_ms
                if began is None or now_ms - began < longest_ms:
                    due.append(run)
        return due

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
