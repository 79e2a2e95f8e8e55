"""Drafts: the parts of usual records, written with less work than :func:`new_record` takes."""

from __future__ import annotations

import zlib

import pytest

from rocketstream.protocol.codes import MessageSysFlag
from rocketstream.protocol.drafts import (
    Draft,
    draft_parts,
    draft_size,
    draft_tail,
    may_be_draft,
    record_sizes,
    topic_head,
)
from rocketstream.protocol.record import new_record, pack_host, sealable, stamp_record

BORN, STORE = pack_host("10.0.0.9", 53211), pack_host("10.0.0.1", 10911)
WIDE = pack_host("::1", 1)


@pytest.mark.parametrize("body", [b"", b"hello", b"a"], ids=["none", "low crc", "high crc"])
def test_a_draft_is_the_record_of_its_message(body: bytes) -> None:
    """Also of a body whose CRC has its highest bit, which Java leaves out."""
    assert (zlib.crc32(b"a") >> 31, zlib.crc32(b"hello") >> 31) == (1, 0)
    tail = draft_tail(topic_head(b"T1"), b"KEYS\x01k1\x02")
    draft: Draft = (("T1", 3), 7, 1, 1_700_000_000_000, BORN, STORE, body, tail, 0, ())
    record = new_record(
        b"T1", 3, 7, 1, 1_700_000_000_000, BORN, STORE, 0, 0, body, sealable(b"KEYS\x01k1\x02")
    )
    stamp_record(record, 5, 1_024, 1_700_000_000_009)
    size = draft_size(draft)
    assert (size, record_sizes([draft, draft])) == (len(record), [size, size])
    assert b"".join(draft_parts(draft, size, 5, 1_024, 1_700_000_000_009)) == record


@pytest.mark.parametrize(
    ("topic", "sys_flag", "hosts", "may"),
    [
        (b"T", 0, (BORN, STORE), True),
        (b"", 0, (BORN, STORE), False),
        (b"T" * 127, 0, (BORN, STORE), True),
        (b"T" * 128, 0, (BORN, STORE), False),
        (b"T", MessageSysFlag.COMPRESSED, (BORN, STORE), True),
        (b"T", MessageSysFlag.TRANSACTION_PREPARED, (BORN, STORE), False),
        (b"T", MessageSysFlag.TRANSACTION_ROLLBACK, (BORN, STORE), False),
        (b"T", MessageSysFlag.BORN_HOST_V6, (BORN, STORE), False),
        (b"T", MessageSysFlag.STORE_HOST_V6, (BORN, STORE), False),
        (b"T", 0, (WIDE, STORE), False),
        (b"T", 0, (BORN, WIDE), False),
        (b"T", 0, (WIDE, WIDE), False),
    ],
)
def test_only_usual_messages_are_drafts(
    topic: bytes, sys_flag: int, hosts: tuple[bytes, bytes], may: bool
) -> None:
    assert may_be_draft(topic, sys_flag, *hosts) is may
