"""One collection of a cluster's state for all readers: swept again and again, kept and judged.

Law: no other module of the watch asks brokers; it does so on one thread, one sweep at a time.
Readers get the result of the last sweep.
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
from rocketstream.admin.state import (
    Cause,
    ClusterState,
    GroupState,
    GroupVerdict,
    PinnedMessage,
    WhyReport,
)
from rocketstream.errors import ClientStateError, ConfigurationError, RocketMQError
from rocketstream.watch.core.looks import AT_ONCE_MAX, AT_ONCE_MS, Looks
from rocketstream.watch.core.outage import BrokerDown, Outage, brokers_down
from rocketstream.watch.core.pace import early_pause_s, pause_s
from rocketstream.watch.core.takeover import Gap, Past, gap_before
from rocketstream.watch.core.verdict_log import VerdictChange, VerdictLog, unanswered
from rocketstream.watch.core.windows import Windows

_log = logging.getLogger(__name__)

INTERVAL_S: Final = 10.0
INTERVAL_S_MIN: Final = 1.0


class Asked(Protocol):
    """The operations of ``Admin`` that a sweep uses."""

    def cluster_state(self) -> ClusterState:
        """Return everything one sweep finds."""
        ...

    def group_why(self, group: str, *, window: Sequence[GroupState] = ()) -> WhyReport:
        """Return what a group is behind for, or loses; asks its members."""
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
        """Write a sweep down. Raises nothing: a failure to write is logged."""
        ...

    def past(self) -> Past | None:
        """Return the state the previous collection left; None where there was none. Raises
        nothing."""
        ...


class Judge(Protocol):
    """Derives a verdict from a window; see ``rocketstream.admin.core.verdicts.judge``."""

    def __call__(
        self,
        window: Sequence[GroupState],
        pinned: Sequence[PinnedMessage] = (),
        causes: Sequence[Cause] = (),
        *,
        before: GroupVerdict | None = None,
    ) -> GroupVerdict:
        """Return the verdict of the newest state."""
        ...


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of the collection for the brokers.

    Attributes:
        requests_per_s: the mean over the last sweeps and the pauses between them; None before a
            second sweep.
        sweep_ms: how long the last sweep took; None before the first.
        requests: how many requests the last sweep made; None before the first.
        interval_s: the present time from the beginning of a sweep to that of the next, in seconds:
            longer than configured where sweeps take long or brokers fail.
        sweeps: how many sweeps there were.
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
    """The result of one sweep, handed to every subscriber.

    Attributes:
        state: the newest state that was found; None as long as no sweep found one.
        verdicts: the verdict of every group, UNKNOWN while ``outage`` lasts.
        changes: the verdicts this sweep changed.
        outage: since when nothing answers; None when this sweep was answered.
        down: brokers that do not answer while others, or a name server, do; as of the last sweep
            that was answered.
        before: the state the previous sweep found, for rates; None where it was not answered.
        gap: the unwatched time before this collection began, where it was too long to continue from
            the previous collection; None where this one continues, or where there was none before.
    """

    state: ClusterState | None
    verdicts: Mapping[str, GroupVerdict]
    changes: tuple[VerdictChange, ...] = ()
    outage: Outage | None = None
    down: tuple[BrokerDown, ...] = ()
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
"""How many sweeps the reported cost is averaged over."""


class Collector:
    """Sweeps a cluster in the background and keeps the results.

    Args:
        admin_factory: makes the ``Admin`` that is asked; called on the collector's thread, again
            after a sweep that found nothing.
        interval_s: seconds from the beginning of one sweep to the next, at least 1. Sweeps take at
            most a quarter of the time, so a slow sweep lengthens the interval; failing brokers do
            too.
        history: where sweeps are written down. The collection continues from the previous one's
            state there, so that a restart changes neither verdicts nor since when they hold.
        judge: derives a verdict from a group's window.
        clock: where times come from.
        workers: runs the sweeps; by default on a thread.
        windows: the states kept of each group; bounded.

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
                f"interval_s={interval_s}: give {INTERVAL_S_MIN:g} s or more",
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
        # The values readers see are replaced as a whole under the lock.
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
            ClientStateError: the collector is closed.
        """
        with self._lock:
            if self._closed:
                raise ClientStateError("the collector is closed; make a new one")
            if self._worker is None:
                self._worker = self._workers.start("rocketstream-collector", self._step, first_s=0)

    def close(self) -> None:
        """End the sweeps and close the connections; waits for the sweep under way.

        May be called twice. The last results stay readable.
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
        """Return the state the newest answered sweep found; None before the first.

        While nothing answers, the state stays the same; ``outage`` says since when.
        """
        return self.update().state

    def outage(self) -> Outage | None:
        """Return since when nothing answers and why; None when the last sweep was answered."""
        return self.update().outage

    def update(self) -> Update:
        """Return state, verdicts and outage, all from the same sweep."""
        with self._lock:
            return self._update

    def verdicts(self) -> Mapping[str, GroupVerdict]:
        """Return the verdict of every group; UNKNOWN while nothing answers."""
        return self.update().verdicts

    def window(self, group: str) -> list[GroupState]:
        """Return the last minutes of a group, oldest first; empty for an unknown group."""
        with self._lock:
            return self._windows.window(group)

    def cost(self) -> Cost:
        """Return what the collection costs the brokers."""
        with self._lock:
            recent = self._counts.recent
            rate = None
            if len(recent) >= 2:
                # The last sweep's requests count for the time until the next one, which is not
                # over.
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
        """Call ``callback`` after every sweep, on the collector's thread; it must not block.

        An error it raises is logged. Returns a function that ends the subscription.
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
        """Ask for a sweep now, as after a change; one sweep serves all callers that ask meanwhile.

        Sweeps begin at least a second apart, and a pause at least as long as a slow sweep follows
        it.

        Args:
            timeout_s: how many seconds to wait for a sweep that began after this call; None returns
                at once.

        Returns:
            Whether such a sweep was completed in that time.
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
        """Sweep if it is time to; return the pause until the next check, in seconds."""
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
            # An error of our own must neither end the collection nor go unnoticed on the pages.
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
            self._past = self._history.past()  # read before this sweep overwrites it
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
        """Take over the state the previous collection left, at the first sweep that is answered."""
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
        # An outage in between is not a verdict: the verdicts known before it count.
        known = self._judged
        self._judged = {
            group: self._judge(
                window,
                self._looks.pinned(group),
                self._looks.causes(group),
                before=known.get(group),
            )
            for group, window in windows.items()
        }
        changes = self._log.add(self._judged, state.taken_ms)
        former = self._update
        return Update(
            state,
            MappingProxyType(self._log.verdicts()),
            tuple(changes),
            down=brokers_down(former.state, former.down, state),
            before=former.state if former.outage is None else None,
            gap=self._gap,
        )

    def _look(self, windows: Mapping[str, list[GroupState]], now_ms: int) -> None:
        """Ask the members of a few groups what they do, those first that stand still."""
        began_ms = self._clock.monotonic_ms()
        for _ in range(AT_ONCE_MAX):
            group = self._looks.next_group(windows, now_ms)
            if group is None or self._admin is None:
                return
            found: WhyReport | None = None
            try:
                found = self._admin.group_why(group, window=windows[group])
            except (RocketMQError, OSError) as error:
                _log.debug("members of %s were not asked: %s", group, error)
            self._looks.keep(group, found, now_ms)
            if self._clock.monotonic_ms() - began_ms >= AT_ONCE_MS:
                return

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
            before.down,
            gap=self._gap,
        )

    def _drop_admin(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            try:
                admin.close()
            except (RocketMQError, OSError):
                _log.debug("closing the admin client failed", exc_info=True)
