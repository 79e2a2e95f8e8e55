"""One collection of a cluster's state for all readers: swept again and again, kept and judged.

Law: no other module of the watch asks brokers. Readers get what the last sweep or look left; only
``look`` and ``refresh`` ask, however many call them at a time, once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

from rocketstream import limits
from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream._util.workers import ThreadWorkers, Worker, Workers
from rocketstream.admin.core.verdicts import judge
from rocketstream.admin.service import SweepMemory
from rocketstream.admin.state import ClusterState, GroupState, GroupVerdict, WhyReport
from rocketstream.errors import (
    ClientStateError,
    ConfigurationError,
    RequestTimeoutError,
    RocketMQError,
)
from rocketstream.watch.model import GroupLook, Judge, Model, Outage, Update, VerdictChange
from rocketstream.watch.windows import (
    ROUND_MS,
    Gap,
    LookTimes,
    Past,
    Windows,
    early_pause_s,
    gap_before,
    gap_between,
    pause_s,
)

if TYPE_CHECKING:
    from rocketstream.admin.admin import Admin
    from rocketstream.watch.history import History

_log = logging.getLogger(__name__)

INTERVAL_S: Final = 10.0
INTERVAL_S_MIN: Final = 1.0
LOOKS_AT_ONCE_MAX: Final = 4
"""Most groups looked into at a time; further askers wait."""
SHARED_MS: Final = 2_000
"""A look serves all who ask within so long after it."""
LOOK_TIMEOUT_S: Final = 15.0


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
        admin_factory: makes the ``Admin`` that is asked, by several threads; called again after a
            sweep that found nothing.
        interval_s: seconds from the beginning of one sweep to the next, at least 1. Sweeps take at
            most a quarter of the time, so a slow sweep lengthens the interval; failing brokers do
            too.
        history: where sweeps are written down. The collection continues from the previous one's
            state there, so that a restart changes neither verdicts nor since when they hold.
        past: returns what to continue from where another process writes the history; see
            ``kept_past``. Asked once, at the first sweep.
        workers: runs the sweeps; by default on a thread.
        windows: the states kept of each group; bounded.

    Reading never blocks on a broker. Thread safe. To be closed, or used in ``with``.
    """

    def __init__(
        self,
        admin_factory: Callable[[], Admin],
        *,
        interval_s: float = INTERVAL_S,
        history: History | None = None,
        past: Callable[[], Past | None] | None = None,
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
        self._clock = clock
        self._workers = ThreadWorkers() if workers is None else workers
        self._worker: Worker | None = None
        self._closed = False
        self._admin: Admin | None = None
        # Of the cluster, whichever Admin asks it: one is closed as soon as nothing answers.
        self._memory = SweepMemory()
        self._begin_with = history.past if past is None and history is not None else past
        self._past: Past | None = None
        # Changed under its own lock, which is not held while brokers are asked.
        self._writing = threading.RLock()
        self._model = Model(judge, Windows() if windows is None else windows)
        self._times = LookTimes()
        self._unwritten: list[VerdictChange] = []
        self._shared = _SharedLooks(clock)
        self._counts = _Counts()
        self._began_s = 0.0
        self._taken_ms: int | None = None
        self._took_s = 0.0
        self._pause_s = 0.0
        self._due_s = 0.0
        # The value readers see is replaced as a whole under the lock.
        self._lock = threading.Condition()
        self._update = self._model.update
        self._begun = 0
        self._ended = 0
        self._wanted = 0
        self._subscribers: dict[int, Callable[[Update], object]] = {}
        self._next_id = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
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
        """Return the model all faces show: state, verdicts, outage and looks of one moment."""
        with self._lock:
            return self._update

    def verdicts(self) -> Mapping[str, GroupVerdict]:
        """Return the verdict of every group; UNKNOWN while nothing answers."""
        return self.update().verdicts

    def window(self, group: str) -> list[GroupState]:
        """Return the last minutes of a group, oldest first; empty for an unknown group."""
        return self._model.window(group)

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
        """Call ``callback`` after every sweep and every ``look``; it must not block.

        Calls come one at a time, on the thread that swept or looked. An error it raises is logged.
        Returns a function that ends the subscription.
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

    def look(self, group: str, timeout_s: float = LOOK_TIMEOUT_S) -> GroupLook:
        """Ask a group and its members anew; blocks for some two seconds where brokers answer.

        The finding replaces, for all readers, what was known of the group. Callers that ask
        together, or within two seconds after, get the same look. Also works before ``start``.

        Args:
            timeout_s: how many seconds to wait for one's turn, or for the look of another asker.

        Raises:
            ConfigurationError: every broker answered, and none knows the group.
            RequestTimeoutError: too many others are looking.
            RouteNotFoundError: there is no broker.
            ConnectError: no name server answered.
            ClientStateError: the collector is closed.
        """
        return self._shared.ask(group, self._looked, timeout_s)

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
        # A sweep that stood still cost nobody anything: it earns no rest.
        self._took_s = min(ended_s - self._began_s, self._longest_s)
        self._pause_s = pause_s(
            self._interval_s,
            self._took_s,
            failed_sweeps=self._counts.failed_in_a_row,
            failing_sweeps=self._counts.failing_in_a_row,
        )
        self._due_s = ended_s + self._pause_s
        with self._lock:
            asked = self._wanted > self._begun
        return early_pause_s(ended_s - self._began_s, self._took_s) if asked else self._pause_s

    def _sweep(self) -> None:
        if self._begin_with is not None and not self._counts.sweeps:
            self._past = self._begin_with()  # read before this sweep overwrites it
        state = self._ask_awake()
        self._note_gap(state)
        if state.error is None and self._go_on(state):
            state = self._ask()
        counts = self._counts
        with self._lock:
            counts.sweeps += 1
            counts.recent = [*counts.recent, (self._began_s, state.requests)][-RECENT_SWEEPS:]
        if state.error is not None:
            counts.failed += 1
            counts.failed_in_a_row += 1
            with self._writing:
                self._model.failed(state)
        else:
            counts.failed_in_a_row = 0
            failing = any(broker.error is not None for broker in state.brokers)
            counts.failing_in_a_row = counts.failing_in_a_row + 1 if failing else 0
            with self._writing:
                self._model.swept(state, self._clock.now_ms())
                due = self._times.due(
                    {group: self._model.window(group) for group in state.groups}, state.taken_ms
                )
            self._look_around(due)
        with self._writing:
            update = self._publish()
            if self._history is not None:
                changes, self._unwritten = self._unwritten, []
                self._history.add(state, update.verdicts, changes)

    def _publish(self) -> Update:
        update = self._model.show()
        self._unwritten += update.changes
        with self._lock:
            self._update = update
            subscribers = list(self._subscribers.values())
        for callback in subscribers:
            try:
                callback(update)
            except Exception:
                _log.exception("INTERNAL a subscriber of the collector failed")
        return update

    @property
    def _longest_s(self) -> float:
        """A sweep that takes longer stood still."""
        return max(limits.STANDSTILL_MS / 1_000, 4 * self._took_s)

    def _ask_awake(self) -> ClusterState:
        """Ask, and once more where the process stood still meanwhile.

        Answers from before and after that fit together no more, and one that was not awaited long
        enough says nothing about its broker.
        """
        state = self._ask()
        now_s = self._clock.monotonic_ms() / 1000
        if now_s - self._began_s <= self._longest_s:
            return state
        _log.info("a sweep stood still for %d s and is made again", now_s - self._began_s)
        self._began_s = now_s
        return self._ask()

    def _note_gap(self, state: ClusterState) -> None:
        """Begin anew where nobody swept for too long: the process, or the machine, stood still."""
        before_ms, self._taken_ms = self._taken_ms, state.taken_ms
        if before_ms is None:
            return
        interval_s = max(self._took_s + self._pause_s, self._interval_s)
        gap = gap_between(before_ms, state.taken_ms, interval_s)
        if gap is not None:
            with self._writing:
                self._model.begin_anew(gap)
            _log_gap(gap)

    def _ask(self) -> ClusterState:
        taken_ms = self._clock.now_ms()
        try:
            state = self._opened().cluster.state()
        except (RocketMQError, OSError) as error:
            state = ClusterState(taken_ms, 0, 0, error=f"{error}")
        if state.error is not None:
            self._drop_admin()
        return state

    def _go_on(self, state: ClusterState) -> bool:
        """Continue from what was left, at the first sweep that is answered.

        Returns:
            Whether brokers are missing that were there then: the sweep did not know of them.
        """
        past, self._past = self._past, None
        if past is None:
            return False
        gap = gap_before(past, state, self._interval_s)
        if gap is None:
            with self._writing:
                self._model.go_on(past)
            newest = past.moments[-1].groups.values() if past.moments else ()
            return self._memory.recall(newest, state, self._clock.monotonic_ms())
        if self._history is None:
            return False  # of another process, which may have ended long ago
        with self._writing:
            self._model.begin_anew(gap)
        _log_gap(gap)
        return False

    # --- looking ----------------------------------------------------------------------------------

    def _look_around(self, due: Sequence[str]) -> None:
        """Look into the groups that are due, as many as can be begun in the time for it."""
        if not due:
            return
        began_ms = self._clock.monotonic_ms()
        with ThreadPoolExecutor(LOOKS_AT_ONCE_MAX, "rocketstream-looks") as pool:
            for first in range(0, len(due), LOOKS_AT_ONCE_MAX):
                if self._clock.monotonic_ms() - began_ms >= ROUND_MS:
                    return
                list(pool.map(self._tried, due[first : first + LOOKS_AT_ONCE_MAX]))

    def _tried(self, group: str) -> None:
        try:
            self._shared.ask(group, self._look_into, LOOK_TIMEOUT_S)
        except (RocketMQError, OSError) as error:
            _log.debug("members of %s were not asked: %s", group, error)
        except Exception:  # of one group: the sweep is of all
            _log.exception("looking into %s failed", group)

    def _looked(self, group: str) -> GroupLook:
        look = self._look_into(group)
        with self._writing:
            self._publish()
        return look

    def _look_into(self, group: str) -> GroupLook:
        """Ask a group anew; the model takes what was found, and readers get it when it is shown."""
        report: WhyReport | None = None
        try:
            report = self._opened().groups.why(group, window=self._model.window(group))
        finally:
            with self._writing:
                self._times.looked(group, self._clock.now_ms())
                if report is None:
                    self._model.not_looked(group)
        with self._writing:
            return self._model.looked(report)

    def _opened(self) -> Admin:
        with self._lock:
            if self._closed:
                raise ClientStateError("the collector is closed; make a new one")
            if self._admin is None:
                self._admin = self._factory()
                self._admin._remember_in(self._memory)
            return self._admin

    def _drop_admin(self) -> None:
        with self._lock:
            admin, self._admin = self._admin, None
        if admin is not None:
            try:
                admin.close()
            except (RocketMQError, OSError):
                _log.debug("closing the admin client failed", exc_info=True)


def _log_gap(gap: Gap) -> None:
    _log.warning(
        "HISTORY_NOT_TAKEN_OVER verdicts begin anew, %d s after the last sweep: %s",
        (gap.until_ms - gap.from_ms) / 1000,
        gap.reason,
    )


@dataclass(frozen=True, slots=True)
class _Kept:
    """The outcome of a look, for those who ask soon after."""

    outcome: GroupLook | RocketMQError
    ended_ms: float


class _SharedLooks:
    """Looks under way and just ended, so that those who ask together get one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._condition = threading.Condition()
        self._under_way: set[str] = set()
        self._kept: dict[str, _Kept] = {}

    def ask(self, group: str, look: Callable[[str], GroupLook], timeout_s: float) -> GroupLook:
        with self._condition:
            if not self._condition.wait_for(lambda: self._is_told_or_free(group), timeout_s):
                raise RequestTimeoutError(
                    f"group {group} was not looked into: {len(self._under_way)} looks are under "
                    f"way, and none ended within {timeout_s:g} s"
                )
            if (kept := self._kept.get(group)) is not None:
                if isinstance(kept.outcome, RocketMQError):
                    raise kept.outcome
                return kept.outcome
            self._under_way.add(group)
        outcome: GroupLook | RocketMQError | None = None
        try:
            outcome = look(group)
            return outcome
        except RocketMQError as error:
            outcome = error
            raise
        finally:  # also when the asker gives up: the next one looks
            with self._condition:
                self._under_way.discard(group)
                if outcome is not None:
                    self._kept[group] = _Kept(outcome, self._clock.monotonic_ms())
                self._condition.notify_all()

    def _is_told_or_free(self, group: str) -> bool:
        now_ms = self._clock.monotonic_ms()
        self._kept = {g: k for g, k in self._kept.items() if now_ms - k.ended_ms < SHARED_MS}
        if group in self._kept:
            return True
        return group not in self._under_way and len(self._under_way) < LOOKS_AT_ONCE_MAX
