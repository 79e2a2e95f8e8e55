"""Batches, partitions, offsets: arithmetic that must neither lose nor repeat."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketstream.errors import ConfigurationError
from rocketstream.model import MessageQueue
from rocketstream.spark.driver.offsets import Mark, StreamOffset, following, ranges_between
from rocketstream.spark.driver.planning import admit, first_at, partition_count, plan
from rocketstream.spark.scan import QueueRange

A, B, C = (MessageQueue("T", "broker", queue_id) for queue_id in range(3))

queues = st.builds(MessageQueue, st.sampled_from("TU"), st.sampled_from("ab"), st.integers(0, 5))
ranges = st.dictionaries(
    queues, st.tuples(st.integers(0, 1 << 40), st.integers(0, 60_000)), max_size=12
).map(lambda table: [QueueRange(q, begin, begin + n) for q, (begin, n) in table.items()])


# --- one micro-batch ------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    st.dictionaries(queues, st.tuples(st.integers(0, 10**6), st.integers(0, 10**6))),
    st.integers(1, 10**6),
)
def test_a_limit_is_used_up_exactly(
    table: dict[MessageQueue, tuple[int, int]], rows_max: int
) -> None:
    """Together as many as allowed or there; each queue within what it has, none left out.

    Only where there are more queues with rows than the limit allows rows it is exceeded.
    """
    begins = {queue: begin for queue, (begin, _) in table.items()}
    ends = {queue: begin + count for queue, (begin, count) in table.items()}
    admitted = admit(begins, ends, rows_max)
    taken = {queue: admitted[queue] - begins[queue] for queue in table}
    assert all(0 <= taken[queue] <= ends[queue] - begins[queue] for queue in table)
    filled = [queue for queue, (_, count) in table.items() if count]
    assert all(taken[queue] for queue in filled)
    there = sum(count for _, count in table.values())
    assert sum(taken.values()) == min(max(rows_max, len(filled)), there)


def test_a_limit_is_shared_in_proportion() -> None:
    """Covers S 8.4; a queue that shrank counts as empty."""
    begins, ends = {A: 0, B: 100, C: 50}, {A: 900, B: 200, C: 40}
    assert admit(begins, ends, 100) == {A: 90, B: 110, C: 50}


def test_small_queues_do_not_starve_beside_large_ones() -> None:
    """A queue of one row next to millions, again and again: it is read at once."""
    assert admit({A: 0, B: 0, C: 7}, {A: 10**7, B: 1, C: 7}, 1_000) == {A: 999, B: 1, C: 7}
    assert admit({A: 0, B: 0}, {A: 10**7, B: 2}, 1) == {A: 1, B: 1}


# --- partitions -----------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    ranges,
    st.integers(1, 8),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(5_000, 90_000),
)
def test_every_offset_is_in_exactly_one_partition(
    spans: list[QueueRange], cores: int, minimum: int | None, rows_max: int | None
) -> None:
    """However split and packed, and none above what one may hold."""
    partitions = plan(spans, cores, minimum, rows_max)
    assert all(partitions)
    if rows_max is not None:
        assert max((sum(p.count for p in each) for each in partitions), default=0) <= rows_max
    pieces = sorted(piece for partition in partitions for piece in partition)
    joined: list[QueueRange] = []
    for piece in pieces:
        assert piece.count > 0
        if joined and joined[-1].queue == piece.queue and joined[-1].end == piece.begin:
            joined[-1] = QueueRange(piece.queue, joined[-1].begin, piece.end)
        else:
            joined.append(piece)
    assert joined == sorted(span for span in spans if span.count)
    rows = sum(span.count for span in spans)
    if minimum is not None and rows:
        assert len(partitions) >= min(minimum, rows)
    if minimum is None and rows_max is None:
        assert len(partitions) <= len(spans)


def test_small_batches_are_one_partition_large_ones_use_every_core() -> None:
    """Covers S 8.5: a task costs more than a few thousand rows."""
    eight = [QueueRange(MessageQueue("T", "b", q), 0, 100) for q in range(8)]
    assert len(plan(eight, cores=4)) == 1
    assert len(plan([QueueRange(s.queue, 0, 1_000) for s in eight], cores=4)) == 4
    assert len(plan([QueueRange(s.queue, 0, 10**6) for s in eight], cores=4)) == 8
    assert plan([], cores=4) == []
    assert plan([QueueRange(A, 5, 5)], cores=4) == []


def test_a_queue_is_split_only_when_asked_for() -> None:
    """Order within a queue survives unless minPartitions says otherwise."""
    assert plan([QueueRange(A, 0, 10**7)], cores=8) == [(QueueRange(A, 0, 10**7),)]
    assert sorted(plan([QueueRange(A, 0, 10)], cores=8, minimum=2)) == [
        (QueueRange(A, 0, 5),),
        (QueueRange(A, 5, 10),),
    ]
    assert partition_count([QueueRange(A, 0, 3)], cores=8, minimum=100) == 3


@pytest.mark.parametrize(("cores", "others"), [(8, 4), (4, 8), (8, 1), (1, 8), (4, 3)])
def test_a_batch_planned_again_on_other_cores_has_the_same_partitions(
    cores: int, others: int
) -> None:
    """A reader that looks at partition and number would take new rows for repeats."""
    sizes = (900, 700, 500, 400, 300, 200, 150, 100)
    ranges = [QueueRange(MessageQueue("T", "b", q), 0, rows) for q, rows in enumerate(sizes)]
    chosen = partition_count(ranges, cores, None)
    assert plan(ranges, others, chosen=chosen) == plan(ranges, cores)
    assert plan(ranges, others, minimum=9, chosen=chosen) == plan(ranges, cores, minimum=9)


def test_a_partition_holds_no_more_than_it_may() -> None:
    """As maxRecordsPerPartition of Spark's Kafka source; small ranges still share one."""
    assert sorted(plan([QueueRange(A, 0, 10), QueueRange(B, 0, 3)], cores=1, rows_max=5)) == [
        (QueueRange(A, 0, 5),),
        (QueueRange(A, 5, 10),),
        (QueueRange(B, 0, 3),),
    ]
    shared = plan([QueueRange(A, 0, 2), QueueRange(B, 0, 3)], cores=1, rows_max=5)
    assert shared == [(QueueRange(A, 0, 2), QueueRange(B, 0, 3))]


# --- offsets by time ------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 20), max_size=60).map(sorted),
    st.integers(0, 21),
    st.integers(-5, 70),
    st.integers(0, 100),
)
def test_the_first_offset_of_a_time_is_found_from_any_hint(
    times: list[int], wanted: int, hint: int, low: int
) -> None:
    """Covers C-372: equal times, hints on either side, none at all."""
    asked: list[int] = []

    def reached(offset: int) -> bool:
        asked.append(offset)
        assert low <= offset < low + len(times)
        return times[offset - low] >= wanted

    found = first_at(low, low + len(times), low + hint, reached)
    expected = next((i for i, at in enumerate(times) if at >= wanted), len(times))
    assert found == low + expected
    assert len(asked) <= 20


def test_a_good_hint_needs_few_questions() -> None:
    """Each question is a round trip."""
    asked: list[int] = []

    def reached(offset: int) -> bool:
        asked.append(offset)
        return offset >= 700_000

    assert first_at(0, 1_000_000, 700_000, reached) == 700_000
    assert len(asked) <= 3


# --- a stream's offsets ---------------------------------------------------------------------------


def test_offsets_survive_their_text_and_equal_ones_have_equal_text() -> None:
    """Covers S 2.2: Spark compares text; topics may hold any separator."""
    odd = MessageQueue("%RETRY%a|b", "broker|x", 12)
    offset = StreamOffset({odd: 5, A: 1 << 60}, {A: 0}, initial=True, partitions=3)
    text = json.dumps(offset.to_json())
    assert StreamOffset.from_json(json.loads(text)) == offset
    other = StreamOffset({A: 1 << 60, odd: 5}, {A: 0}, initial=True, partitions=3)
    assert json.dumps(other.to_json()) == text


@pytest.mark.parametrize(
    "value",
    [
        None,
        7,
        {},
        {"v": 2},
        {"v": 0, "q": {}},
        {"v": 1},
        {"v": 1, "q": 3},
        {"v": 1, "q": {"T": {"b": {"x": 1}}}},
    ],
)
def test_an_offset_of_another_source_is_refused(value: object) -> None:
    """A checkpoint of another source, or of a later version."""
    with pytest.raises(ConfigurationError, match="not an offset of the rocketmq source"):
        StreamOffset.from_json(value)


@pytest.mark.parametrize(("partitions", "version"), [(None, 2), (4, 3)])
def test_an_offset_that_says_its_partitions_is_of_a_version_of_its_own(
    partitions: int | None, version: int
) -> None:
    """A release that knows no partitions names the later one, instead of damage by the checksum."""
    offset = StreamOffset({A: 5}, partitions=partitions)
    assert offset.to_json()["v"] == version
    assert StreamOffset.from_json(offset.to_json()) == offset


def test_the_first_end_carries_all_beginnings_later_ones_only_new_queues() -> None:
    """Covers S 8.3."""
    initial = StreamOffset({A: 5, B: 7}, initial=True)
    first = following(initial, {A: 10}, {})
    assert first == StreamOffset({A: 10, B: 7}, {A: 5, B: 7})
    second = following(first, {A: 11, C: 3}, {C: 1})
    assert second == StreamOffset({A: 11, B: 7, C: 3}, {C: 1})
    assert ranges_between(first, second) == [QueueRange(A, 10, 11), QueueRange(C, 1, 3)]
    assert ranges_between(second, second) == [], "a trigger that found nothing tells one offset"


def test_a_logged_beginning_wins_over_a_drifted_one() -> None:
    """Covers S 0.4: at replay the initial offset is past the logged end."""
    end = following(StreamOffset({A: 5}, initial=True), {A: 10}, {})
    drifted = StreamOffset({A: 99}, initial=True)
    assert ranges_between(drifted, end) == [QueueRange(A, 5, 10)]


def test_an_empty_first_batch_replays_as_empty() -> None:
    """Its end is an initial offset itself; what came since belongs to the next batch."""
    end = StreamOffset({A: 5}, initial=True)
    assert ranges_between(StreamOffset({A: 3}, initial=True), end) == []
    assert following(end, {A: 9}, {}).base == {A: 5}


def test_no_queue_ever_moves_backwards() -> None:
    """Whatever the brokers say."""
    start = StreamOffset({A: 5, B: 7})
    assert following(start, {A: 3, B: 9}, {}).ends == {A: 5, B: 9}


def test_marks_survive_their_text_and_offsets_without_any_are_read() -> None:
    """Checkpoints of the version before have none."""
    marked = StreamOffset({A: 5, B: 7}, marks={B: Mark(1_700_000_000_000, 1 << 50), A: Mark(0, 0)})
    text = json.dumps(marked.to_json())
    assert StreamOffset.from_json(json.loads(text)) == marked
    assert text == json.dumps(StreamOffset.from_json(json.loads(text)).to_json())
    old = {"v": 1, "q": {"T": {"broker": {"0": 5}}}, "base": {"T": {"broker": {"0": 1}}}}
    assert StreamOffset.from_json(old) == StreamOffset({A: 5}, {A: 1})


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 255))
def test_a_changed_byte_of_an_offset_is_refused_or_changes_nothing(at: int, change: int) -> None:
    """Covers S 2.2: no disk or object store tells Spark; a greater number would skip messages."""
    marks = {A: Mark(1_700_000_000_000, 1 << 40)}
    offset = StreamOffset({A: 1_500, B: 7}, {A: 0}, marks=marks, partitions=3)
    text = bytearray(json.dumps(offset.to_json()).encode())
    text[at % len(text)] ^= change
    try:
        assert StreamOffset.from_json(json.loads(text)) == offset
    except (ValueError, ConfigurationError):
        pass


def test_a_damaged_offset_says_what_to_do() -> None:
    value = StreamOffset({A: 1_500}).to_json()
    value["q"]["T"]["broker"]["0"] = 1_900
    with pytest.raises(ConfigurationError, match=r"is damaged: its offset .*1900.*startingOffsets"):
        StreamOffset.from_json(value)
    del value["crc"]
    assert StreamOffset.from_json(value).ends == {A: 1_900}, "earlier releases wrote none"


def test_an_offset_of_a_later_version_says_what_to_do() -> None:
    """Read as if it were ours it might skip rows."""
    with pytest.raises(ConfigurationError, match=r"format 4, this one reads 1 to 3\. Upgrade"):
        StreamOffset.from_json({"v": 4, "q": {}})


def test_marks_follow_their_queues() -> None:
    """A queue that stays keeps its mark, one that moved has a new one or none."""
    start = StreamOffset({A: 5, B: 7, C: 9}, marks={A: Mark(1, 1), B: Mark(2, 2), C: Mark(3, 3)})
    assert following(start, {A: 6, B: 8}, {}, {A: Mark(4, 4)}).marks == {
        C: Mark(3, 3),
        A: Mark(4, 4),
    }


@pytest.mark.parametrize(
    ("first", "hint", "asked"),
    [
        (11, 10, [10, 11]),
        (10, 10, [10, 9]),
        (13, 10, [10, 11, 13, 12]),
        (5, 10, [10, 9, 7, 3, 5, 4]),
    ],
)
def test_the_nearest_offsets_are_asked_about_first(first: int, hint: int, asked: list[int]) -> None:
    """Each question is a pull: where the hint is right, two must do."""
    questions: list[int] = []

    def reached(offset: int) -> bool:
        questions.append(offset)
        return offset >= first

    assert first_at(0, 100, hint, reached) == first
    assert questions == asked


@pytest.mark.parametrize(
    ("waiting", "granted"),
    [([500, 500, 1, 1, 1, 1], [8, 8, 1, 1, 1, 1]), ([100, 900, 1, 1, 1], [2, 15, 1, 1, 1])],
)
def test_the_starving_are_fed_by_whoever_has_most_at_that_moment(
    waiting: list[int], granted: list[int]
) -> None:
    """Two queues that have much give in turn, and one of two rows nothing."""
    queues = [MessageQueue("T", "b", number) for number in range(len(waiting))]
    ends = dict(zip(queues, waiting, strict=True))
    assert list(admit(dict.fromkeys(queues, 0), ends, 20).values()) == granted


def test_one_partition_is_enough_for_one_row() -> None:
    span = QueueRange(A, 0, 1)
    assert partition_count([span], cores=8, minimum=4) == 1
    assert partition_count([span], cores=8, minimum=1) == 1
    assert partition_count([span], cores=8, minimum=None) == 1
    assert partition_count([], cores=8, minimum=4) == 1
    assert partition_count([], cores=8, minimum=None) == 1
    assert partition_count([span, QueueRange(A, 3, 4)], cores=8, minimum=2) == 2


@pytest.mark.parametrize(
    ("waiting", "rows_max", "granted"),
    [
        ([10**7, 1, 1, 1], 4, [1, 1, 1, 1]),
        ([10**7, 1, 1, 1, 1], 3, [1, 1, 1, 1, 1]),
        ([1_000, 1_000, 1], 4, [1, 2, 1]),
        ([1_000, 700, 1, 1, 1], 17, [7, 7, 1, 1, 1]),
    ],
)
def test_who_gives_is_asked_again_until_one_row_is_left(
    waiting: list[int], rows_max: int, granted: list[int]
) -> None:
    """And no later than its share says: the largest gives until it is no larger than the next."""
    queues = [MessageQueue("T", "b", number) for number in range(len(waiting))]
    ends = dict(zip(queues, waiting, strict=True))
    assert list(admit(dict.fromkeys(queues, 0), ends, rows_max).values()) == granted


@pytest.mark.parametrize(
    ("rows", "cores", "partitions"),
    [
        (1_999, 4, 1),
        (2_000, 4, 4),
        (25_000, 1, 1),
        (25_001, 1, 2),
        (50_000, 1, 2),
        (50_001, 1, 3),
    ],
)
def test_partitions_begin_to_be_worth_their_cost_at_exactly(
    rows: int, cores: int, partitions: int
) -> None:
    """25,000 rows a partition; 2,000 in all for every core."""
    spans = [QueueRange(MessageQueue("T", "b", number), 0, 1) for number in range(7)]
    spans.append(QueueRange(MessageQueue("T", "b", 7), 0, rows - 7))
    assert partition_count(spans, cores, None) == partitions


def test_a_partition_begun_for_what_did_not_fit_is_the_emptiest_with_what_it_has() -> None:
    queues = [MessageQueue("T", "b", number) for number in range(5)]
    spans = [
        QueueRange(queue, 0, rows) for queue, rows in zip(queues, (7, 7, 7, 6, 3), strict=True)
    ]
    packed = plan(spans, cores=1, rows_max=10)
    assert sorted(packed) == [(spans[0],), (spans[1],), (spans[2],), (spans[3], spans[4])]


def test_what_is_left_of_a_limit_goes_to_the_largest_remainder() -> None:
    """Not to the largest queue: 6.1 and 3.9 of ten."""
    assert admit({A: 0, B: 0}, {A: 61, B: 39}, 10) == {A: 6, B: 4}


def test_a_single_row_is_read() -> None:
    assert plan([QueueRange(A, 4, 5)], cores=4) == [(QueueRange(A, 4, 5),)]


def test_as_many_partitions_as_rows_have_one_row_each() -> None:
    """More partitions than that were asked for."""
    planned = plan([QueueRange(A, 0, 2), QueueRange(B, 7, 8)], cores=1, minimum=9)
    assert sorted(planned) == [
        (QueueRange(A, 0, 1),),
        (QueueRange(A, 1, 2),),
        (QueueRange(B, 7, 8),),
    ]


def test_a_partition_begun_for_what_did_not_fit_holds_no_more_than_it_may() -> None:
    spans = [
        QueueRange(MessageQueue("T", "b", number), 0, rows)
        for number, rows in enumerate((6, 6, 6, 6, 5))
    ]
    assert sorted(plan(spans, cores=1, rows_max=10)) == [(span,) for span in spans]


def test_a_queue_that_ends_before_it_begins_is_asked_about_nothing() -> None:
    """It was cut off between the questions where it begins and where it ends."""
    questions: list[int] = []
    assert first_at(5, 3, 4, lambda offset: bool(questions.append(offset))) == 3  # type: ignore[func-returns-value]
    assert questions == []


def test_a_queue_of_which_no_offset_says_where_it_begins_is_read_from_its_first_row() -> None:
    """None is passed over."""
    assert ranges_between(StreamOffset({}), StreamOffset({A: 5})) == [QueueRange(A, 0, 5)]
