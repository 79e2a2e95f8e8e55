"""A broker of lite topics that does what the test says, and a consumer of it."""

from __future__ import annotations

import threading
from typing import Any

from rocketstream import ConsumeConcurrentlyStatus, LitePushConsumer, LiteTopicContext, MessageExt
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import PopLiteMessageResponseHeader
from rocketstream.protocol.record import RecordFields, encode_record
from tests.kits.client.fake_broker import GROUP, TOPIC, WAIT_S, Asked, FakeBroker, ok
from tests.plugins.waiting import wait_until

POP = RequestCode.POP_LITE_MESSAGE
TELL = RequestCode.LITE_SUBSCRIPTION_CTL
ACK = RequestCode.ACK_MESSAGE
HIDE = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
LATER = ConsumeConcurrentlyStatus.RECONSUME_LATER


def pop(command: RemotingCommand) -> RemotingCommand | None:
    """Answer the question for no messages at once; leave the others to the test."""
    return RemotingCommand.response(210) if ext(command)["maxMsgNum"] == "0" else None


def ext(command: RemotingCommand) -> dict[str, str]:
    return command.ext_fields or {}


def lite_broker(name: str = "broker-a") -> FakeBroker:
    made = FakeBroker(name=name)
    made.on |= {POP: pop, TELL: lambda _: ok(), ACK: lambda _: ok(), HIDE: lambda _: ok()}
    return made


class Listener:
    """Keeps what it gets; answers what a test put for a body, when the test lets it."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, bytes]] = []
        self.answers: dict[bytes, list[object]] = {}
        self.holds: dict[bytes, threading.Event] = {}

    def __call__(self, messages: list[MessageExt], context: LiteTopicContext) -> Any:
        (message,) = messages
        self.seen.append((context.lite_topic, message.body))
        if message.body in self.holds:
            assert self.holds[message.body].wait(WAIT_S)
        answers = self.answers.get(message.body)
        return answers.pop(0) if answers else SUCCESS

    def wait(self, count: int) -> list[tuple[str, bytes]]:
        wait_until(lambda: len(self.seen) >= count, f"{count} calls")
        return self.seen


def consumer(broker: FakeBroker, listener: Any, *names: str, **settings: Any) -> LitePushConsumer:
    return LitePushConsumer(
        GROUP, TOPIC, namesrv_addr=broker.address, listener=listener, lite_topics=names, **settings
    )


def popped(*places: tuple[str, int], topic: str = TOPIC) -> RemotingCommand:
    """Return an answer with a message for each lite topic and offset; its body names both."""
    records = b"".join(
        bytes(
            encode_record(
                RecordFields(
                    topic=topic, queue_id=2, flag=0, sys_flag=0, born_timestamp=1,
                    born_host=("127.0.0.1", 1), store_timestamp=2, store_host=("127.0.0.1", 2),
                    reconsume_times=0, prepared_transaction_offset=0,
                    body=f"{name}{offset}".encode(),
                    properties=f"__LITE_TOPIC\x01{name}\x02INNER_MULTI_DISPATCH\x01%LMQ%${topic}$"
                    f"{name}\x02INNER_MULTI_QUEUE_OFFSET\x01{offset}",
                    queue_offset=77, physical_offset=1000 + offset,
                )
            )
        )
        for name, offset in places
    )  # fmt: skip
    counts = ";".join(["0"] * len(places))
    header = PopLiteMessageResponseHeader(500, 60_000, 999, order_count_info=counts)
    return RemotingCommand.response(0, "FOUND", header, records)


def wait_pop(broker: FakeBroker, count: int = 1) -> Asked:
    """Return the last of ``count`` questions for messages."""
    return broker.wait_for(POP, count, lambda asked: asked.ext["maxMsgNum"] != "0")[-1]
