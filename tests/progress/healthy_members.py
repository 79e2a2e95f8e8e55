"""Two looks into members of healthy groups at some moment of a day, from a seed.

Law: pure; nothing here knows how evidence is judged. A member is simulated by what its listener's
calls take, what arrives, and since when it is at work; the looks are what it would tell.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from rocketstream.admin.core.evidence import Evidence, FilterSeen, TopicRates
from rocketstream.admin.rows import RunningQueueRow
from tests.progress.evidence_maker import (
    APART,
    NOW,
    RETRY,
    RETRY_QUEUE,
    TOPIC,
    Scene,
    at,
    facts,
    held_queue,
    queue,
    thread,
)

COMMIT_MS = 5_000
PLACES = ("com.acme.Orders.save(Orders.java:42)", "com.acme.Mail.send(Mail.java:7)")


@dataclass(frozen=True)
class Load:
    """What a group has to do.

    Attributes:
        call_ms: what a call of the listener takes, on average.
        arriving: messages a second, all queues together.
        backlog: messages waiting besides, and worked off.
        started_ago_ms: since when its members are at work.
    """

    call_ms: float
    arriving: float
    backlog: int
    started_ago_ms: int
    threads: int
    queues: int
    members: int
    orderly: bool
    filtered: bool

    @property
    def pace(self) -> float:
        """Messages a second its members finish when all threads work."""
        lanes = min(self.threads, self.queues) if self.orderly else self.threads
        return lanes * self.members * 1_000 / self.call_ms

    @property
    def is_healthy(self) -> bool:
        """It can do what arrives, and a backlog is done in some minutes."""
        gain = self.pace - self.arriving
        return gain > 0.3 * self.pace and self.backlog / gain < 240


def loads(rng: random.Random) -> Iterator[Load]:
    while True:
        load = Load(
            call_ms=rng.choice([0.1, 2, 20, 200, 2_000, 20_000]) * rng.uniform(0.5, 2),
            arriving=rng.choice([0.0003, 0.02, 1, 20, 400, 3_000]) * rng.uniform(0.5, 2),
            backlog=rng.choice([0, 0, 0, 100, 5_000, 400_000]),
            started_ago_ms=rng.choice([1_000, 20_000, 90_000, 3_600_000, 80_000_000]),
            threads=rng.choice([1, 4, 20, 64]),
            queues=rng.choice([1, 4, 16]),
            members=rng.choice([1, 2, 5]),
            orderly=rng.random() < 0.2,
            filtered=rng.random() < 0.2,
        )
        if load.is_healthy:
            yield load


def members_of_a_day(rng: random.Random, number: int) -> Iterator[Evidence]:
    for _, load in zip(range(number), loads(rng), strict=False):
        yield _evidence(rng, load)


def _evidence(rng: random.Random, load: Load) -> Evidence:
    catching_up = load.backlog > 0
    pace = load.pace if catching_up else load.arriving
    each = pace / load.queues
    behind = load.backlog // load.queues
    scene = Scene(
        started_ms=NOW - load.started_ago_ms,
        rates=TopicRates(pace / load.members, load.call_ms, pace / load.members),
        arrival_tps=max(rng.gauss(load.arriving, (load.arriving / APART * 1_000) ** 0.5), 0),
    )
    scene.properties |= {
        "PROP_THREADPOOL_CORE_SIZE": str(load.threads),
        "PROP_CONSUMEORDERLY": str(load.orderly).lower(),
    }
    scene.members = {f"c{k}": {at(0, RETRY): _idle(load)} for k in range(load.members)}
    busy = load.threads if catching_up else min(round(pace * load.call_ms / 1_000), load.threads)
    scene.threads = [
        thread(k, rng.choice(PLACES) if k < busy else None) for k in range(load.threads)
    ]
    for number in range(load.queues):
        first, second, unread = _queue(rng, load, each, behind, busy)
        # Committed by timer: up to 5 s before what the member knows.
        late = int(min(each * rng.uniform(0, COMMIT_MS) / 1_000, second.commit_offset))
        committed = second.commit_offset - late
        end = second.commit_offset + second.cached + unread
        waited = _waited_ms(rng, load, end - committed, pace)
        scene.queues.append(queue(number, committed, end, waited))
        scene.members[f"c{number % load.members}"][at(number)] = (first, second)
    if load.filtered:
        scene.expressions = dict.fromkeys(scene.members, "paid")
        scene.more["filters"] = {
            TOPIC: FilterSeen(TOPIC, "paid", 200, rng.randint(1, 50), ("paid", "x"))
        }
        if rng.random() < 0.5:
            scene.more["filters"] = {TOPIC: _strict(rng)}
    if rng.random() < 0.3:
        _some_fail_once(scene)
    return scene.evidence()


def _queue(
    rng: random.Random, load: Load, each: float, behind: int, busy: int
) -> tuple[RunningQueueRow, RunningQueueRow, int]:
    """Return what a member has of one queue at both looks, and how many it did not pull yet."""
    lanes = max(busy // max(load.queues // load.members, 1), 1)
    in_hand = min(lanes, 1) if load.orderly else lanes
    if behind:
        held = min(behind, rng.randint(500, 1_000))
        disorder = rng.randint(0, in_hand)
    else:
        held = min(int(each * load.call_ms / 1_000 + rng.random()), in_hand)
        disorder = rng.randint(0, held)
    done = int(each * APART / 1_000 + rng.random())
    commit = 1_000_000 + rng.randint(0, 1_000)
    # A long call is the first of its queue at both looks; what is short is not.
    stays = load.call_ms > APART * 2 or not done
    finished_ago = rng.uniform(0, min(load.call_ms / in_hand, 60_000) + 1_000 / max(each, 0.001))
    finished_ago = min(finished_ago, load.started_ago_ms)
    if disorder:  # what was finished behind the first was handed out after it
        finished_ago = min(finished_ago, load.call_ms)
    pulled_ago = 50.0 if behind else min(rng.uniform(0, 1_000 / max(each, 0.001)), 15_000)
    second = _held(commit, held, disorder, pulled_ago, finished_ago)
    same_pull = pulled_ago > APART
    first = _held(
        commit if stays else commit - done,
        held,
        disorder,
        pulled_ago if same_pull else pulled_ago + APART,
        finished_ago if finished_ago > APART else finished_ago + APART,
    )
    return (
        replace(first, locked=load.orderly),
        replace(second, locked=load.orderly),
        max(behind - held, 0),
    )


def _held(
    commit: int, held: int, disorder: int, pulled_ago: float, finished_ago: float
) -> RunningQueueRow:
    return held_queue(
        commit,
        held,
        commit if held else None,
        commit + held - 1 + disorder if held else None,
        last_pull_ms=int(NOW - pulled_ago),
        last_consume_ms=int(NOW - finished_ago),
        last_lock_ms=NOW - 5_000,
    )


def _idle(load: Load) -> tuple[RunningQueueRow, RunningQueueRow]:
    ago = min(9_000, load.started_ago_ms)
    one = held_queue(
        0, last_pull_ms=NOW - ago, last_consume_ms=NOW - load.started_ago_ms, locked=load.orderly
    )
    return one, one


def _waited_ms(rng: random.Random, load: Load, waiting: int, pace: float) -> int | None:
    """Return how long the next message has waited: in work, not committed yet, in the backlog."""
    if not waiting:
        return None
    if load.backlog:  # it came while nobody consumed
        return int(load.backlog / load.arriving * 1_000)
    return int(rng.uniform(0, COMMIT_MS + load.call_ms))


def _some_fail_once(scene: Scene) -> None:
    """A message in a hundred fails once or twice and comes again."""
    retry = replace(RETRY_QUEUE, max_offset=40, committed_offset=39, next_stored_ms=NOW - 900)
    scene.state_more = {"queues": (*scene.queues, retry), "delayed": 2}
    scene.more["failed"] = tuple(facts(0, k, f"k{k}", 1 + k % 2, RETRY) for k in range(24, 40))


def _strict(rng: random.Random) -> FilterSeen:
    """A condition that wants a message in thousands: perhaps none of the newest is one.

    Where its listener was called in the last hour its member tells what a call takes.
    """
    examined = rng.randint(1, 20_000)
    return FilterSeen(
        TOPIC, "amount > 5", examined, 0,
        expression_type="SQL92", names=("amount",), properties=("amount", "region"),
    )  # fmt: skip
