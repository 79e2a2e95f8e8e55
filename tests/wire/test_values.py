"""Small values: properties, tag hashes, names, subscriptions, ids, versions, codes, flags."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstream.errors import (
    ConfigurationError,
    LocalProtocolError,
    RemoteProtocolError,
    SubscriptionError,
)
from rocketstream.protocol import codes, names
from rocketstream.protocol.codes import (
    LanguageCode,
    MessageSysFlag,
    Perm,
    PullSysFlag,
    RequestCode,
    ResponseCode,
    version_ordinal,
)
from rocketstream.protocol.message_id import (
    RESERVED_IDS_MAX,
    UniqueIdGenerator,
    decode_offset_msg_id,
    encode_offset_msg_id,
    offset_msg_id_prefix,
)
from rocketstream.protocol.properties import decode_properties, encode_properties, whole_number
from rocketstream.protocol.subscription import build_subscription
from rocketstream.protocol.tag_hash import java_hash, tags_code
from tests.kits import vectors
from tests.wire.strategies import HOSTS, INT64, PORTS, PROPERTIES

# --- properties (W 4.3) ------------------------------------------------------------------------


def test_properties_are_written_without_a_trailing_separator() -> None:
    assert encode_properties({"a": "1", "b": "2"}) == "a\x011\x02b\x012"
    assert encode_properties({}) == ""


def test_properties_are_read_with_or_without_a_trailing_separator() -> None:
    wanted = {"UNIQ_KEY": "7F000001", "WAIT": "true", "TAGS": "TagA"}
    for text in (vectors.PROPERTIES, vectors.PROPERTIES + "\x02"):
        assert decode_properties(text) == wanted
        assert decode_properties(text.encode()) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", {}),
        ("\x02\x02", {}),
        ("ab", {}),
        ("a\x01", {}),
        ("\x01b", {}),
        ("\x01", {}),
        ("a\x01b\x02c\x01\x02\x01d\x02e\x01f", {"a": "b", "e": "f"}),
        ("a\x01b\x01c", {"a": "b\x01c"}),
        ("a\x01\x01", {"a": "\x01"}),
        ("a\x011\x02a\x012", {"a": "2"}),
        ("键\x01值", {"键": "值"}),
    ],
)
def test_pairs_with_an_empty_side_are_dropped(text: str, wanted: dict[str, str]) -> None:
    assert decode_properties(text) == wanted


@given(PROPERTIES)
def test_properties_round_trip(properties: dict[str, str]) -> None:
    assert decode_properties(encode_properties(properties)) == properties
    assert decode_properties(encode_properties(properties).encode() + b"\x02") == properties


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0), ("007", 7), ("500", 500), ("501", None), ("", None), ("-1", None), ("+1", None),
        ("1_0", None), (" 1", None), ("1.0", None), ("٣", None), ("²", None), ("9" * 5_000, None),
        ("0" * 21, None),
    ],
)  # fmt: skip
def test_a_whole_number_of_a_peer_is_ascii_digits_up_to_its_bound(
    text: str, number: int | None
) -> None:
    """Python's own reading raises for too many digits, and takes other scripts' and signs."""
    assert whole_number(text, 500) == number


def test_properties_that_are_not_utf8_are_read_with_replacements() -> None:
    """As Java reads them: an odd property must not keep a queue from being consumed."""
    assert decode_properties(b"a\x01\xff\x02b\x01c") == {"a": "\ufffd", "b": "c"}


# --- tag hashes (W 4.4, C-102) -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("a", 97),
        ("TagA", 2598919),
        ("TagB", 2598920),
        ("TagC", 2598921),
        ("标签", 857175),
        ("😀", 1772899),
        ("polygenelubricants", -(2**31)),
        ("GoldT#k1", 2100982837),
        ("GoldT#k2", 2100982838),
    ],
)
def test_hash_is_javas(text: str, value: int) -> None:
    assert java_hash(text) == value
    assert tags_code(text) == value


def test_no_tag_has_code_zero() -> None:
    assert tags_code(None) == tags_code("") == 0


@given(st.text())
def test_hash_is_signed_32_bit_for_any_text(text: str) -> None:
    assert -(2**31) <= java_hash(text) < 2**31


def test_lone_surrogates_hash_as_their_unit() -> None:
    assert java_hash("\ud800") == 0xD800


# --- subscriptions (C-99 to C-101) -------------------------------------------------------------


@pytest.mark.parametrize("expression", [None, "", "*"])
def test_no_expression_subscribes_all(expression: str | None) -> None:
    data = build_subscription("T", expression, 5)
    assert (data.sub_string, data.tags_set, data.code_set) == ("*", set(), set())
    assert (data.topic, data.sub_version, data.expression_type) == ("T", 5, "TAG")


def test_tags_are_split_and_trimmed_and_the_text_is_kept() -> None:
    data = build_subscription("T", " a || b||||  ", 5)
    assert (data.tags_set, data.code_set) == ({"a", "b"}, {97, 98})
    assert data.sub_string == " a || b||||  "


def test_a_tag_is_trimmed_as_java_trims_it() -> None:
    """``String.trim``: all up to the blank, and nothing else."""
    data = build_subscription("T", "\x00a!\x1f ||\xa0b||!", 5)
    assert data.tags_set == {"a!", "\xa0b", "!"}
    assert data.code_set == {java_hash(tag) for tag in data.tags_set}


@pytest.mark.parametrize("expression", ["||", "||||"])
def test_expression_without_a_tag_is_refused(expression: str) -> None:
    with pytest.raises(SubscriptionError, match="subscription exception"):
        build_subscription("T", expression, 5)


def test_sql_expression_is_kept_as_it_is() -> None:
    data = build_subscription("T", "a > 1", 5, "SQL92")
    assert (data.sub_string, data.tags_set, data.expression_type) == ("a > 1", set(), "SQL92")


@pytest.mark.parametrize("expression", [None, "", "  "])
def test_blank_sql_is_refused(expression: str | None) -> None:
    with pytest.raises(SubscriptionError):
        build_subscription("T", expression, 5, "SQL92")


def test_unknown_expression_type_is_refused() -> None:
    with pytest.raises(SubscriptionError, match="TAG or SQL92"):
        build_subscription("T", "a", 5, "LUA")


# --- names (C-94 to C-97) ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["T", "%RETRY%g", "a|b-c_D9", "t" * 127])
def test_legal_names_pass(name: str) -> None:
    names.check_topic(name)
    names.check_group(name)
    names.check_group("g" * 255)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "topic must not be blank"),
        (" \t", "topic must not be blank"),
        ("t" * 128, "a topic has 127 characters at most; this one has 128"),
        (
            "a b",
            "topic 'a b' has illegal characters; accepted are a-z, A-Z, 0-9, %, |, _ and -",
        ),
    ],
)
def test_what_is_wrong_with_a_topic_is_said(name: str, text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        names.check_topic(name)
    assert caught.value.message == text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "group must not be blank"),
        ("g" * 256, "a group has 255 characters at most; this one has 256"),
        (
            "组",
            "group '组' has illegal characters; accepted are a-z, A-Z, 0-9, %, |, _ and -",
        ),
        (
            "a\n",
            "group 'a\\n' has illegal characters; accepted are a-z, A-Z, 0-9, %, |, _ and -",
        ),
    ],
)
def test_what_is_wrong_with_a_group_is_said(name: str, text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        names.check_group(name)
    assert caught.value.message == text


def test_consumer_groups_leave_room_for_the_name_of_their_retry_topic() -> None:
    """A topic is a directory; %RETRY% and 249 characters are more than a name may have."""
    names.check_consumer_group("g" * 248)
    assert names.storage_problem(names.retry_topic("g" * 248)) is None
    with pytest.raises(ConfigurationError, match="has 249 characters where 248 are the most"):
        names.check_consumer_group("g" * 249)
    assert "256 bytes" in (names.storage_problem(names.retry_topic("g" * 249)) or "")
    for wrong in ("", "..", "a/b", "t o"):
        assert names.storage_problem(wrong) is not None


def test_a_thread_of_a_group_is_named_by_its_first_hundred_characters() -> None:
    """Java cuts the group there, and reads stacks by it."""
    assert names.LISTENER_THREAD_PREFIX == "ConsumeMessageThread_"
    assert names.THREAD_GROUP_CHARS_MAX == 100


def test_system_names() -> None:
    assert (names.retry_topic("g"), names.dlq_topic("g")) == ("%RETRY%g", "%DLQ%g")
    forbidden = {
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    }
    assert forbidden == names.NOT_ALLOWED_SEND_TOPICS
    for topic in [
        *forbidden,
        "TBW102",
        "BenchmarkTest",
        "RMQ_SYS_TRACE_TOPIC",
        "rmq_sys_x",
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
    ]:
        assert names.is_system_topic(topic)
        assert names.is_not_allowed_send_topic(topic) == (topic in forbidden)
    assert not names.is_system_topic("T")
    assert names.is_system_group("CID_RMQ_SYS_TRANS")
    assert names.is_system_group("TOOLS_CONSUMER")
    assert names.is_system_group("rocketstream-redrive-0123456789ab")
    assert names.is_system_group("rocketstream-spark")
    assert not names.is_system_group("rocketstream-redriven")
    assert not names.is_system_group("g")


# --- ids (W 4.7) -------------------------------------------------------------------------------


def test_offset_id_is_javas() -> None:
    text = "0A00000100002A9F00000000075BCD15"
    assert encode_offset_msg_id("10.0.0.1", 10911, 123456789) == text
    assert offset_msg_id_prefix("10.0.0.1", 10911) == text[:16]
    assert decode_offset_msg_id(text) == ("10.0.0.1", 10911, 123456789)
    assert decode_offset_msg_id(text.lower()) == ("10.0.0.1", 10911, 123456789)


@given(HOSTS, PORTS, INT64)
def test_offset_id_round_trip(host: str, port: int, offset: int) -> None:
    text = encode_offset_msg_id(host, port, offset)
    assert len(text) in (32, 56)
    assert decode_offset_msg_id(text)[1:] == (port, offset)


@pytest.mark.parametrize("text", ["", "0A", "x" * 32, "0" * 31, "0" * 34, "0A " * 16, "0" * 40])
def test_text_that_is_no_offset_id_is_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="message id"):
        decode_offset_msg_id(text)


def elapsed_ms(unique_id: str) -> int:
    """Return the time field of a UNIQ_KEY: ms since the start of the sender's month."""
    return int.from_bytes(bytes.fromhex(unique_id)[-6:-2], "big")


def test_unique_id_has_upstreams_fields() -> None:
    month = 1793491200000
    made = UniqueIdGenerator(bytes([192, 0, 2, 2]), 0x1_7A31, 0x5FFD2B27, lambda now: month)
    first, second = made.next(month + 0x6611F211), made.next(month + 0x6611F212)
    assert first == "C0000202" + "7A31" + "5FFD2B27" + "6611F211" + "0000"
    assert second == "C0000202" + "7A31" + "5FFD2B27" + "6611F212" + "0001"
    assert elapsed_ms(first) == 0x6611F211


def test_unique_id_of_an_ipv6_machine_has_56_digits() -> None:
    """The id observed from a Java client."""
    text = "FD0000000000000000000000000000027A315FFD2B276611F2110000"
    address = bytes.fromhex("FD000000000000000000000000000002")
    made = UniqueIdGenerator(address, 0x7A31, 0x5FFD2B27, lambda now: now - 0x6611F211)
    assert made.next(1795203654796) == text
    assert elapsed_ms(text) == 0x6611F211


def test_unique_ids_follow_the_month_and_wrap_the_counter() -> None:
    day = 86_400_000
    starts = [0, 31 * day, 59 * day]
    calls = []

    def month_start(now: int) -> int:
        calls.append(now)
        return max(start for start in starts if start <= now)

    made = UniqueIdGenerator(bytes(4), 0, 0, month_start)
    elapsed = [elapsed_ms(made.next(t)) for t in (5, 31 * day - 1, 31 * day, 60 * day)]
    assert elapsed == [5, 31 * day - 1, 0, day]
    for _ in range(65_536 - 4):
        made.next(60 * day)
    assert made.next(60 * day).endswith("0000")
    assert len(calls) < 10


def test_clock_before_its_month_counts_as_its_start() -> None:
    """covers W 4.7: clamped to 0 if slightly negative."""
    made = UniqueIdGenerator(bytes(4), 0, 0, lambda now: now + 10)
    assert elapsed_ms(made.next(100)) == 0


def test_the_start_of_a_month_is_asked_for_once_within_its_28_days() -> None:
    """It takes the calendar of the machine's time zone."""
    start, day = 1_793_491_200_000, 86_400_000
    calls: list[int] = []

    def month_start(now: int) -> int:
        calls.append(now)
        return start

    made = UniqueIdGenerator(bytes(4), 0, 0, month_start)
    for after in (0, day, 28 * day - 1):
        assert elapsed_ms(made.next(start + after)) == after
    assert calls == [start]
    for after in (28 * day, 28 * day + 1):
        assert elapsed_ms(made.next(start + after)) == after
    assert calls == [start, start + 28 * day, start + 28 * day + 1]


@pytest.mark.parametrize("now", [-1, 0, 1])
def test_the_first_unique_id_of_a_generator_is_whole_at_any_time(now: int) -> None:
    made = UniqueIdGenerator(bytes(4), 0, 0, lambda now: now - 5)
    assert made.reserve(1, now)[0] == "0" * 20 + "00000005"
    made = UniqueIdGenerator(bytes(4), 0, 0, lambda now: now - 5)
    assert made.next(now) == "0" * 20 + "00000005" + "0000"


def test_unique_ids_of_several_threads_differ() -> None:
    made = UniqueIdGenerator(bytes(4), 0, 0, lambda now: 0)
    with ThreadPoolExecutor(4) as pool:
        ids = list(pool.map(made.next, [1] * 4000))
    assert len(set(ids)) == 4000


def test_reserved_ids_are_the_next_ones() -> None:
    made, same = (UniqueIdGenerator(bytes(4), 0, 0, lambda now: 0) for _ in range(2))
    head, numbers = made.reserve(3, 5)
    assert [f"{head}{number & 0xFFFF:04X}" for number in numbers] == [same.next(5) for _ in "abc"]
    assert made.next(5) == same.next(5)
    assert made.reserve(0, 6)[1] == []


@pytest.mark.parametrize("count", [-1, RESERVED_IDS_MAX + 1])
def test_no_more_ids_are_reserved_than_differ(count: int) -> None:
    made = UniqueIdGenerator(bytes(4), 0, 0, lambda now: 0)
    with pytest.raises(LocalProtocolError, match=f"from 0 to 32768 ids .*not {count}"):
        made.reserve(count, 5)


def test_bad_unique_id_parts_are_refused() -> None:
    with pytest.raises(LocalProtocolError):
        UniqueIdGenerator(bytes(5), 0, 0, lambda now: 0)


# --- versions, codes, flags --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("release", "ordinal"),
    [
        ((4, 0, 0), 213), ((4, 9, 0), 393), ((4, 9, 3), 399), ((4, 9, 4), 401), ((4, 9, 7), 407),
        ((4, 9, 8), 409), ((5, 0, 0), 413), ((5, 1, 0), 433), ((5, 1, 4), 441), ((5, 2, 0), 453),
        ((5, 3, 0), 473), ((5, 3, 3), 479), ((5, 9, 9), 611),
    ],
)  # fmt: skip
def test_version_ordinals(release: tuple[int, int, int], ordinal: int) -> None:
    """covers W 1.5."""
    assert version_ordinal(*release) == ordinal


def test_announced_version_is_4_9_8_and_gets_standard_routes() -> None:
    assert version_ordinal(4, 9, 8) == codes.VERSION >= codes.VERSION_STANDARD_JSON_ROUTE
    assert version_ordinal(4, 1, 0) - 1 == codes.VERSION_SQL92


def test_codes_are_upstreams() -> None:
    """covers C-625, C-626 and W 2.1."""
    assert RequestCode(310) is RequestCode.SEND_MESSAGE_V2
    assert RequestCode(361) is RequestCode.LITE_PULL_MESSAGE
    assert ResponseCode(21) is ResponseCode.PULL_OFFSET_MOVED
    assert [code.name for code in LanguageCode][:4] == ["JAVA", "CPP", "DOTNET", "PYTHON"]
    assert len({int(code) for code in RequestCode}) == len(RequestCode.__members__)


def test_flags_are_upstreams() -> None:
    """covers C-627, C-628 and W 4.2."""
    assert PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION | PullSysFlag.LITE_PULL == 22
    assert MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_ZLIB == 769
    assert MessageSysFlag.BORN_HOST_V6 | MessageSysFlag.STORE_HOST_V6 == 48
    assert MessageSysFlag.NEED_UNWRAP | MessageSysFlag.INNER_BATCH == 0xC0
    assert Perm.READ | Perm.WRITE | Perm.INHERIT == 7
