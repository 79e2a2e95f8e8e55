"""The turns of an orderly queue: the table of their stages, and every decision, without a shell."""

from __future__ import annotations

import itertools

import pytest

from rocketstream.client.consumer.consume.orderly_queue import (
    TRANSITIONS,
    Lease,
    OrderlyProcessQueue,
    Stage,
    TurnEvent,
)
from rocketstream.client.consumer.consume.orderly_turn import (
    END,
    GO_ON,
    LOCK_RETRY_FAILED_MS,
    LOCK_RETRY_MS,
    LOCK_RETRY_RUNNING_MS,
    RESUME_MS,
    TURN_SHARE_MS,
    AskLock,
    GiveUp,
    OrderlyTurns,
    Resume,
)
from rocketstream.client.consumer.listener import USE_SETTING
from rocketstream.errors import InternalError
from rocketstream.model import ConsumeOrderlyStatus, MessageQueue
from rocketstream.protocol.message_ext import MessageExt
from tests.kits.client.queued import queued

IDLE, READY, IN_HAND, BETWEEN, GIVING_UP, PAUSED, UNLOCKED, OVER = Stage
SUCCESS, COMMIT, ROLLBACK, SUSPEND = (
    ConsumeOrderlyStatus.SUCCESS,
    ConsumeOrderlyStatus.COMMIT,
    ConsumeOrderlyStatus.ROLLBACK,
    ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT,
)
QUEUE = MessageQueue("T", "b", 0)
LEADS: dict[TurnEvent, dict[Stage, Stage]] = {
    TurnEvent.CAME: {stage: stage for stage in Stage} | {IDLE: READY},
    TurnEvent.LEFT: dict.fromkeys(Stage, OVER),
    TurnEvent.TAKEN: {READY: IN_HAND, BETWEEN: IN_HAND},
    TurnEvent.EMPTY: {READY: IDLE, BETWEEN: IDLE},
    TurnEvent.LOCK_LOST: {READY: UNLOCKED, BETWEEN: UNLOCKED},
    TurnEvent.SHARE_SPENT: {BETWEEN: PAUSED},
    TurnEvent.SETTLED: {IN_HAND: BETWEEN},
    TurnEvent.SUSPENDED: {IN_HAND: PAUSED},
    TurnEvent.TRIES_SPENT: {IN_HAND: GIVING_UP},
    TurnEvent.GIVEN_UP: {GIVING_UP: PAUSED},
    TurnEvent.DUE: {PAUSED: READY},
    TurnEvent.LOCKED: {UNLOCKED: PAUSED},
    TurnEvent.UNANSWERED: {UNLOCKED: UNLOCKED},
    TurnEvent.BROKE: dict.fromkeys(Stage, PAUSED) | {OVER: OVER},
}
"""By event: at which stages it may happen, and what follows. All else is refused."""


class Scene:
    """A queue with four messages, its turn at a stage a test chooses."""

    def __init__(self, stage: Stage = READY, locked_ms: float | None = None) -> None:
        lease = None if locked_ms is None else Lease(locked_ms, 100)
        self.queue = OrderlyProcessQueue(QUEUE, 0.0, lease)
        self.queue.put([queued(offset) for offset in range(4)])
        self.queue._stage = stage
        self.others_wait = False
        self.turns = OrderlyTurns(2, 1, 500, 60_000, lambda: self.others_wait)

    def taken(self, count: int = 2) -> list[MessageExt]:
        """Hand out messages."""
        batch = self.queue.take(count)
        self.queue._stage = IN_HAND
        return [each for each in batch if isinstance(each, MessageExt)]


def waiting_in(queue: OrderlyProcessQueue) -> int:
    return queue.message_count - len(queue.taken_offsets)


def after(stage: Stage, event: TurnEvent) -> Stage:
    """Return what a process queue's turn becomes."""
    queue = Scene(stage).queue
    queue.change_stage(event)
    return queue.stage


# --- the table ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stage", "event"), list(itertools.product(Stage, TurnEvent)))
def test_what_may_happen_leads_on_and_all_else_is_refused(stage: Stage, event: TurnEvent) -> None:
    """Every stage with every event; a refusal names both."""
    follows = LEADS[event].get(stage)
    if follows is not None:
        assert after(stage, event) is follows
    else:
        with pytest.raises(InternalError, match=f"is {stage.name} cannot become {event.name}"):
            after(stage, event)


def test_every_stage_is_reached_and_only_the_last_has_no_way_out() -> None:
    reached = {IDLE}
    while more := {to for (stage, _), to in TRANSITIONS.items() if stage in reached} - reached:
        reached |= more
    assert reached == set(Stage)
    stuck = {s for s in Stage if {to for (at, _), to in TRANSITIONS.items() if at is s} <= {s}}
    assert stuck == {OVER}


def test_what_a_success_skips_writing_is_no_change() -> None:
    """``advance`` counts on it: settled, and the next batch taken, is where it began."""
    assert after(after(IN_HAND, TurnEvent.SETTLED), TurnEvent.TAKEN) is IN_HAND


def test_a_batch_is_in_hand_until_its_answer_is_carried_out() -> None:
    """Covers C-556: only then may the queue be given up."""
    shown = {}
    for stage in Stage:
        shown[stage] = Scene(stage).queue.in_hand
    assert {stage for stage, in_hand in shown.items() if in_hand} == {IN_HAND, GIVING_UP}


# --- a turn begins --------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", list(Stage))
def test_messages_begin_a_turn_where_none_is_under_way(stage: Stage) -> None:
    """Covers C-237, C-243, C-280."""
    scene = Scene(stage)
    assert scene.turns.came(scene.queue) is (stage is IDLE)
    assert scene.queue.stage is (READY if stage is IDLE else stage)


@pytest.mark.parametrize("how", ["stopping", "dropped"])
@pytest.mark.parametrize("what", ["came", "due", "may_go_on"])
def test_nothing_begins_for_a_queue_that_is_gone(how: str, what: str) -> None:
    """Covers C-286, C-549: neither new messages nor the end of a pause nor a free place."""
    scene = Scene({"came": IDLE, "due": PAUSED, "may_go_on": READY}[what])
    if how == "stopping":
        scene.turns.stopping = True
    else:
        scene.queue.drop()
    assert not getattr(scene.turns, what)(scene.queue)
    assert scene.queue.stage is OVER


def test_a_pause_that_is_over_begins_the_next_turn() -> None:
    """Covers C-284, C-286."""
    scene = Scene(PAUSED)
    assert scene.turns.due(scene.queue)
    assert scene.queue.stage is READY


# --- the next batch -------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["stopping", "dropped", "leaving"])
@pytest.mark.parametrize("stage", [READY, BETWEEN])
def test_nothing_is_handed_out_of_a_queue_that_leaves_or_has_left(how: str, stage: Stage) -> None:
    """Covers C-281, C-549, C-556."""
    scene = Scene(stage)
    if how == "stopping":
        scene.turns.stopping = True
    elif how == "dropped":
        scene.queue.drop()
    else:
        scene.queue.leave()
    assert scene.turns.next(scene.queue, 0, 0) is END
    assert (scene.queue.stage, scene.queue.taken_offsets) == (OVER, [])


@pytest.mark.parametrize(
    ("stage", "pause_ms"), [(READY, LOCK_RETRY_MS), (BETWEEN, LOCK_RETRY_RUNNING_MS)]
)
def test_without_its_lock_a_queue_is_not_consumed(stage: Stage, pause_ms: int) -> None:
    """Covers C-281: asked for after 100 ms at the start of a turn, after 10 ms within it."""
    scene = Scene(stage, locked_ms=0)
    assert scene.turns.next(scene.queue, 0, 101) == AskLock(pause_ms)
    assert (scene.queue.stage, scene.queue.taken_offsets) == (UNLOCKED, [])


def test_with_its_lock_it_is() -> None:
    """Covers C-236: the limit itself still counts."""
    scene = Scene(READY, locked_ms=0)
    batch = scene.turns.next(scene.queue, 0, 100)
    assert isinstance(batch, list)
    assert [message.queue_offset for message in batch] == [0, 1]
    assert scene.queue.stage is IN_HAND


@pytest.mark.parametrize(
    ("turn_ms", "others_wait", "ending"),
    [
        (TURN_SHARE_MS, True, None),
        (TURN_SHARE_MS + 1, True, Resume(0)),
        (TURN_SHARE_MS + 1, False, None),
        (60_000, False, None),
        (60_001, False, Resume(RESUME_MS)),
        (60_001, True, Resume(0)),
    ],
)
def test_a_turn_has_its_share_and_no_more(
    turn_ms: float, others_wait: bool, ending: Resume | None
) -> None:
    """Covers C-282: strictly more than the share while others wait, than the limit else."""
    scene = Scene(BETWEEN)
    scene.others_wait = others_wait
    then = scene.turns.next(scene.queue, 1_000, 1_000 + turn_ms)
    if ending is None:
        assert scene.queue.stage is IN_HAND
    else:
        assert (then, scene.queue.stage, scene.queue.taken_offsets) == (ending, PAUSED, [])


def test_a_turn_takes_one_batch_at_least() -> None:
    """Covers C-282: however long it has waited for its place."""
    scene = Scene(READY)
    scene.others_wait = True
    assert isinstance(scene.turns.next(scene.queue, 0, 99_999), list)


def test_a_turn_ends_when_nothing_is_left_and_the_next_messages_begin_one() -> None:
    """Covers C-237, C-243: no wake-up is lost."""
    scene = Scene(BETWEEN)
    scene.queue.take(4)
    assert scene.turns.next(scene.queue, 0, 0) is END
    assert scene.queue.stage is IDLE
    scene.queue.put([queued(4)])
    assert scene.turns.came(scene.queue)


# --- the lock -------------------------------------------------------------------------------------


def test_a_lock_that_is_granted_lets_the_queue_go_on() -> None:
    """Covers C-283."""
    scene = Scene(UNLOCKED, locked_ms=0)
    assert scene.turns.locked(scene.queue, 101) is None
    assert scene.queue.stage is UNLOCKED
    assert scene.queue.lease is not None
    scene.queue.lease.renew(101)
    assert scene.turns.asked(scene.queue, False, 101) == Resume(RESUME_MS)
    assert scene.queue.stage is PAUSED


def test_a_broker_that_does_not_answer_is_asked_again_later() -> None:
    """Covers C-283: after 3 s."""
    scene = Scene(UNLOCKED, locked_ms=0)
    assert scene.turns.asked(scene.queue, False, 101) == AskLock(LOCK_RETRY_FAILED_MS)
    assert scene.queue.stage is UNLOCKED


@pytest.mark.parametrize("refused", [True, False])
def test_a_lock_somebody_else_has_is_not_asked_for_again(refused: bool) -> None:
    """Covers C-187: refused here, or noticed by a renewal meanwhile."""
    scene = Scene(UNLOCKED, locked_ms=0)
    if not refused:
        scene.queue.drop()
    assert scene.turns.asked(scene.queue, refused, 101) is END
    assert scene.queue.stage is OVER


# --- a listener's answer --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "auto_commit", "offset", "waiting", "kept"),
    [
        (SUCCESS, True, 2, [2, 3], []),
        (COMMIT, True, 2, [2, 3], []),
        (COMMIT, False, 2, [2, 3], []),
        (SUCCESS, False, -1, [2, 3], [0, 1]),
    ],
)
def test_a_good_answer_goes_on(
    status: ConsumeOrderlyStatus,
    auto_commit: bool,
    offset: int,
    waiting: list[int],
    kept: list[int],
) -> None:
    """Covers C-285: committed, or kept for a later COMMIT."""
    scene = Scene()
    batch = scene.taken()
    answer = scene.turns.answered(scene.queue, batch, status, auto_commit, USE_SETTING, 0)
    assert answer == (offset, GO_ON)
    assert scene.queue.stage is BETWEEN
    assert scene.queue.taken_offsets == kept
    assert waiting_in(scene.queue) == len(waiting)


@pytest.mark.parametrize(
    ("status", "auto_commit", "kept", "tries"),
    [
        (SUSPEND, True, [0], 1),
        (SUSPEND, False, [0], 1),
        (ROLLBACK, True, [0], 1),
        (ROLLBACK, False, [], 0),
    ],
)
def test_a_bad_answer_has_the_batch_come_again_after_a_pause(
    status: ConsumeOrderlyStatus, auto_commit: bool, kept: list[int], tries: int
) -> None:
    """Covers C-284, C-285, C-591, C-293: what was kept before comes again by ROLLBACK alone."""
    scene = Scene()
    scene.taken(1)
    batch = scene.taken(2)
    answer = scene.turns.answered(scene.queue, batch, status, auto_commit, 7, 0)
    assert answer == (-1, Resume(10)), "at least 10 ms"
    assert scene.queue.stage is PAUSED
    assert scene.queue.taken_offsets == kept
    assert [message.reconsume_times for message in batch] == [tries, tries]
    assert [m.queue_offset for m in scene.queue.take(2)] == ([1, 2] if kept else [0, 1])


def test_a_pause_is_the_settings_unless_the_listener_asks() -> None:
    """Covers C-41, C-284."""
    scene = Scene()
    batch = scene.taken()
    answer = scene.turns.answered(scene.queue, batch, SUSPEND, True, USE_SETTING, 0)
    assert answer == (-1, Resume(500))


@pytest.mark.parametrize("status", [SUCCESS, SUSPEND])
def test_an_answer_for_a_dropped_queue_changes_nothing(status: ConsumeOrderlyStatus) -> None:
    """Covers C-549."""
    scene = Scene()
    batch = scene.taken()
    scene.queue.drop()
    answer = scene.turns.answered(scene.queue, batch, status, True, USE_SETTING, 0)
    assert answer == (-1, END)
    assert (scene.queue.stage, scene.queue.taken_offsets) == (OVER, [0, 1])


def test_an_answer_for_a_leaving_queue_counts() -> None:
    """Covers C-556: what its listener finished meanwhile is committed, then it is over."""
    scene = Scene()
    scene.taken()
    scene.queue.leave()
    assert scene.turns.advance(scene.queue, 0, 0) == (2, END)
    assert scene.queue.stage is OVER


@pytest.mark.parametrize("dropped", [False, True])
def test_a_success_is_settled_and_the_next_batch_taken_in_one_step(dropped: bool) -> None:
    """Covers C-281, C-285, C-549."""
    scene = Scene()
    scene.taken()
    if dropped:
        scene.queue.drop()
    offset, then = scene.turns.advance(scene.queue, 0, 0)
    if dropped:
        assert (offset, then, scene.queue.stage) == (-1, END, OVER)
    else:
        assert isinstance(then, list)
        assert (offset, [m.queue_offset for m in then]) == (2, [2, 3])
        assert scene.queue.stage is IN_HAND
        assert scene.turns.advance(scene.queue, 0, 0) == (4, END)
        assert scene.queue.stage is IDLE


def test_a_success_nobody_was_asked_for_is_refused() -> None:
    """Two batches of a queue are never out, whatever a caller does."""
    scene = Scene(BETWEEN)
    with pytest.raises(InternalError, match="BETWEEN cannot become SETTLED"):
        scene.turns.advance(scene.queue, 0, 0)


@pytest.mark.parametrize(("commits", "offset"), [(True, 1), (False, -1)])
def test_messages_that_had_their_last_try_are_given_up_and_only_they(
    commits: bool, offset: int
) -> None:
    """Covers C-287, C-590: the rest of the batch comes again, and what could not be sent."""
    scene = Scene()
    batch = scene.taken(3)
    batch[0]._reconsume_times = batch[1]._reconsume_times = 1
    done = scene.turns.answered(scene.queue, batch, SUSPEND, commits, 20, 0)
    what = GiveUp(batch[:2], batch[2:], 20, commits)
    assert done == (-1, what)
    assert scene.queue.in_hand
    then = scene.turns.given_up(scene.queue, what, batch[:1], batch[1:2], 0)
    assert then == (offset, Resume(20))
    assert scene.queue.stage is PAUSED
    assert [message.reconsume_times for message in batch] == [1, 2, 1]
    assert [m.queue_offset for m in scene.queue.take(9)] == [1, 2, 3]


def test_a_queue_whose_whole_batch_is_away_does_not_pause() -> None:
    """Covers C-287."""
    scene = Scene(GIVING_UP)
    batch = [queued(0)]
    scene.queue.take(1)
    what = GiveUp(batch, [], 500, commits=True)
    assert scene.turns.given_up(scene.queue, what, batch, [], 0) == (1, Resume(0.0))


def test_a_queue_dropped_while_messages_were_given_up_commits_nothing() -> None:
    """Covers C-549."""
    scene = Scene(GIVING_UP)
    batch = [queued(0)]
    scene.queue.take(1)
    scene.queue.drop()
    what = GiveUp(batch, [], 500, commits=True)
    assert scene.turns.given_up(scene.queue, what, batch, [], 0) == (-1, END)
    assert scene.queue.stage is OVER


def test_after_a_mistake_of_ours_everything_taken_comes_again() -> None:
    scene = Scene()
    scene.taken(2)
    assert scene.turns.broke(scene.queue) == Resume(500)
    assert (scene.queue.stage, waiting_in(scene.queue)) == (PAUSED, 4)


def test_after_a_mistake_with_a_queue_that_is_over_nothing_comes() -> None:
    scene = Scene(OVER)
    assert scene.turns.broke(scene.queue) is END


def test_a_call_that_was_cut_off_holds_its_queue_no_more() -> None:
    """Covers C-120: its lock may be given back."""
    scene = Scene()
    scene.taken()
    scene.turns.cut_off(scene.queue)
    assert not scene.queue.in_hand
    assert scene.turns.next(Scene(READY).queue, 0, 0) is not END, "the others' turns go on"
