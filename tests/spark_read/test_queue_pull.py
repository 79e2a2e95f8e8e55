"""Pulls in flight by guessed offsets: every message once, in order, whatever the broker answers."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rocketstream.model import MessageQueue
from rocketstream.spark.executor.queue_pull import Ask, Part, QueuePull
from rocketstream.spark.scan import QueueRange

QUEUE = MessageQueue("T", "b", 0)


def collect(pull: QueuePull) -> list[int]:
    """Offsets of the messages given out: fake bodies are runs of one-byte messages."""
    return [offset for part in pull.take() for offset in range(part.begin, part.end)]


@given(
    begin=st.integers(0, 50),
    count=st.integers(0, 400),
    depth=st.integers(1, 8),
    stride_max=st.integers(1, 128),
    data=st.data(),
)
@settings(max_examples=300, deadline=None)
def test_every_offset_comes_once_and_in_order(
    begin: int, count: int, depth: int, stride_max: int, data: st.DataObject
) -> None:
    """Answers of any size, in any order, some of them failing: the range comes out exactly."""
    pull = QueuePull(QueueRange(QUEUE, begin, begin + count), stride_max)
    waiting: list[Ask] = []
    given_out: list[int] = []
    failures = 0
    while not pull.done:
        while len(waiting) < depth and (ask := pull.next_ask()):
            assert 0 < ask.end - ask.begin <= stride_max
            waiting.append(ask)
        assert waiting, "nothing under way and nothing to ask would be a hang"
        ask = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
        kind = data.draw(st.sampled_from(["short", "exact", "beyond", "fail"]))
        if kind == "fail" and failures < 20:
            failures += 1
            pull.failed(ask)
        elif kind == "short":
            pull.answered(ask, data.draw(st.integers(ask.begin + 1, ask.end)))
        else:
            pull.answered(ask, ask.end + (kind == "beyond") * data.draw(st.integers(1, 100)))
        given_out += collect(pull)
    assert given_out == list(range(begin, begin + count))
    assert (waiting, pull.in_flight) == ([], 0) or pull.in_flight == len(waiting)


def drive(pull: QueuePull, per_answer: int, depth: int = 8) -> list[int]:
    """Play a broker that gives at most ``per_answer`` messages; return the sizes asked for."""
    waiting: list[Ask] = []
    sizes = []
    while not pull.done:
        while len(waiting) < depth and (ask := pull.next_ask()):
            waiting.append(ask)
            sizes.append(ask.end - ask.begin)
        ask = waiting.pop(0)
        pull.answered(ask, min(ask.end, ask.begin + per_answer))
        pull.take()
    return sizes


def test_apaches_32_a_pull_costs_no_extra_pulls() -> None:
    """Asking for more now and then must not cost: what is missing is another full pull."""
    sizes = drive(QueuePull(QueueRange(QUEUE, 0, 32_000), 1024), 32)
    assert len(sizes) <= 1_000 + 5


def test_a_broker_that_gives_more_is_soon_asked_for_more() -> None:
    """With a larger transfer limit 64,000 messages take few more than 64,000 / 1024 pulls."""
    assert len(drive(QueuePull(QueueRange(QUEUE, 0, 64_000), 1024), 1024)) <= 75


def test_one_short_answer_does_not_make_all_pulls_short() -> None:
    """A pull ends at an index file's end (C-368); the guess stays at least half."""
    pull = QueuePull(QueueRange(QUEUE, 0, 10_000), 32)
    first = pull.next_ask()
    assert first == Ask(0, 32, True)
    pull.answered(first, 1)
    assert pull.next_ask() == Ask(1, 17, True)


def test_nothing_is_guessed_before_the_first_answer() -> None:
    """The first pull goes alone: its answer is the first guess."""
    pull = QueuePull(QueueRange(QUEUE, 5, 10_000), 1024)
    first = pull.next_ask()
    assert first is not None
    assert pull.next_ask() is None
    pull.answered(first, 5 + 8)
    pull.take()
    asks = [pull.next_ask(), pull.next_ask()]
    assert [ask and ask.begin for ask in asks] == [13, 29]


def test_an_answer_beyond_its_stretch_is_used_as_far_as_nobody_else_was_asked() -> None:
    """Filtered pulls skip hundreds of offsets at once."""
    pull = QueuePull(QueueRange(QUEUE, 0, 1_000), 32)
    first = pull.next_ask()
    assert first is not None
    pull.answered(first, 800, b"x")
    assert pull.take() == [Part(0, 800, b"x")]
    assert pull.next_ask() == Ask(800, 832, True) or pull.position == 800
