"""Records that end with the CRC of all before it, as brokers of 5.x may store them."""

from __future__ import annotations

import zlib

import pytest

from rocketstream.errors import DamagedMessageError, RemoteProtocolError
from rocketstream.model import MessageQueue
from rocketstream.protocol.message_ext import check_bodies, decode_messages, decode_pulled
from tests.wire.records import record


def sealed(properties: str, **changes: object) -> bytes:
    """Return a record as brokers with enabledAppendPropCRC store it (CommitLog, createCrc32)."""
    data = record(properties=f"{properties}\x02__CRC32#\x010000000000\x02", **changes)
    digits = f"{zlib.crc32(data[:-20]) & 0x7FFFFFFF:010d}"[::-1]
    return data[:-11] + digits.encode() + b"\x02"


@pytest.mark.parametrize("size", [5, 20_000])
def test_a_record_that_ends_with_its_own_crc_is_compared_with_it(size: int) -> None:
    """Tags, keys and the place in the queue are in it; a bit that flips there is found."""
    queue = MessageQueue("T1", "b", 3)
    good = sealed("KEYS\x01k\x02TAGS\x01TagA", body=b"x" * size)
    messages, whole, own = decode_pulled(good * 2, queue, check_crc=True)
    assert whole
    assert own
    assert messages[0].properties == {"KEYS": "k", "TAGS": "TagA"}
    for at in (27, 50, good.rindex(b"TagA"), len(good) - 3):
        bad = bytearray(good)
        bad[at] ^= 1
        messages, whole, _ = decode_pulled(good + bytes(bad), queue, check_crc=True)
        assert not whole
        assert len(check_bodies(messages, queue)) == 1
        with pytest.raises(DamagedMessageError, match=r"the record of .*check_crc=False"):
            check_bodies(messages[1:], queue)
        with pytest.raises(RemoteProtocolError, match="the CRC at its end"):
            decode_messages(bytes(bad), check_crc=True)
        assert decode_pulled(bytes(bad), queue, check_crc=False)[1]


def test_a_property_of_that_name_elsewhere_is_no_crc_of_the_record() -> None:
    """A broker that does not append it stores what a sender copied of another message."""
    queue = MessageQueue("T1", "b", 3)
    for text in ("__CRC32#\x010000000000\x02TAGS\x01t", "__CRC32#\x010000000000"):
        assert decode_pulled(record(properties=text), queue, check_crc=True)[1]
