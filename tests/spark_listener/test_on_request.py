"""A message consumed on request, as a task does it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rocketstream.client.consumer.listener import listener_of
from rocketstream.model import ConsumeConcurrentlyStatus, ConsumeOrderlyStatus
from rocketstream.protocol.bodies import ConsumeMessageDirectlyResult
from rocketstream.protocol.message_ext import decode_message
from rocketstream.spark.listener import on_request as asking
from rocketstream.spark.listener.on_request import OnRequest, consume_one
from rocketstream.spark.listener.sink import sink_options
from tests.kits.records import record
from tests.kits.spark.by_value_program import HIDE

RECORD = record(body=b"now", properties=b"RETRY_TOPIC\x01orders", topic=b"%RETRY%g")
LATER = ConsumeConcurrentlyStatus.RECONSUME_LATER


def asked(listener: Any, orderly: bool = False, **options: Any) -> ConsumeMessageDirectlyResult:
    given = {"group": "g", "nameServer": "h:1"} | options
    made = sink_options(listener, orderly, given)
    return ConsumeMessageDirectlyResult.decode(consume_one(made, RECORD, "broker-a"))


def test_the_listener_gets_the_message_under_its_first_topic() -> None:
    """Covers C-269 and C-261."""

    def listener(messages: list[Any], context: Any) -> ConsumeConcurrentlyStatus:
        (message,) = messages
        assert (message.topic, message.body, message.broker_name) == ("orders", b"now", "broker-a")
        return LATER

    assert (result := asked(listener)).consume_result == "CR_LATER", result
    assert not result.order


def test_in_order_the_answer_is_an_orderly_one() -> None:
    """Covers C-295."""

    async def listener(messages: list[Any]) -> ConsumeOrderlyStatus:
        await asyncio.sleep(0)
        return ConsumeOrderlyStatus.SUCCESS

    result = asked(listener, orderly=True)
    assert (result.consume_result, result.order, result.auto_commit) == ("CR_SUCCESS", True, True)


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_whatever_the_listener_raises_is_the_answer(error: type[BaseException]) -> None:
    def listener(messages: list[Any]) -> ConsumeConcurrentlyStatus:
        raise error("not this one")

    async def awaited(messages: list[Any]) -> ConsumeConcurrentlyStatus:
        raise error("not this one")

    for each in (listener, awaited):
        result = asked(each)
        assert result.consume_result == "CR_THROW_EXCEPTION"
        assert result.remark == f"{error.__name__}('not this one')"


@pytest.mark.parametrize("blocks", [False, True])
def test_a_listener_that_hangs_is_left_behind(blocks: bool, tmp_path: Path) -> None:
    """A coroutine that never awaits too, although its loop could not end it."""
    released = tmp_path / "released"

    def listener(messages: list[Any]) -> None:
        while not released.exists():
            threading.Event().wait(0.01)

    async def blocking(messages: list[Any]) -> None:
        listener(messages)

    try:
        result = asked(blocking if blocks else listener, consumeTimeout=0.001)
    finally:
        released.touch()
        for thread in threading.enumerate():
            if thread.name.startswith("ConsumeMessageDirectly"):
                thread.join(20)
    assert result.consume_result == "CR_THROW_EXCEPTION"
    assert "longer than consumeTimeout (0.001 min)" in (result.remark or "")
    assert (result.order, result.spent_time_mills) == (False, 60)


class Column:
    """The call of a function, as Spark makes columns of it."""

    def __init__(self, function: Any, kind: str) -> None:
        assert kind == "binary"
        self.function = function
        self.is_deterministic = True

    def asNondeterministic(self) -> Column:
        self.is_deterministic = False
        return self

    def __call__(self, name: str) -> Column:
        return self

    def alias(self, name: str) -> Column:
        assert name == "answer"
        return self


class Session:
    """A session whose one job calls the function for each row of a range."""

    def __init__(self) -> None:
        self.meanwhile: Any = lambda: None
        self.ranges: list[tuple[int, ...]] = []
        self._column: Any = None

    def range(self, *bounds: int) -> Session:
        self.ranges.append(bounds)
        return self

    def select(self, column: Column) -> Session:
        self._column = column
        return self

    def collect(self) -> list[Any]:
        self.meanwhile()
        assert not self._column.is_deterministic
        start, end, step, _ = self.ranges[-1]
        return [
            SimpleNamespace(answer=bytearray(self._column.function(at)))
            for at in range(start, end, step)
        ]


def test_a_message_on_request_is_one_row_of_one_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Called once: Spark may call a deterministic function again."""
    monkeypatch.setattr(asking, "functions", SimpleNamespace(udf=Column))
    session, got = Session(), []

    def listener(messages: list[Any]) -> ConsumeConcurrentlyStatus:
        got.append(messages[0].body)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    options = sink_options(listener, False, {"group": "g", "nameServer": "h:1"})
    # The function as it is: only a task would unpack it.
    monkeypatch.setattr(asking, "unpack", lambda text, orderly: listener_of(listener))
    on_request = OnRequest(session, options)
    message = decode_message(RECORD, "broker-a")
    assert on_request(message, "broker-a").consume_result == "CR_SUCCESS"
    assert (got, session.ranges) == ([b"now"], [(0, 1, 1, 1)])

    busy: list[ConsumeMessageDirectlyResult] = []
    session.meanwhile = lambda: busy.append(on_request(message, "broker-a"))
    assert on_request(message, "broker-a").consume_result == "CR_SUCCESS"
    assert "another message is being consumed" in (busy[0].remark or "")

    def broken() -> None:
        raise OSError("the session is gone")

    session.meanwhile = broken
    failed = on_request(message, "broker-a")
    assert failed.consume_result == "CR_THROW_EXCEPTION"
    assert "the session is gone" in (failed.remark or "")


PACK = """
import sys
from pyspark import cloudpickle
from rocketstream.model import ConsumeConcurrentlyStatus
from rocketstream.spark.listener.on_request import consume_one
from rocketstream.spark.listener.sink import sink_options
from rocketstream.spark.setup.shipping import ship_by_value

def listener(messages):
    return ConsumeConcurrentlyStatus.RECONSUME_LATER

ship_by_value()
options = sink_options(listener, False, {"group": "g", "nameServer": "h:1"})
record = bytes.fromhex(sys.argv[1])
sys.stdout.buffer.write(cloudpickle.dumps(lambda: consume_one(options, record, "b")))
"""
UNPACK = """
from pyspark import cloudpickle
print(cloudpickle.loads(sys.stdin.buffer.read())().decode())
"""


def test_workers_need_not_have_the_package() -> None:
    """As with ``register(spark, by_value=True)``."""
    pack = [sys.executable, "-c", PACK, RECORD.hex()]
    packed = subprocess.run(pack, capture_output=True, check=True, timeout=60).stdout
    unpack = [sys.executable, "-c", HIDE + UNPACK]
    done = subprocess.run(unpack, input=packed, capture_output=True, check=True, timeout=60)
    assert json.loads(done.stdout)["consumeResult"] == "CR_LATER"
