"""Entries of a consume queue (code 321), written and read many at a time."""

from __future__ import annotations

import pytest

from rocketstream.errors import RemoteProtocolError
from rocketstream.protocol.bodies import (
    ConsumeQueueData,
    QueryConsumeQueueResponseBody,
    SubscriptionData,
    read_queue_entries,
)


def test_entries_are_written_as_the_general_rules_write_them() -> None:
    entries = [(0, 120, -5), (120, 2_147_483_647, 0)]
    listed = [ConsumeQueueData(physic_offset=o, physic_size=s, tags_code=c) for o, s, c in entries]
    for body in (
        QueryConsumeQueueResponseBody(max_queue_index=2),
        QueryConsumeQueueResponseBody(SubscriptionData("T"), 'a "queueData":[] in a text'),
    ):
        assert body.encode_with([]) == body.encode()
        written = body.encode_with(entries)
        body.queue_data = listed
        assert written == body.encode()


def test_entries_are_read_as_lists() -> None:
    body = QueryConsumeQueueResponseBody(max_queue_index=2)
    found = read_queue_entries(body.encode_with([(0, 120, -5), (120, 80, 77)]))
    assert (found.physical, found.sizes, found.codes) == ([0, 120], [120, 80], [-5, 77])
    assert found.unknown == 0
    assert read_queue_entries(b"").codes == []
    assert read_queue_entries(b'{"maxQueueIndex":3}').codes == []


def test_a_hash_kept_beside_the_entry_is_taken_from_there() -> None:
    """With ``enableConsumeQueueExt`` the entry has an address in its place."""
    beside = (
        b'{"queueData":[{"physicOffset":1,"physicSize":2,"tagsCode":-9000000000000000000,'
        b'"extendDataJson":"{\\"tagsCode\\":77,\\"size\\":20}"},'
        b'{"physicOffset":3,"physicSize":2,"tagsCode":-9000000000000000001,'
        b'"msg":"Cq extend not exist!addr: -9000000000000000001"}]}'
    )
    found = read_queue_entries(beside)
    assert found.codes[0] == 77
    assert found.unknown == 1


@pytest.mark.parametrize(
    "hostile",
    [
        b"[]",
        b'{"queueData":7}',
        b'{"queueData":[7]}',
        b'{"queueData":[{"physicOffset":1}]}',
        b'{"queueData":[{"physicOffset":"1","physicSize":2,"tagsCode":3}]}',
        b'{"queueData":[{"physicOffset":1,"physicSize":2,"tagsCode":3,"extendDataJson":"[]"}]}',
    ],
)
def test_what_is_no_list_of_entries_is_refused(hostile: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        read_queue_entries(hostile)
