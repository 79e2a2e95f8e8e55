"""One collection for every reader: its pace, its cost, and what it tells when nothing answers."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from typing import Any, cast

import pytest

from rocketstream._util.workers import Workers
from rocketstream.admin.core.held import HELD_MS
from rocketstream.admin.core.verdicts import judge
from rocketstream.admin.rows import MemberRow
from rocketstream.admin.state import (
    Cause,
    CauseKind,
    ClusterState,
    GroupState,
    PinnedMessage,
    TopicQueue,
    TopicState,
    Verdict,
    WhyReport,
)
from rocketstream.errors import (
    ClientStateError,
    ConfigurationError,
    ConnectError,
    RequestTimeoutError,
)
from rocketstream.testing.clock import START_MS, ManualClock
from rocketstream.watch import Collector, Update
from rocketstream.watch.collector import LOOKS_AT_ONCE_MAX
from rocketstream.watch.windows import ROUND_MS
from tests.kits.states import Asked, ByHand, Kept, by_lag, cluster, group, queue, waiting

DEADLINE_S = 10


class Rig:
    """A collector whose sweeps and clock a test moves."""

    def __init__(self, *answers: ClusterState | Exception, interval_s: float = 10) -> None:
        self.asked = Asked(*answers)
        self.made = 0
        self.clock = ManualClock()
        self.hand = ByHand()
        self.kept = Kept()
        self.collector = Collector(
            cast(Any, self.make),
            interval_s=interval_s,
            judge=by_lag,
            clock=self.clock,
            workers=cast(Workers, self.hand),
            history=cast(Any, self.kept),
        )
        self.collector.start()

    def make(self) -> Asked:
        self.made += 1
        return self.asked

    def sweep(self) -> float:
        """Let the pause pass and have the next sweep done; return the pause after it."""
        if self.hand.pauses:
            self.clock.advance((self.hand.pauses[-1] or 0) * 1000)
        before = self.asked.sweeps
        pause = self.hand.step()
        assert self.asked.sweeps == before + 1
        assert pause is not None
        return pause


def test_readers_see_what_the_last_sweep_found_and_ask_nobody() -> None:
    rig = Rig(waiting(0), waiting(7, START_MS + 10_000))
    assert rig.collector.latest() is None
    rig.sweep()
    rig.sweep()
    for _ in range(100):
        state = rig.collector.latest()
        assert state is not None
        assert state.groups["billing"].lag == 7
        assert rig.collector.verdicts()["billing"].verdict is Verdict.FALLING_BEHIND
        assert [each.lag for each in rig.collector.window("billing")] == [0, 7]
        rig.collector.cost()
    assert rig.asked.sweeps == 2
    assert rig.made == 1


def test_sweeps_begin_an_interval_apart() -> None:
    rig = Rig(waiting(0))
    assert [rig.sweep() for _ in range(3)] == [10, 10, 10]


def test_a_slow_sweep_takes_a_quarter_of_the_time_at_most() -> None:
    rig = Rig(waiting(0))
    answer = rig.asked.state

    def slow() -> ClusterState:
        rig.clock.advance(8_000)
        return answer()

    rig.asked.state = slow  # type: ignore[method-assign]
    assert rig.sweep() == 24
    assert rig.collector.cost().interval_s == 32
    assert rig.collector.cost().sweep_ms == 8_000


class Stops:
    """Answers of a cluster whose asker is stopped for a while in the first question."""

    def __init__(self, rig: Rig, stopped_s: float) -> None:
        self._rig, self._stopped_s = rig, stopped_s
        self._answer = rig.asked.state
        rig.asked.state = self.state  # type: ignore[method-assign]

    def state(self) -> ClusterState:
        stopped_s, self._stopped_s = self._stopped_s, 0.0
        self._rig.clock.advance(stopped_s * 1_000)
        return self._answer()


@pytest.mark.parametrize("torn", [ConnectError("no answer within 5000 ms"), waiting(99)])
def test_a_sweep_that_stood_still_is_not_believed_and_the_next_begins_at_once(
    torn: ClusterState | Exception,
) -> None:
    """The process was stopped in the middle of it: half its answers are of an hour ago."""
    rig = Rig(torn, waiting(7))
    updates: list[Update] = []
    rig.collector.subscribe(updates.append)
    Stops(rig, 3_600)
    assert rig.hand.step() == 10, "it cost the brokers nothing, and earns no rest of three hours"
    (update,) = updates
    assert update.outage is None
    assert update.groups["billing"].lag == 7
    assert [each.error for each in rig.kept.states] == [None]
    assert rig.collector.cost().sweep_ms == 0


def test_a_sweep_that_is_slow_each_time_is_believed() -> None:
    rig = Rig(waiting(0))
    for stopped_s in (20, 70, 200):
        Stops(rig, stopped_s)
        rig.sweep()
    assert rig.asked.sweeps == 3
    assert rig.collector.cost().sweep_ms == 200_000


def test_readers_that_stood_still_after_a_sweep_delay_the_next_by_little() -> None:
    rig = Rig(waiting(0))
    leave = rig.collector.subscribe(lambda _: rig.clock.advance(3_600_000))
    assert rig.sweep() == 90
    leave()
    rig.clock.advance(90_000)
    rig.collector.refresh()
    rig.hand.step()
    assert rig.asked.sweeps == 2


def test_failing_brokers_stretch_the_interval_up_to_four_times() -> None:
    failing = cluster(START_MS, broker_error="no answer")
    rig = Rig(failing, failing, failing, waiting(0))
    assert [rig.sweep() for _ in range(4)] == [20, 40, 40, 10]


def test_its_cost_is_stated_in_requests_a_second() -> None:
    rig = Rig(cluster(START_MS, requests=50))
    rig.sweep()
    assert rig.collector.cost().requests_per_s is None
    for _ in range(5):
        rig.sweep()
    cost = rig.collector.cost()
    assert cost.requests_per_s == 5.0
    assert (cost.requests, cost.sweeps, cost.failed_sweeps) == (50, 6, 0)


def test_refreshes_asked_for_together_are_one_sweep() -> None:
    rig = Rig(waiting(0))
    rig.sweep()
    rig.clock.advance(2_000)
    assert not any(rig.collector.refresh() for _ in range(50))
    assert rig.hand.woken == 50
    for _ in range(50):
        rig.hand.step()
    assert rig.asked.sweeps == 2


def test_refreshes_one_after_the_other_are_a_second_apart() -> None:
    rig = Rig(waiting(0))
    rig.sweep()
    rig.clock.advance(300)
    rig.collector.refresh()
    assert rig.hand.step() == pytest.approx(0.7)
    assert rig.asked.sweeps == 1
    rig.clock.advance(700)
    rig.hand.step()
    assert rig.asked.sweeps == 2


def test_a_refresh_waits_for_a_sweep_that_began_after_it() -> None:
    asked = Asked(waiting(3))
    with Collector(lambda: cast(Any, asked), interval_s=3600, judge=by_lag) as collector:
        assert collector.refresh(DEADLINE_S)
        state = collector.latest()
    assert state is not None
    assert state.groups["billing"].lag == 3
    assert asked.closed == 1


def test_a_refresh_ends_its_wait_when_the_collector_is_closed() -> None:
    held = threading.Event()
    entered = threading.Event()

    class Stuck(Asked):
        def state(self) -> ClusterState:
            entered.set()
            held.wait(DEADLINE_S)
            return super().state()

    collector = Collector(lambda: cast(Any, Stuck(waiting(0))), interval_s=3600, judge=by_lag)
    collector.start()
    assert entered.wait(DEADLINE_S)
    done: list[bool] = []
    waiter = threading.Thread(target=lambda: done.append(collector.refresh(DEADLINE_S)))
    waiter.start()
    closer = threading.Thread(target=collector.close)
    closer.start()
    waiter.join(DEADLINE_S)
    assert done == [False]
    held.set()
    closer.join(DEADLINE_S)


def test_an_outage_keeps_the_last_state_and_says_since_when() -> None:
    down = ConnectError("connect to 127.0.0.1:1 refused")
    rig = Rig(waiting(7), down, waiting(0, error_ms := START_MS + 20_000))
    rig.sweep()
    rig.sweep()
    outage = rig.collector.outage()
    assert outage is not None
    assert (outage.since_ms, outage.sweeps) == (START_MS + 10_000, 1)
    assert "refused" in outage.error
    state = rig.collector.latest()
    assert state is not None
    assert state.groups["billing"].lag == 7
    verdict = rig.collector.verdicts()["billing"]
    assert verdict.verdict is Verdict.UNKNOWN
    assert "refused" in verdict.sentence
    assert len(rig.collector.window("billing")) == 1
    rig.sweep()
    assert rig.collector.outage() is None
    assert rig.collector.verdicts()["billing"].verdict is Verdict.OK
    assert rig.made == 2, "after an outage it connects anew"
    assert [each.error is None for each in rig.kept.states] == [True, False, True]
    assert error_ms == rig.kept.states[-1].taken_ms


def test_an_outage_is_asked_after_ever_more_seldom_but_every_half_minute() -> None:
    rig = Rig(ConnectError("refused"))
    assert [rig.sweep() for _ in range(5)] == [20, 30, 30, 30, 30]
    assert rig.collector.cost().failed_sweeps == 5
    assert rig.collector.latest() is None


def test_admin_after_an_outage_goes_on_with_the_memory_of_the_one_before() -> None:
    rig = Rig(waiting(7), ConnectError("refused"), waiting(7, START_MS + 60_000))
    for _ in range(3):
        rig.sweep()
    assert (rig.made, rig.asked.closed) == (2, 1)
    first, second = rig.asked.memories
    assert first is second


def test_a_cluster_that_cannot_even_be_asked_is_an_outage_too() -> None:
    def broken() -> Asked:
        raise ConfigurationError("no such name server")

    hand = ByHand()
    collector = Collector(cast(Any, broken), judge=by_lag, workers=cast(Workers, hand))
    collector.start()
    hand.step()
    outage = collector.outage()
    assert outage is not None
    assert outage.error == "no such name server"


def test_a_verdict_that_stays_keeps_its_begin_and_a_new_one_is_told() -> None:
    rig = Rig(*(waiting(lag, START_MS + n * 10_000) for n, lag in enumerate([5, 6, 7, 0])))
    updates: list[Update] = []
    rig.collector.subscribe(updates.append)
    for _ in range(4):
        rig.sweep()
    told = [[(c.before, c.after.verdict) for c in each.changes] for each in updates]
    assert told == [
        [(None, Verdict.FALLING_BEHIND)],
        [],
        [],
        [(Verdict.FALLING_BEHIND, Verdict.OK)],
    ]
    assert updates[2].verdicts["billing"].since_ms == START_MS
    assert updates[3].verdicts["billing"].since_ms == START_MS + 30_000


def standing(n: int, *names: str, members: bool = True) -> ClusterState:
    """Groups one queue of which never moves while messages wait in it."""
    at_ms = START_MS + n * 10_000
    there = (MemberRow("10.0.0.9@1", "10.0.0.9:1", "JAVA", 405),) if members else ()
    return cluster(
        at_ms,
        *(
            dataclasses.replace(
                group(
                    name,
                    at_ms,
                    queue(queue_id=0, end=9_000, committed=100),
                    queue(queue_id=1, end=9_000, committed=100 + n),
                ),
                members=there,
            )
            for name in names
        ),
    )


def running(n: int, name: str) -> GroupState:
    """A group with a member that has consumed everything."""
    found = group(name, START_MS + n * 10_000, queue(end=n, committed=n))
    return dataclasses.replace(found, members=(MemberRow("c", "10.0.0.9:2", "JAVA", 405),))


def test_each_group_with_members_is_looked_into_once_a_minute_those_first_that_stand() -> None:
    def moving(n: int) -> ClusterState:
        state = standing(n, "a", "b")
        return dataclasses.replace(state, groups={**state.groups, "well": running(n, "well")})

    rig = Rig(*(moving(n) for n in range(13)))
    for _ in range(13):
        rig.sweep()
    assert sorted(rig.asked.looked[:2]) == ["a", "b"]
    assert sorted(rig.asked.looked) == ["a", "a", "b", "b", "well", "well"], (
        "first when they have stood, or run, for 30 s, then a minute on"
    )


def test_a_slow_look_leaves_the_others_to_the_next_sweep() -> None:
    names = [f"g{k}" for k in range(6)]
    rig = Rig(*(standing(n, *names) for n in range(13)))
    ask = rig.asked.why

    def slow(group: str, *, window: Sequence[GroupState] = ()) -> WhyReport:
        if group == "g3":
            rig.clock.advance(ROUND_MS)
        return ask(group, window=window)

    rig.asked.why = slow  # type: ignore[method-assign]
    looked = []
    for _ in range(6):
        rig.sweep()
        looked.append(len(rig.asked.looked))
    assert looked == [0, 0, 0, 4, 6, 6]
    assert sorted(rig.asked.looked) == names


def test_forty_groups_are_looked_into_after_one_sweep() -> None:
    names = [f"g{k}" for k in range(50)]
    rig = Rig(*(standing(n, *names) for n in range(6)))
    looked = []
    for _ in range(5):
        rig.sweep()
        looked.append(len(rig.asked.looked))
    assert looked == [0, 0, 0, 40, 50]


def test_members_are_first_asked_when_what_they_hold_may_be_called_pinned() -> None:
    """A look before that finds nothing, and puts the next one off by a minute."""
    rig = Rig(*(standing(n, "a") for n in range(10)))
    looked = []
    for _ in range(10):
        rig.sweep()
        looked.append(len(rig.asked.looked))
    first_s = 10 * looked.index(1)
    assert first_s == HELD_MS / 1_000
    assert looked[-1] == 2


def test_what_a_look_finds_makes_the_verdict() -> None:
    """A group that skips messages has no lag at all."""
    rig = Rig(*(cluster(START_MS + n * 10_000, running(n, "a")) for n in range(5)))
    rig.collector._model._judge = judge
    rig.asked.causes = [Cause(CauseKind.SUBSCRIPTION_MISMATCH, "They differ.")]
    for _ in range(5):
        rig.sweep()
    verdict = rig.collector.verdicts()["a"]
    assert (verdict.verdict, verdict.sentence) == (
        Verdict.LOSING, "Loses messages: They differ.",
    )  # fmt: skip


def test_a_pinned_message_that_is_found_makes_the_verdict() -> None:
    rig = Rig(*(standing(n, "a") for n in range(5)))
    rig.collector._model._judge = judge
    rig.asked.pinned = [PinnedMessage("orders", "broker-a", 0, 100, "10.0.0.9@1", 40_000, 7)]
    for _ in range(5):
        rig.sweep()
    verdict = rig.collector.verdicts()["a"]
    assert verdict.verdict is Verdict.PINNED
    assert (verdict.topic, verdict.queue_id) == ("orders", 0)


def test_nobody_is_asked_where_nobody_is_connected_or_nothing_waits() -> None:
    rig = Rig(*(standing(n, "a", members=False) for n in range(6)))
    for _ in range(6):
        rig.sweep()
    assert rig.asked.looked == []


@pytest.mark.parametrize("error", [ConnectError("refused"), ValueError("a mistake of ours")])
def test_members_that_cannot_be_asked_are_no_outage(error: Exception) -> None:
    rig = Rig(*(standing(n, "a") for n in range(5)))

    def fail(group: str, *, window: object = ()) -> WhyReport:
        raise error

    rig.asked.why = fail  # type: ignore[method-assign]
    seen: list[Update] = []
    rig.collector.subscribe(seen.append)
    for _ in range(5):
        rig.sweep()
    assert rig.collector.outage() is None
    assert len(seen) == 5


def test_a_subscriber_that_fails_disturbs_nobody() -> None:
    rig = Rig(waiting(0))
    seen: list[Update] = []

    def fail(update: Update) -> None:
        raise ValueError("mine")

    rig.collector.subscribe(fail)
    leave = rig.collector.subscribe(seen.append)
    rig.sweep()
    leave()
    rig.sweep()
    assert len(seen) == 1
    assert rig.collector.cost().sweeps == 2


def test_a_group_that_is_gone_is_forgotten() -> None:
    both = cluster(START_MS, group("a", START_MS, queue()), group("b", START_MS, queue()))
    rig = Rig(both, cluster(START_MS + 10_000, group("a", START_MS + 10_000, queue())))
    rig.sweep()
    rig.sweep()
    assert set(rig.collector.verdicts()) == {"a"}
    assert rig.collector.window("b") == []


# --- looks ----------------------------------------------------------------------------------------


def found(lag: int, seconds: float, name: str = "billing") -> GroupState:
    """The group as a look finds it, so long after the start."""
    at_ms = START_MS + round(seconds * 1_000)
    return group(name, at_ms, queue(end=1_000, committed=1_000 - lag))


def test_a_look_replaces_for_all_readers_what_was_known_of_the_group() -> None:
    rig = Rig(waiting(0), waiting(5, START_MS + 10_000))
    updates: list[Update] = []
    rig.collector.subscribe(updates.append)
    rig.sweep()
    rig.asked.found = found(7, 3)
    rig.asked.causes = [Cause(CauseKind.NO_MEMBERS, "Nobody is there.")]
    look = rig.collector.look("billing")
    assert (look.state.lag, look.verdict.verdict) == (7, Verdict.FALLING_BEHIND)
    assert look.report.verdict == look.verdict
    assert look.verdict.since_ms == START_MS + 3_000
    update = rig.collector.update()
    assert update == updates[-1]
    assert update.state is not None
    assert update.state.groups["billing"] == look.state
    assert update.verdicts["billing"] == look.verdict
    assert update.looks["billing"] == look
    assert update.at_ms == START_MS + 3_000
    assert [change.after for change in update.changes] == [look.verdict]
    assert [each.lag for each in rig.collector.window("billing")] == [0, 7]
    rig.sweep()
    assert [c.at_ms - START_MS for c in rig.kept.changes] == [0, 3_000], "written with the sweep"
    update = rig.collector.update()
    assert update.verdicts["billing"].sentence == "lag 5"
    assert update.at_ms == START_MS + 10_000


def test_a_sweep_that_began_before_a_look_does_not_take_its_place() -> None:
    rig = Rig(waiting(0), waiting(1, START_MS + 10_000), waiting(2, START_MS + 20_000))
    rig.sweep()
    rig.asked.found = found(7, 12)
    answer = rig.asked.state

    def looked_into_meanwhile() -> ClusterState:
        state = answer()
        if rig.asked.sweeps == 2:
            rig.clock.advance(3_000)
            rig.collector.look("billing")
        return state

    rig.asked.state = looked_into_meanwhile  # type: ignore[method-assign]
    lags = []
    for _ in range(2):
        rig.sweep()
        update = rig.collector.update()
        assert update.state is not None
        lags.append((update.state.groups["billing"].lag, update.verdicts["billing"].sentence))
    assert lags == [(7, "lag 7"), (2, "lag 2")]
    assert [each.lag for each in rig.collector.window("billing")] == [0, 7, 2]


def test_askers_within_two_seconds_share_a_look() -> None:
    rig = Rig(waiting(0))
    rig.sweep()
    first = rig.collector.look("billing")
    rig.clock.advance(1_999)
    assert rig.collector.look("billing") is first
    rig.clock.advance(1)
    assert rig.collector.look("billing") is not first
    assert rig.asked.looked == ["billing"] * 2


class Held:
    """Looks that last until the test lets them end, or fail."""

    def __init__(self, rig: Rig, error: BaseException | None = None) -> None:
        self.entered = threading.Semaphore(0)
        self.ends = threading.Event()
        self.error = error
        self.ask = rig.asked.why
        rig.asked.why = self.why  # type: ignore[method-assign]
        self.outcomes: list[object] = []
        self.collector = rig.collector
        self.threads: list[threading.Thread] = []

    def why(self, group: str, *, window: Sequence[GroupState] = ()) -> WhyReport:
        report = self.ask(group, window=window)
        self.entered.release()
        self.ends.wait(DEADLINE_S)
        error, self.error = self.error, None
        if error is not None:
            raise error
        return report

    def look(self, group: str) -> None:
        def run() -> None:
            try:
                self.outcomes.append(self.collector.look(group, DEADLINE_S))
            except BaseException as error:
                self.outcomes.append(error)

        self.threads.append(threading.Thread(target=run))
        self.threads[-1].start()

    def end(self) -> None:
        self.ends.set()
        for thread in self.threads:
            thread.join(DEADLINE_S)


def test_askers_at_one_time_share_a_look_and_its_error() -> None:
    rig = Rig(waiting(0))
    rig.sweep()
    held = Held(rig, ConnectError("refused"))
    for _ in range(3):
        held.look("billing")
    assert held.entered.acquire(timeout=DEADLINE_S)
    held.end()
    assert len(held.outcomes) == 3
    assert {str(each) for each in held.outcomes} == {"refused"}
    assert rig.asked.looked == ["billing"]
    assert "billing" not in rig.collector.update().looks


def test_an_asker_that_gives_up_leaves_the_look_to_the_next() -> None:
    rig = Rig(waiting(0))
    rig.sweep()
    held = Held(rig, KeyboardInterrupt())
    held.look("billing")
    assert held.entered.acquire(timeout=DEADLINE_S)
    held.look("billing")
    held.end()
    assert sorted(type(each).__name__ for each in held.outcomes) == [
        "GroupLook", "KeyboardInterrupt",
    ]  # fmt: skip
    assert rig.asked.looked == ["billing"] * 2


def test_more_looks_than_may_be_made_at_a_time_wait_for_a_bounded_time() -> None:
    rig = Rig(waiting(0))
    rig.sweep()
    held = Held(rig)
    for number in range(LOOKS_AT_ONCE_MAX):
        held.look(f"g{number}")
    for _ in range(LOOKS_AT_ONCE_MAX):
        assert held.entered.acquire(timeout=DEADLINE_S)
    with pytest.raises(RequestTimeoutError, match="4 looks are under way"):
        rig.collector.look("billing", timeout_s=0)
    held.end()
    assert rig.collector.look("billing").state.group == "billing"


def test_a_group_that_no_sweep_lists_is_not_listed_because_somebody_asked() -> None:
    rig = Rig(waiting(0))
    rig.sweep()
    rig.asked.found = found(3, 1, "CID_ONSAPI")
    assert rig.collector.look("CID_ONSAPI").state.lag == 3
    update = rig.collector.update()
    assert set(update.verdicts) == {"billing"}
    assert update.changes == ()


def test_a_closed_collector_looks_into_nothing() -> None:
    rig = Rig(waiting(0))
    rig.collector.close()
    with pytest.raises(ClientStateError):
        rig.collector.look("billing")


# --- last figures ---------------------------------------------------------------------------------


def silent(at_ms: int) -> ClusterState:
    """A cluster whose only broker hangs: nothing is known of its queues."""
    state = cluster(at_ms, group("billing", at_ms, queue(end=None, committed=None)))
    (broker,) = state.brokers
    return dataclasses.replace(state, brokers=(dataclasses.replace(broker, error="hangs"),))


def test_figures_of_a_broker_that_hangs_stay_beside_the_unknown_with_their_moment() -> None:
    rig = Rig(waiting(7), silent(START_MS + 10_000), waiting(8, START_MS + 60_000))
    rig.sweep()
    assert rig.collector.update().last_known == {}
    rig.sweep()
    update = rig.collector.update()
    assert update.state is not None
    assert update.state.groups["billing"].lag is None
    last = update.last_known["billing"]
    assert (last.lag, last.taken_ms) == (7, START_MS)
    rig.sweep()
    assert rig.collector.update().last_known == {}


def test_figures_of_before_an_outage_are_marked_as_those_of_their_moment() -> None:
    rig = Rig(waiting(7), ConnectError("refused"), cluster(START_MS + 90_000))
    rig.sweep()
    rig.sweep()
    update = rig.collector.update()
    assert update.at_ms == START_MS + 10_000
    assert update.last_known["billing"].taken_ms == START_MS
    rig.sweep()
    assert rig.collector.update().last_known == {}, "the group is gone"


def test_topics_a_broker_no_longer_tells_of_keep_their_last_figures() -> None:
    def told(at_ms: int, *queues: TopicQueue, error: str | None = None) -> ClusterState:
        errors = () if error is None else (error,)
        topic = TopicState("orders", "normal", at_ms, queues=queues, errors=errors)
        return dataclasses.replace(cluster(at_ms), topics={"orders": topic})

    here, there = TopicQueue("orders", "a", 0, 0, 5, 1), TopicQueue("orders", "b", 0, 0, 7, 1)
    rig = Rig(
        told(START_MS, here, there),
        told(START_MS + 10_000, here, error="b is silent"),
        told(START_MS + 20_000, here, there),
        told(START_MS + 30_000, here),
    )
    rig.sweep()
    assert rig.collector.update().last_topics == {}
    rig.sweep()
    assert rig.collector.update().last_topics["orders"].taken_ms == START_MS
    rig.sweep()
    assert rig.collector.update().last_topics == {}
    rig.sweep()
    assert rig.collector.update().last_topics == {}, "the topic has fewer queues"


def test_an_interval_below_a_second_is_refused() -> None:
    for wrong in (0, 0.5, -1, float("nan")):
        with pytest.raises(ConfigurationError, match="interval_s"):
            Collector(lambda: cast(Any, Asked(waiting(0))), interval_s=wrong, judge=by_lag)


def test_a_closed_collector_is_not_started_again_and_stays_readable() -> None:
    rig = Rig(waiting(2))
    rig.sweep()
    rig.collector.close()
    rig.collector.close()
    assert rig.asked.closed == 1
    assert rig.collector.latest() is not None
    with pytest.raises(ClientStateError):
        rig.collector.start()
