"""A simulated broker with a model of Apache 5.5's lite topics, which ours has not.

Law: a lite topic is the messages of its parent topic that name it, in the order of the log; whose
given it is stands in memory alone, and offsets are written now and then, as Apache's are.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, cast

from rocketstream.protocol.bodies import LiteSubscriptionCtlRequestBody, LiteSubscriptionData
from rocketstream.protocol.codes import PopAnswer, RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    PopLiteMessageRequestHeader,
    PopLiteMessageResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
)
from rocketstream.protocol.lite import LITE_PREFIX, REVIVE_QUEUE_ID, lite_queue_name
from rocketstream.protocol.message_ext import MessageExt, decode_messages
from rocketstream.protocol.properties import (
    PROPERTY_INNER_MULTI_QUEUE_OFFSET,
    PROPERTY_LITE_TOPIC,
)
from rocketstream.protocol.record import RecordFields, encode_record
from rocketstream.server.broker.broker import Broker
from rocketstream.server.dispatch import ok
from rocketstream.transport.connection import Connection
from rocketstream.transport.sharing import AnswerSteps

FORGOTTEN_MS: Final = 180_000
"""A client that was not heard of for so long has subscribed nothing any more."""
_LOOK_S: Final = 0.05
"""How often a question that is held looks for messages."""
_READ_AT_ONCE: Final = 32
_Key = tuple[str, str]
"""A group, and the name of a lite topic's queue."""


@dataclass
class _Given:
    """The messages of one lite topic that a member of a group has, and whether others may.

    Attributes:
        attempt: the question they were the answer to.
        pop_time: when it was answered; receipts name it.
        visible_at: by offset, when others may have it.
        received: by offset, how often it was given before.
        acked: the offsets that are acknowledged.
    """

    attempt: str | None
    pop_time: int
    visible_at: dict[int, float]
    received: dict[int, int]
    acked: set[int] = field(default_factory=set)

    @property
    def left(self) -> list[int]:
        """The offsets that are not acknowledged."""
        return [offset for offset in self.visible_at if offset not in self.acked]


class LiteTopicBroker(Broker):
    """A broker whose topic ``parent`` has lite topics.

    Args:
        parent: the parent topic.
        kept: what outlives this broker: the offsets it has written.
        persist_ms: how often it writes them.
        given, more: see ``Broker``.

    Attributes:
        messages: by the name of a lite topic's queue, its messages.
        offsets: the offset of each group in each.
    """

    def __init__(
        self, parent: str, kept: dict[_Key, int], persist_ms: float, *given: Any, **more: Any
    ) -> None:
        super().__init__(*given, **more)
        self.messages: dict[str, list[MessageExt]] = defaultdict(list)
        self.offsets: dict[_Key, int] = dict(kept)
        self._parent, self._kept, self._persist_s = parent, kept, persist_ms / 1000
        self._read: dict[int, int] = {}
        self._begins: dict[_Key, int] = {}
        """Where a group is to go on; forgotten when the broker ends."""
        self._given: dict[_Key, _Given] = {}
        self._subscribed: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._heard_ms: dict[tuple[str, str], float] = {}
        self._answers: dict[int, Callable[[Connection, RemotingCommand], RemotingCommand | None]]
        self._answers = {
            RequestCode.LITE_SUBSCRIPTION_CTL: self._subscribe,
            RequestCode.POP_LITE_MESSAGE: self._pop,
            RequestCode.ACK_MESSAGE: self._acknowledge,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: self._hide,
        }

    async def start(self) -> None:
        """Start, and write offsets from time to time."""
        await super().start()
        asyncio.get_running_loop().call_later(self._persist_s, self._write_offsets)

    async def close(self) -> None:
        """Stop, with all offsets written."""
        self._kept.update(self.offsets)
        await super().close()

    def _write_offsets(self) -> None:
        self._kept.update(self.offsets)
        asyncio.get_running_loop().call_later(self._persist_s, self._write_offsets)

    def _dispatch(self, connection: Connection, request: RemotingCommand) -> AnswerSteps | None:
        answer = self._answers.get(request.code)
        if request.code == RequestCode.QUERY_CONSUMER_OFFSET:
            topic = (request.ext_fields or {}).get("topic", "")
            answer = self._query if topic.startswith(LITE_PREFIX) else None
        if answer is None or not self.codes:
            return super()._dispatch(connection, request)
        if (response := answer(connection, request)) is not None:
            connection.reply(request, response)
        return None

    def read_on(self) -> None:
        """Sort the messages that came since into their lite topics."""
        store, new = self.store, cast(list[MessageExt], [])
        for queue_id in store.queue_ids(self._parent):
            offset, end = self._read.get(queue_id, 0), store.max_offset(self._parent, queue_id)
            while offset < end:
                result = store.get(self._parent, queue_id, offset, _READ_AT_ONCE)
                if result.next_begin_offset <= offset:
                    break
                for part in result.records:
                    new += decode_messages(part, self.config.broker_name)
                offset = result.next_begin_offset
            self._read[queue_id] = offset
        for message in sorted(new, key=lambda each: each.commit_log_offset):
            if (name := message.properties.get(PROPERTY_LITE_TOPIC)) is not None:
                self.messages[lite_queue_name(self._parent, name)].append(message)

    # --- requests ---------------------------------------------------------------------------------

    def _subscribe(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        for told in LiteSubscriptionCtlRequestBody.decode(bytes(request.body)).subscription_set:
            client = told.group, told.client_id
            self._heard_ms[client] = self.controller.monotonic_ms()
            queues = {lite_queue_name(self._parent, name) for name in told.lite_topic_set}
            match told.action:
                case "PARTIAL_ADD":
                    self._subscribed[client] |= queues
                    self._move(told, queues)
                case "PARTIAL_REMOVE":
                    self._subscribed[client] -= queues
                case _:  # all of them; COMPLETE_REMOVE names none
                    self._subscribed[client] = queues
        return ok()

    def _move(self, told: LiteSubscriptionData, queues: set[str]) -> None:
        """Have a group go on elsewhere; what its members have is theirs no more."""
        option = told.offset_option
        self.read_on()
        for queue in queues if option is not None else ():
            key, end = (told.group, queue), len(self.messages[queue])
            assert option is not None
            match option.kind, option.value:
                case "OFFSET", offset:
                    self._begins[key] = min(offset, end)
                case "TAIL_N", count:
                    self._begins[key] = max(self._begin(key) - count, 0)
                case _, 1:
                    self._begins[key] = 0
                case _, 2:
                    self._begins[key] = end
                case _:
                    continue
            self._given.pop(key, None)

    def _begin(self, key: _Key) -> int:
        """Return where a group goes on; one that is new in a lite topic begins at its newest."""
        begin = self._begins.get(key, self.offsets.get(key))
        if begin is None:
            begin = self._begins[key] = max(len(self.messages[key[1]]) - 1, 0)
        return begin

    def _pop(
        self, connection: Connection, request: RemotingCommand, until_ms: float | None = None
    ) -> RemotingCommand | None:
        asked, now_ms = request.header(PopLiteMessageRequestHeader), self.controller.monotonic_ms()
        until_ms = now_ms + asked.poll_time if until_ms is None else until_ms
        client = asked.consumer_group, asked.client_id
        if now_ms - self._heard_ms.get(client, now_ms) > FORGOTTEN_MS:
            self._subscribed.pop(client, None)
        self.read_on()
        records, counts = b"", list[str]()
        for queue in sorted(self._subscribed.get(client, ())):
            key = asked.consumer_group, queue
            for offset in self._give(key, asked, asked.max_msg_num - len(counts), now_ms):
                records += _record(self.messages[queue][offset], offset)
                count = self._given[key].received[offset]
                counts.append(f"0 qo0%{offset} {count}" if count else "0")
        if counts:
            now = self.controller.now_ms()
            header = PopLiteMessageResponseHeader(
                now, asked.invisible_time, REVIVE_QUEUE_ID, order_count_info=";".join(counts)
            )
            return RemotingCommand.response(PopAnswer.FOUND, "FOUND", header, records)
        if not asked.max_msg_num or now_ms >= until_ms:
            return RemotingCommand.response(PopAnswer.POLLING_TIMEOUT)
        loop = asyncio.get_running_loop()
        loop.call_later(_LOOK_S, self._look_again, connection, request, until_ms)
        return None

    def _look_again(
        self, connection: Connection, request: RemotingCommand, until_ms: float
    ) -> None:
        if not connection.is_closed:
            answer = self._pop(connection, request, until_ms)
            if answer is not None:
                connection.reply(request, answer)

    def _give(
        self, key: _Key, asked: PopLiteMessageRequestHeader, most: int, now_ms: float
    ) -> range:
        """Return the offsets a member gets of a lite topic: none while another has some of it."""
        given, end = self._given.get(key), len(self.messages[key[1]])
        same = given is not None and given.attempt is not None and given.attempt == asked.attempt_id
        if most <= 0 or not end:
            return range(0)
        if given is not None and not same and any(
            given.visible_at[offset] > now_ms for offset in given.left
        ):  # fmt: skip
            return range(0)
        begin = self._begin(key)
        found = range(begin, min(begin + most, end))
        if found:
            before = {} if given is None else given.received
            left = () if given is None else given.left
            self._given[key] = _Given(
                asked.attempt_id,
                self.controller.now_ms(),
                dict.fromkeys(found, now_ms + asked.invisible_time),
                {at: before.get(at, 0) + (at in left and not same) for at in found},
            )
        return found

    def _given_by(self, group: str, lite_topic: str | None, receipt: str) -> _Given | None:
        given = self._given.get((group, lite_queue_name(self._parent, lite_topic or "")))
        return given if given is not None and str(given.pop_time) == receipt.split()[1] else None

    def _acknowledge(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        asked = request.header(AckMessageRequestHeader)
        given = self._given_by(asked.consumer_group, asked.lite_topic, asked.extra_info)
        if given is not None and asked.offset in given.visible_at:
            given.acked.add(asked.offset)
            key = asked.consumer_group, lite_queue_name(self._parent, asked.lite_topic or "")
            self._begins.pop(key, None)
            self.offsets[key] = min(given.left, default=max(given.visible_at) + 1)
        return ok()

    def _hide(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        asked = request.header(ChangeInvisibleTimeRequestHeader)
        given = self._given_by(asked.consumer_group, asked.lite_topic, asked.extra_info)
        if given is not None and asked.offset in given.visible_at:
            given.visible_at[asked.offset] = self.controller.monotonic_ms() + asked.invisible_time
        now = self.controller.now_ms()
        return ok(ChangeInvisibleTimeResponseHeader(now, asked.invisible_time, REVIVE_QUEUE_ID))

    def _query(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        asked = request.header(QueryConsumerOffsetRequestHeader)
        offset = self.offsets.get((asked.consumer_group, asked.topic))
        if offset is None:
            return RemotingCommand.response(ResponseCode.QUERY_NOT_FOUND, "none")
        return ok(QueryConsumerOffsetResponseHeader(offset))


def _record(message: MessageExt, offset: int) -> bytes:
    """Return a message as its lite topic has it: with its offset there."""
    host, _, port = message.store_host.rpartition(":")
    born, _, born_port = message.born_host.rpartition(":")
    properties = bytes(message.properties_bytes).decode().removesuffix("\x02")
    return bytes(
        encode_record(
            RecordFields(
                topic=message.topic, queue_id=message.queue_id, flag=message.flag,
                sys_flag=message.sys_flag, born_timestamp=message.born_timestamp,
                born_host=(born, int(born_port)), store_timestamp=message.store_timestamp,
                store_host=(host, int(port)), reconsume_times=0, prepared_transaction_offset=0,
                body=bytes(message.stored_body),
                properties=f"{properties}\x02{PROPERTY_INNER_MULTI_QUEUE_OFFSET}\x01{offset}\x02",
                queue_offset=message.queue_offset, physical_offset=message.commit_log_offset,
            )
        )
    )  # fmt: skip
