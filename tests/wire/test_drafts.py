"""Drafts: records before the store has a place for them."""

from __future__ import annotations

import zlib

import pytest

from rocketstream import limits
from rocketstream.errors import LocalProtocolError
from rocketstream.protocol.codes import MessageSysFlag
from rocketstream.protocol.record import (
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_CRC,
    SEAL_BYTES,
    check_record,
    draft_parts,
    has_seal,
    new_draft,
    own_hosts,
    pack_host,
    read_head,
    record_of,
    sealable,
)
from tests.kits import vectors

BORN, STORE = pack_host("10.0.0.9", 53211), pack_host("10.0.0.1", 10911)
WIDE = pack_host("::1", 1)


@pytest.mark.parametrize("body", [b"", b"hello", b"a"], ids=["none", "low crc", "high crc"])
@pytest.mark.parametrize("hosts", [(BORN, STORE), (WIDE, STORE), (BORN, WIDE), (WIDE, WIDE)])
@pytest.mark.parametrize("topic", ["T1", "T" * 127, "T" * 128])
def test_a_draft_becomes_the_record_of_its_message(
    body: bytes, hosts: tuple[bytes, bytes], topic: str
) -> None:
    """Also of a body whose CRC has its highest bit, which Java leaves out."""
    assert (zlib.crc32(b"a") >> 31, zlib.crc32(b"hello") >> 31) == (1, 0)
    draft = new_draft(
        topic, 3, 7, 1, 1_700_000_000_000, *hosts, body, sealable(b"KEYS\x01k1\x02"), 9, ("k1",),
        reconsume_times=4, prepared_transaction_offset=5,
    )  # fmt: skip
    record = record_of(draft, 6, 1_024, 1_700_000_000_009)
    assert draft[1] == len(record) == check_record(record, 0).size
    head = read_head(record)
    assert (head.topic, head.queue_id, head.flag, head.queue_offset) == (topic, 3, 7, 6)
    assert head.magic == (MAGIC_V1 if len(topic) < 128 else MAGIC_V2)
    assert (head.physical_offset, head.store_timestamp) == (1_024, 1_700_000_000_009)
    assert (head.born_timestamp, head.reconsume_times) == (1_700_000_000_000, 4)
    assert head.prepared_transaction_offset == 5
    assert (head.born_host_bytes, head.store_host_bytes) == hosts
    assert head.body_crc == zlib.crc32(body) & 0x7FFFFFFF
    assert record[head.body_start :][: head.body_size] == body
    assert has_seal(record, 1_024)
    assert (draft[12], draft[13]) == (9, ("k1",))


def test_a_draft_of_javas_message_has_javas_bytes() -> None:
    text = b"KEYS\x01k1\x02TAGS\x01TagA"
    draft = new_draft("T1", 3, 0, 0, 1_700_000_000_000, BORN, STORE, b"hello", text)
    assert record_of(draft, 7, 1_024, 1_700_000_000_005) == vectors.RECORD_V4


@pytest.mark.parametrize(
    ("said", "hosts", "has"),
    [
        (0x30, (BORN, STORE), 0),
        (0x20, (WIDE, STORE), 0x10),
        (0, (BORN, WIDE), 0x20),
        (MessageSysFlag.COMPRESSED, (WIDE, WIDE), 0x30 | MessageSysFlag.COMPRESSED),
    ],
)
def test_stale_host_bits_of_a_sender_are_corrected(
    said: int, hosts: tuple[bytes, bytes], has: int
) -> None:
    """A client may not make a record unreadable by claiming IPv6 hosts."""
    assert own_hosts(said, *hosts) == has
    record = record_of(new_draft("T", 0, 0, said, 0, *hosts, b"x", b""), 0, 0, 0)
    assert read_head(record).sys_flag == has


@pytest.mark.parametrize(("queue_id", "flag"), [(1 << 31, 0), (0, -(1 << 31) - 1)])
def test_a_number_out_of_its_range_is_refused(queue_id: int, flag: int) -> None:
    draft = new_draft("T", queue_id, flag, 0, 0, BORN, STORE, b"x", b"")
    with pytest.raises(LocalProtocolError, match="cannot carry"):
        draft_parts(draft, 0, 0, 0)


def test_properties_of_a_client_that_look_like_a_seal_stay_as_they_are() -> None:
    """Too long for one of their own, and with its name at the end."""
    text = b"a" * (limits.PROPERTIES_BYTES_MAX - SEAL_BYTES) + PROPERTIES_CRC + b"x" * 16
    assert sealable(text) == text
    record = record_of(new_draft("T", 0, 0, 0, 0, BORN, STORE, b"x", text), 0, 0, 0)
    assert record.endswith(text)
