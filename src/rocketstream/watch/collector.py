"""One collection of a cluster's state that everybody reads: swept again and again, kept, judged.

Law: the only place of the watch that asks brokers, on one thread, one sweep at a time. Readers take
what the last sweep left.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType, TracebackType
from typing import Final, Protocol, Self

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream._util.workers import ThreadWorkers, Worker, Workers
from rocketstream.admin.core.verdicts import judge
from rocketstream.admin.state import ClusterState, GroupState, GroupVerdict, PinnedMessage
from rocketstream.errors import ClientStateError, ConfigurationError, RocketMQError
from rocketstream.watch.core.looks import Looks
from rocketstream.watch.core.outage import Outage
from rocketstream.watch.core.pace import early_pause_s, pause_s
from rocketstream.watch.core.takeover import Gap, Past, gap_before
from rocketstream.watch.core.verdict_log import VerdictChange, VerdictLog, unanswered
from rocketstream.watch.core.windows import Windows

_log = logging.getLogger(__name__)

INTERVAL_S: Final = 10.0
INTERVAL_S_MIN: Final = 1.0


class Asked(Protocol):
    """What a sweep needs of ``Admin``."""

    def cluster_state(self) -> ClusterState:
        """Return everything one sweep finds."""
        ...

    def pinned_messages(self, window: Sequence[GroupState]) -> Sequence[PinnedMessage]:
        """Return the messages that hold back queues which stand; asks the group's members."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


class Record(Protocol):
    """Where sweeps are written down; see ``History``."""

    def add(
        self,
        state: ClusterState,
        verdicts: Mapping[str, GroupVerdict],
        changes: Sequence[VerdictChange],
    ) -> None:
        """Write a sweep down. Raises nothing: what cannot be written is logged."""
        ...

    def past(self) -> Past | None:
        """Return what the collection before left; None where there was none. Raises nothing."""
        ...


class Judge(Protocol):
    """Makes a verdict of a window; see ``rocketstream.admin.core.verdicts.judge``."""

    def __call__(
        self,
        window: Sequence[GroupState],
        pinned: Sequence[PinnedMessage] = (),
        *,
        before: GroupVerdict | None = None,
    ) -> GroupVerdict:
        """Return the verdict of the newest state."""
        ...


@dataclass(frozen=True, slots=True)
class Cost:
    """What the collection costs the brokers.

    Attributes:
        requests_per_s: over the last sweeps, pauses between them included; None before a second
            sweep.
        sweep_ms: how long the last sweep took; None before the first.
        requests: of the last sweep; None before the first.
        interval_s: from the beginning of a sweep to that of the next as it is now: longer than
            wanted where sweeps take long or brokers fail.
        sweeps: how many there were.
        failed_sweeps: how many of them found nothing.
    """

    requests_per_s: float | None
    sweep_ms: int | None
    requests: int | None
    interval_s: float
    sweeps: int
    failed_sweeps: int


@dataclass(frozen=True, slots=True)
class Update:
    """What one sweep brought, handed to every subscriber.

    Attributes:
        state: the newest state that was found; None as long as no sweep found one.
        verdicts: of every group, UNKNOWN while ``outage`` lasts.
        changes: verdicts that are others than before this sweep.
        outage: since when nothing answers; None when this sweep was answered.
        before: what the sweep before found, for rates; None where it was not answered.
        gap: the time nobody watched before this collection began, where that was too long to go on
            from what was known; None where it goes on, or where nothing was known.
    """

    state: ClusterState | None
    verdicts: Mapping[str, GroupVerdict]
    changes: tuple[VerdictChange, ...] = ()
    outage: Outage | None = None
    before: ClusterState | None = None
    gap: Gap | None = None


@dataclass(slots=True)
class _Counts:
    sweeps: int = 0
    failed: int = 0
    failed_in_a_row: int = 0
    failing_in_a_row: int = 0
    recent: list[tuple[float, int]] = field(default_factory=list)  # begin (s), requests


RECENT_SWEEPS: Final = 20
"""Sweeps the stated cost is taken over."""


class Collector:
    """Sweeps a cluster in the background and keeps what it found.

    Args:
        admin_factory: makes the ``Admin`` that is asked; called on the collector's thread, again
            after a sweep that found nothing.
        interval_s: from the beginning of one sweep to the next, 1 s at least. A sweep takes a
            quarter of the time at most, so a slow one stretches it; so do failing brokers.
        history: where sweeps are written down; what the collection before it left there is gone on
            from, so that a restart changes neither verdicts nor since when they hold.
        judge: makes a verdict of a group's window.
        clock: where times come from.
        workers: runs the sweeps; a thread unless handed in.
        windows: what is kept of each group; bounded.

    Reading never blocks on a broker. Thread safe. To be closed, or used in ``with``.
    """

    def __init__(
        self,
        admin_factory: Callable[[], Asked],
        *,
        interval_s: float = INTERVAL_S,
        history: Record | None = None,
        judge: Judge = judge,
        clock: Clock = SYSTEM_CLOCK,
        workers: Workers | None = None,
        windows: Windows | None = None,
    ) -> None:
        if not interval_s >= INTERVAL_S_MIN:
            raise ConfigurationError(
                f"interval_s={interval_s}: a sweep every {INTERVAL_S_MIN:g} s is the most there "
                "is; give a number of seconds from there on",
                interval_s=interval_s,
            )
        self._factory = admin_factory
        self._interval_s = interval_s
        self._history = history
        self._judge = judge
        self._clock = clock
        self._workers = ThreadWorkers() if workers is None else workers
        self._worker: Worker | None = None
        self._closed = False
        self._admin: Asked | None = None
        self._log = VerdictLog()
        self._looks = Looks()
        self._judged: dict[str, GroupVerdict] = {}
        self._past: Past | None = None
        self._gap: Gap | None = None
        self._counts = _Counts()
        self._began_s = 0.0
        self._took_s = 0.0
        self._pause_s = 0.0
        self._due_s = 0.0
        # What readers see, replaced as a whole under the lock.
        self._lock = threading.Condition()
        self._windows = Windows() if windows is None else windows
        self._update = Update(None, MappingProxyType({}))
        self._begun = 0
        self._ended = 0
        self._wanted = 0
        self._subscribers: dict[int, Callable[[Update], object]] = {}
        self._next_id = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # --- life ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin sweeping, at once; returns without waiting. Calling it again does nothing.

        Raises:
            ClientStateError: closed.
        """
        with self._lock:
            if self._closed:
                raise ClientStateError("the collector is closed; make a new one")
            if self._worker is None:
                self._worker = self._workers.start("rocketstream-collector", self._step, first_s=0)

    def close(self) -> None:
        """End the sweeps and close the connections; waits for the sweep under way.

        May be called twice. What was found stays readable.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._lock.notify_all()
            worker = self._worker
        if worker is not None:
            worker.stop()
        self._drop_admin()

    # --- reading ------------------------------------------------------------------------------

    def latest(self) -> ClusterState | None:
        """Return what the newest answered sweep found; None before the first.

        While nothing answers it stays what it was: ``outage`` says since when.
        """
        return self.update().state

    def outage(self) -> Outage | None:
        """Return since when nothing answers and why; None when the last sweep was answered."""
        return self.update().outage

    def update(self) -> Update:
        """Return state, verdicts and outage of one and the same sweep."""
        with self._lock:
            return self._update

    def verdicts(self) -> Mapping[str, GroupVerdict]:
        """Return the verdict of every group; UNKNOWN while nothing answers."""
        return self.update().verdicts

    def window(self, group: str) -> list[GroupState]:
        """Return the last minutes of a group, oldest first; empty for one nobody knows."""
        with self._lock:
            return self._windows.window(group)

    def cost(self) -> Cost:
        """Return what the collection costs the brokers."""
        with self._lock:
            recent = self._counts.recent
            rate = None
            if len(recent) >= 2:
                # The last sweep's requests belong to the time that follows it.
                spent = sum(requests for _, requests in recent[:-1])
                rate = spent / max(recent[-1][0] - recent[0][0], 0.001)
            return Cost(
                requests_per_s=rate,
                sweep_ms=round(self._took_s * 1000) if self._counts.sweeps else None,
                requests=recent[-1][1] if recent else None,
                interval_s=max(self._took_s + self._pause_s, self._interval_s),
                sweeps=self._counts.sweeps,
                failed_sweeps=self._counts.failed,
            )

    def subscribe(self, callback: Callable[[Update], object]) -> Callable[[], None]:
        """Have ``callback`` called after every sweep, on the collector's thread; it must not block.

        An error it raises is logged. Returns what ends the subscription.
        """
        with self._lock:
            number = self._next_id
            self._next_id += 1
            self._subscribers[number] = callback

        def unsubscribe() -> None:
            with self._lock:
                self._subscribers.pop(number, None)

        return unsubscribe

    def refresh(self, timeout_s: float | None = None) -> bool:
        """Ask for a sweep now, as after a change; however many ask, one sweep serves them all.

        Sweeps begin a second apart at least, and a slow one is followed by as long a pause.

        Args:
            timeout_s: wait so long for a sweep that began after this call; None returns at once.

        Returns:
            Whether such a sweep is done.
        """
        with self._lock:
            wanted = self._begun + 1
            self._wanted = max(self._wanted, wanted)
            worker = self._worker
        if worker is not None:
            worker.wake()
        with self._lock:
            if timeout_s is not None:
                self._lock.wait_for(lambda: self._closed or self._ended >= wanted, timeout_s)
            return self._ended >= wanted

    # --- sweeping -----------------------------------------------------------------------------

    def _step(self) -> float:
        """Sweep if it is time to; return the pause until the next look, in seconds."""
        now_s = self._clock.monotonic_ms() / 1000
        with self._lock:
            asked = self._wanted > self._begun
            early = early_pause_s(now_s - self._began_s, self._took_s) if self._begun else 0.0
            left = min(self._due_s - now_s, early) if asked else self._due_s - now_s
            if self._begun and left > 0:
                return left
            self._begun += 1
        self._began_s = now_s
        try:
            self._sweep()
        except Exception:
            # A mistake of ours must end neither the collection nor, unseen, the faces' picture.
            _log.exception("INTERNAL a sweep failed")
            self._counts.failed_in_a_row += 1
        finally:
            with self._lock:
                self._ended = self._begun
                self._lock.notify_all()
        ended_s = self._clock.monotonic_ms() / 1000
        self._took_s = ended_s - now_s
        self._pause_s = pause_s(
            self._interval_s,
            self._took_s,
            failed_sweeps=self._counts.failed_in_a_row,
            failing_sweeps=self._counts.failing_in_a_row,
        )
        self._due_s = ended_s + self._pause_s
        with self._lock:
            asked = self._wanted > self._begun
        return early_pause_s(ended_s - now_s, self._took_s) if asked else self._pause_s

    def _sweep(self) -> None:
        if self._history is not None and not self._counts.sweeps:
            self._past = self._history.past()  # before this sweep is written over it
        state = self._ask()
        counts = self._counts
        with self._lock:
            counts.sweeps += 1
            counts.recent = [*counts.recent, (self._began_s, state.requests)][-RECENT_SWEEPS:]
        if state.error is not None:
            counts.failed += 1
            counts.failed_in_a_row += 1
            update = self._unanswered(state)
        else:
            counts.failed_in_a_row = 0
            failing = any(broker.error is not None for broker in state.brokers)
            counts.failing_in_a_row = counts.failing_in_a_row + 1 if failing else 0
            update = self._answered(state)
        with self._lock:
            self._update = update
            subscribers = list(self._subscribers.values())
        if self._history is not None:
            self._history.add(state, update.verdicts, update.changes)
        for callback in subscribers:
            try:
                callback(update)
            except Exception:
                _log.exception("INTERNAL a subscriber of the collector failed")

    def _ask(self) -> ClusterState:
        taken_ms = self._clock.now_ms()
        try:
            if self._admin is None:
                self._admin = self._factory()
            state = self._admin.cluster_state()
        except (RocketMQError, OSError) as error:
            state = ClusterState(taken_ms, 0, 0, error=f"{error}")
        if state.error is not None:
            self._drop_admin()
        return state

    def _go_on(self, state: ClusterState) -> None:
        """Take over what the collection before left, at the first sweep that is answered."""
        past, self._past = self._past, None
        if past is None:
            return
        self._gap = gap_before(past, state, self._interval_s)
        if self._gap is not None:
            _log.warning(
                "HISTORY_NOT_TAKEN_OVER verdicts begin anew, %d s after the last sweep: %s",
                (self._gap.until_ms - self._gap.from_ms) / 1000,
                self._gap.reason,
            )
            return
        with self._lock:
            for moment in past.moments:
                self._windows.add(moment.groups)
        self._judged = dict(past.verdicts)
        self._log.go_on(past.verdicts)

    def _answered(self, state: ClusterState) -> Update:
        self._go_on(state)
        with self._lock:
            self._windows.add(state.groups)
            windows = {group: self._windows.window(group) for group in state.groups}
        self._look(windows, state.taken_ms)
        # An outage in between is no verdict: what was known before it counts.
        known = self._judged
        self._judged = {
            group: self._judge(window, self._looks.found(group), before=known.get(group))
            for group, window in windows.items()
        }
        changes = self._log.add(self._judged, state.taken_ms)
        former = self._update
        return Update(
            state,
            MappingProxyType(self._log.verdicts()),
            tuple(changes),
            before=former.state if former.outage is None else None,
            gap=self._gap,
        )

    def _look(self, windows: Mapping[str, list[GroupState]], now_ms: int) -> None:
        """Ask the members of one group, where one has a queue that stands, what they do."""
        group = self._looks.next_group(windows, now_ms)
        if group is None or self._admin is None:
            return
        try:
            found = self._admin.pinned_messages(windows[group])
        except (RocketMQError, OSError) as error:
            _log.debug("members of %s were not asked: %s", group, error)
            found = ()
        self._looks.note(group, found, now_ms)

    def _unanswered(self, state: ClusterState) -> Update:
        before = self._update
        error = state.error or "no reason given"
        since = state.taken_ms if before.outage is None else before.outage.since_ms
        sweeps = 1 if before.outage is None else before.outage.sweeps + 1
        changes = self._log.add(unanswered(before.verdicts, error, since), state.taken_ms)
        return Update(
            before.state,
            MappingProxyType(self._log.verdicts()),
            tuple(changes),
            Outage(since, error, sweeps),
            gap=self._gap,
        )

    def _drop_admin(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            try:
                admin.close()
            except (RocketMQError, OSError):
                _log.debug("closing the admin client failed", exc_info=True)
