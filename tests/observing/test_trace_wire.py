"""Trace records: exactly the text the Java client wrote on Apache's broker, and hostile bodies."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstream.errors import RemoteProtocolError
from rocketstream.protocol.trace import (
    TraceEndTransaction,
    TracePub,
    TraceRecall,
    TraceRecord,
    TraceSubAfter,
    TraceSubBefore,
    decode_trace,
    encode_record,
    record_keys,
)

PUB = TracePub(
    1795270939582, "DefaultRegion", "till", "T1", "FD0000026CD14E0E2F2A6A14ABBC0000", "A", "m-0",
    "127.0.0.1:29231", 1024, 12, 0, "7F0000010000722F0000000000000D8F", True,
)  # fmt: skip
BATCH = TracePub(
    1795270941035, "DefaultRegion", "till", "T1", "FD00,FD01", None, None, "127.0.0.1:29231", 4552,
    17, 0, "7F00,7F01", True,
)  # fmt: skip
BEFORE = TraceSubBefore(1795270930851, None, "cg", "FD0001", "C00009", 0, "k9 kk")
AFTER = TraceSubAfter("FD0001", "C00009", 3, True, "k9 kk", 0, 1795270930854, "cg")
END = TraceEndTransaction(
    1795270939582, "DefaultRegion", "tpg", "T1", "FD07", "TT", "kk", "127.0.0.1:29231", 2, "FD07",
    "ROLLBACK_MESSAGE", False,
)  # fmt: skip
RECALL = TraceRecall(1795270939582, "DefaultRegion", "pg", "T1", "FD08", True)


def text_of(shown: str) -> str:
    """``^`` and ``~`` stand for the two separators."""
    return shown.replace("^", "\x01").replace("~", "\x02")


@pytest.mark.parametrize(
    ("record", "shown"),
    [
        (
            PUB,
            "Pub^1795270939582^DefaultRegion^till^T1^FD0000026CD14E0E2F2A6A14ABBC0000^A^m-0^"
            "127.0.0.1:29231^1024^12^0^7F0000010000722F0000000000000D8F^true~",
        ),
        (
            BATCH,
            "Pub^1795270941035^DefaultRegion^till^T1^FD00,FD01^null^null^127.0.0.1:29231^4552^17^0^"
            "7F00,7F01^true~",
        ),
        (BEFORE, "SubBefore^1795270930851^null^cg^FD0001^C00009^0^k9 kk~"),
        (AFTER, "SubAfter^FD0001^C00009^3^true^k9 kk^0^1795270930854^cg~"),
        (
            END,
            "EndTransaction^1795270939582^DefaultRegion^tpg^T1^FD07^TT^kk^127.0.0.1:29231^2^FD07^"
            "ROLLBACK_MESSAGE^false~",
        ),
        (RECALL, "Recall^1795270939582^DefaultRegion^pg^T1^FD08^true~"),
    ],
)
def test_records_have_upstreams_text(record: TraceRecord, shown: str) -> None:
    """Covers C-545; nulls are the word, separators the control characters."""
    assert encode_record(record) == text_of(shown)
    assert decode_trace(text_of(shown)) == [record]


def test_the_clouds_records_lack_time_and_group() -> None:
    """Covers C-544; ended as 5.x ends them, which 4.9 forgets."""
    text = encode_record(AFTER, cloud=True)
    assert text == text_of("SubAfter^FD0001^C00009^3^true^k9 kk^0~")
    read = decode_trace(text)[0]
    assert isinstance(read, TraceSubAfter)
    assert (read.timestamp, read.group_name, read.context_code) == (0, None, 0)
    assert encode_record(BEFORE, cloud=True) == encode_record(BEFORE)


def test_records_of_one_message_follow_each_other() -> None:
    """Covers C-542: SubBefore and SubAfter of a call in one body."""
    body = encode_record(BEFORE) + encode_record(AFTER)
    assert decode_trace(body) == [BEFORE, AFTER]


def test_old_and_new_forms_are_read() -> None:
    """W 5.10: Pub of 13 and 15 fields, SubAfter without code; unknown kinds are left out."""
    old = text_of("Pub^1^r^g^T^id^t^k^h^5^6^3^false~SubAfter^q^id^7^true^k~Later^1~")
    pub, after = decode_trace(old)
    assert isinstance(pub, TracePub)
    assert (pub.offset_msg_id, pub.success, pub.msg_type) == (None, False, 3)
    assert isinstance(after, TraceSubAfter)
    assert (after.cost_time, after.context_code) == (7, 0)
    (new,) = decode_trace(text_of("Pub^1^r^g^T^id^t^k^h^5^6^0^off^true^10.0.0.9~"))
    assert isinstance(new, TracePub)
    assert (new.offset_msg_id, new.client_host) == ("off", "10.0.0.9")


def test_keys_are_ids_and_words() -> None:
    """Covers C-543."""
    assert record_keys(AFTER) == ["C00009", "k9", "kk"]
    assert record_keys(BATCH) == ["FD00,FD01"]
    assert record_keys(RECALL) == ["FD08"]
    assert record_keys(replace(AFTER, keys="k\u3000x  l")) == ["C00009", "k\u3000x", "l"]


@pytest.mark.parametrize("keys", ["a\x01b\x02c", "a\x01b c", "a b\x02c"])
def test_separators_in_values_do_not_split_records(keys: str) -> None:
    """A property's value may hold U+0001 and U+0002; each becomes a space."""
    record = TraceSubBefore(1, None, "cg", "q", "id", 0, keys)
    (read,) = decode_trace(encode_record(record))
    assert isinstance(read, TraceSubBefore)
    assert read.keys == "a b c"


@pytest.mark.parametrize(
    "shown", ["Pub^1~", "Pub^x^r^g^T^id^t^k^h^5^6^0^off^true~", "SubBefore^1^r^g^q^id^^k~"]
)
def test_records_with_holes_are_refused(shown: str) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_trace(text_of(shown))


@given(st.lists(st.sampled_from(["Pub", "SubAfter", "SubBefore", "\x01", "\x02", "1", "x", "²"])))
def test_any_body_is_read_or_refused(parts: list[str]) -> None:
    """Hostile bodies raise RemoteProtocolError or nothing."""
    try:
        decode_trace("".join(parts))
    except RemoteProtocolError:
        pass


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63)])
def test_a_number_of_a_record_has_as_many_digits_as_a_long(number: int) -> None:
    (read,) = decode_trace(text_of(f"SubAfter^q^id^{number}^true^k~"))
    assert isinstance(read, TraceSubAfter)
    assert read.cost_time == number
    with pytest.raises(RemoteProtocolError, match="must be a number"):
        decode_trace(text_of(f"SubAfter^q^id^{'1' * 21}^true^k~"))


@pytest.mark.parametrize(
    ("shown", "code", "timestamp", "group"),
    [
        ("SubAfter^q^id^7^true^k~", 0, 0, None),
        ("SubAfter^q^id^7^true^k^4~", 4, 0, None),
        ("SubAfter^q^id^7^true^k^4^99~", 4, 0, None),
        ("SubAfter^q^id^7^true^k^4^99^cg~", 4, 99, "cg"),
        ("SubAfter^q^id^7^true^k^4^99^cg^later~", 4, 99, "cg"),
    ],
)
def test_each_form_of_a_subafter_is_read(
    shown: str, code: int, timestamp: int, group: str | None
) -> None:
    """W 5.10: by how many fields it has."""
    (read,) = decode_trace(text_of(shown))
    assert read == TraceSubAfter("q", "id", 7, True, "k", code, timestamp, group)


def test_each_form_of_a_pub_is_read() -> None:
    """W 5.10: one field fewer than the usual, as many, or more."""
    shown = "Pub^1^r^g^T^id^t^k^h^5^6^3^"
    for rest, offset_id, success, host in (
        ("true~", None, True, None),
        ("off^true~", "off", True, None),
        ("off^TRUE^10.0.0.9~", "off", True, "10.0.0.9"),
        ("off^false^10.0.0.9^later~", "off", False, "10.0.0.9"),
    ):
        (read,) = decode_trace(text_of(shown + rest))
        assert read == TracePub(
            1, "r", "g", "T", "id", "t", "k", "h", 5, 6, 3, offset_id, success, host
        )


@pytest.mark.parametrize("record", [PUB, BEFORE, END, RECALL])
def test_a_record_without_its_last_fields_is_refused(record: TraceRecord) -> None:
    fields = encode_record(record)[:-1].split("\x01")
    least = 13 if record is PUB else len(fields)
    for size in range(1, least):
        needed = size + 1
        with pytest.raises(RemoteProtocolError, match=f"has {size} fields, at least {needed} "):
            decode_trace("\x01".join(fields[:size]))
