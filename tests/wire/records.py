"""Stored records: the golden one, made from its fields, and any that can be."""

from __future__ import annotations

from hypothesis import strategies as st

from rocketstream.protocol.record import RecordFields, encode_record
from tests.wire.strategies import HOSTS, INT32, INT64, NAME, PORTS, TEXT

V4 = RecordFields(
    topic="T1",
    queue_id=3,
    flag=0,
    sys_flag=0,
    born_timestamp=1700000000000,
    born_host=("10.0.0.9", 53211),
    store_timestamp=1700000000005,
    store_host=("10.0.0.1", 10911),
    reconsume_times=0,
    prepared_transaction_offset=0,
    body=b"hello",
    properties="KEYS\x01k1\x02TAGS\x01TagA",
    queue_offset=7,
    physical_offset=1024,
)
RECORDS = st.builds(
    RecordFields,
    topic=NAME | st.just("t" * 127) | st.just("t" * 128),
    queue_id=INT32,
    flag=INT32,
    sys_flag=INT32,
    born_timestamp=INT64,
    born_host=st.tuples(HOSTS, PORTS),
    store_timestamp=INT64,
    store_host=st.tuples(HOSTS, PORTS),
    reconsume_times=INT32,
    prepared_transaction_offset=INT64,
    body=st.binary(max_size=60),
    properties=TEXT,
    queue_offset=INT64,
    physical_offset=INT64,
)

VALUES = {name: getattr(V4, name) for name in RecordFields.__slots__}


def record(**changes: object) -> bytes:
    """Return the golden record with changes."""
    return bytes(encode_record(RecordFields(**{**VALUES, **changes})))
