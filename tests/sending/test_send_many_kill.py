"""kill -9 of the broker amid ``send_many``: what it calls stored is there, the rest is told.

Each kill comes while rows are read, with requests under way; the next server on the store gets the
rest, and the rows that were not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from rocketstream import Producer
from rocketstream.client.producer.many import SendManyResult
from rocketstream.errors import SendManyError
from tests.kits.kills import QUEUES, TOPIC, Server, create_topic, everything, running

pytestmark = [pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(300)]

KILLS = 5
BATCHES, ROWS, KEYS = 12, 700, 31
SCHEMA = pa.schema([("body", pa.string()), ("shardingKey", pa.string())])
Stored = dict[tuple[int, int], str]


def numbered(first: int) -> pa.RecordBatch:
    numbers = range(first, first + ROWS)
    bodies, keys = [f"m-{n}" for n in numbers], [f"k-{n % KEYS}" for n in numbers]
    return pa.record_batch([pa.array(bodies), pa.array(keys)], SCHEMA)


def note(result: SendManyResult, bodies: list[str], stored: Stored) -> None:
    """Keep where the result says that messages are."""
    for body, row in zip(bodies, result.table().to_pylist(), strict=True):
        if row["status"] is not None:
            assert row["status"] == "SEND_OK"
            stored[row["queueId"], row["queueOffset"]] = body


def send(server: Server, waiting: list[pa.RecordBatch], kill_at: int, stored: Stored) -> None:
    """Send what waits and kill the server when so much was read; what is left waits again."""
    read: list[pa.RecordBatch] = []

    def reading() -> Iterator[pa.RecordBatch]:
        while waiting:
            if len(read) == kill_at:
                server.kill()
            read.append(waiting.pop(0))
            yield read[-1]

    settings = {"send_msg_timeout_ms": 2_000, "retry_times_when_send_failed": 1}
    with Producer("chaos-many", namesrv_addr=server.namesrv_addr, **settings) as producer:  # type: ignore[arg-type]
        reader = pa.RecordBatchReader.from_batches(read_schema(waiting), reading())
        try:
            result, rest = producer.send_many(TOPIC, reader), None
        except SendManyError as error:
            result, rest = error.result, error.result.rest
    bodies = [body for batch in read for body in batch.column("body").to_pylist()]
    assert len(result) == len(bodies)
    note(result, bodies, stored)
    if rest is not None:
        assert result.stored_count + rest.num_rows == len(bodies)
        again = rest.select(["body", "shardingKey"]).combine_chunks().to_batches()
        waiting[:0] = again


def read_schema(waiting: list[pa.RecordBatch]) -> pa.Schema:
    return waiting[0].schema if waiting else SCHEMA


def test_what_send_many_calls_stored_survives_kills_and_the_rest_can_be_sent(
    tmp_path: Path,
) -> None:
    waiting: list[pa.RecordBatch] = []
    stored: Stored = {}
    for round_ in range(KILLS + 1):
        with running(tmp_path / "store") as server:
            create_topic(server.broker_addr)
            waiting += [numbered((round_ * BATCHES + n) * ROWS) for n in range(BATCHES)]
            kill_at = 3 + round_ * 5 % 9 if round_ < KILLS else 1_000_000
            send(server, waiting, kill_at, stored)
    assert not waiting
    with running(tmp_path / "store") as server:
        held = everything(server.broker_addr)
    found = {
        (queue.queue_id, message.queue_offset): message.body.decode()
        for queue, messages in held.items()
        for message in messages
    }
    assert {place: found.get(place) for place in stored} == stored
    total = (KILLS + 1) * BATCHES * ROWS
    assert {*found.values()} == {f"m-{number}" for number in range(total)}
    assert len({queue_id for queue_id, _ in stored}) == QUEUES
    last: dict[int, int] = {}
    seen: set[int] = set()
    for place in sorted(found):
        number = int(found[place].removeprefix("m-"))
        if number not in seen:  # a repeat may come later, never a first one before its time
            seen.add(number)
            assert last.get(number % KEYS, -1) < number
            last[number % KEYS] = number
