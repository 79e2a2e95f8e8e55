"""A message consumed on request, as a task does it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from rocketstream.model import ConsumeConcurrentlyStatus, ConsumeOrderlyStatus
from rocketstream.protocol.bodies import ConsumeMessageDirectlyResult
from rocketstream.spark.listener.on_request import consume_one
from rocketstream.spark.listener.sink import sink_options
from rocketstream.spark.options import consume_options
from tests.spark.by_value_program import HIDE
from tests.unit.spark.records import record

RECORD = record(body=b"now", properties=b"RETRY_TOPIC\x01orders", topic=b"%RETRY%g")
LATER = ConsumeConcurrentlyStatus.RECONSUME_LATER


def asked(listener: Any, orderly: bool = False, **options: Any) -> ConsumeMessageDirectlyResult:
    given = {"group": "g", "nameServer": "h:1"} | options
    made = consume_options(sink_options(listener, orderly, given))
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


PACK = """
import sys
from pyspark import cloudpickle
from rocketstream.model import ConsumeConcurrentlyStatus
from rocketstream.spark.listener.on_request import consume_one
from rocketstream.spark.options import consume_options
from rocketstream.spark.listener.sink import sink_options
from rocketstream.spark.setup.shipping import ship_by_value

def listener(messages):
    return ConsumeConcurrentlyStatus.RECONSUME_LATER

ship_by_value()
options = consume_options(sink_options(listener, False, {"group": "g", "nameServer": "h:1"}))
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
