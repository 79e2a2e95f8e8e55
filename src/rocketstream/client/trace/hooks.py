"""The hooks that make trace records of sends, listener calls and ends of transactions.

Law: look at contexts, make records, hand them on; nothing is sent here (upstream's trace.hook).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rocketstream.client.config import unique_ids
from rocketstream.client.hooks import (
    CONSUME_CONTEXT_TYPE,
    ConsumeMessageContext,
    ConsumeReturnType,
    EndTransactionContext,
    MessageType,
    SendMessageContext,
)
from rocketstream.client.trace.dispatcher import AsyncTraceDispatcher
from rocketstream.model import Message, SendStatus
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.namespace import without_any_namespace, without_namespace
from rocketstream.protocol.properties import (
    PROPERTY_MSG_REGION,
    PROPERTY_TRACE_ON,
    encode_properties,
)
from rocketstream.protocol.trace import (
    DEFAULT_REGION,
    TraceEndTransaction,
    TracePub,
    TraceSubAfter,
    TraceSubBefore,
)

_BATCH_RECORD_BYTES = 22
_CODES = {kind.name: kind.value for kind in ConsumeReturnType}


class SendMessageTraceHook:
    """One Pub record per send that was answered."""

    name = "SendMessageTraceHook"

    def __init__(self, dispatcher: AsyncTraceDispatcher) -> None:
        self._dispatcher = dispatcher

    def send_message_before(self, context: SendMessageContext) -> None:
        """Note when the send began; trace itself is not traced."""
        if not _topic_of(context.message).startswith(self._dispatcher.trace_topic):
            context.trace = self._dispatcher.clock.now_ms()

    def send_message_after(self, context: SendMessageContext) -> None:
        """Make the record, unless the broker has tracing switched off (C-546)."""
        began_ms, result = context.trace, context.send_result
        if not isinstance(began_ms, int) or result is None or not result.trace_on:
            return
        message = context.message
        single = message if isinstance(message, Message) else None
        record = TracePub(
            timestamp=began_ms,
            region_id=result.region_id,
            group_name=without_namespace(context.producer_group, context.namespace),
            topic=without_namespace(_topic_of(message), context.namespace),
            msg_id=result.msg_id,
            tags=single.tags if single else None,
            keys=single.keys if single else None,
            store_host=context.broker_address,
            body_length=_body_length(message),
            cost_time=int(self._dispatcher.clock.now_ms() - began_ms),
            msg_type=context.msg_type.value,
            offset_msg_id=result.offset_msg_id,
            success=result.send_status is SendStatus.SEND_OK,
        )
        self._dispatcher.append(result.region_id, [record])


@dataclass(slots=True)
class _Traced:
    """What a listener call leaves between before and after."""

    began_ms: int
    request_id: str
    region_id: str | None
    messages: list[tuple[str, str | None]]


class ConsumeMessageTraceHook:
    """A SubBefore and a SubAfter record per message of a listener call."""

    name = "ConsumeMessageTraceHook"

    def __init__(self, dispatcher: AsyncTraceDispatcher) -> None:
        self._dispatcher = dispatcher

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        """Make the first records; messages whose TRACE_ON is false are left out (C-546)."""
        traced = [m for m in context.messages if m.properties.get(PROPERTY_TRACE_ON) != "false"]
        if not traced:
            return
        now_ms = self._dispatcher.clock.now_ms()
        region_id = traced[-1].properties.get(PROPERTY_MSG_REGION)
        request_id = unique_ids().next(now_ms)
        group = without_namespace(context.consumer_group, context.namespace)
        records = [
            TraceSubBefore(
                now_ms, region_id, group, request_id, m.msg_id, m.reconsume_times, m.keys
            )
            for m in traced
        ]
        named = [(m.msg_id, m.keys) for m in traced]
        context.trace = _Traced(now_ms, request_id, region_id, named)
        self._dispatcher.append(region_id, records)

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        """Make the second ones; the time the call took is shared out evenly (C-545)."""
        before = context.trace
        if not isinstance(before, _Traced):
            return
        now_ms = self._dispatcher.clock.now_ms()
        cost_ms = int((now_ms - before.began_ms) // max(len(context.messages), 1))
        group = without_namespace(context.consumer_group, context.namespace)
        code = _context_code(context)
        records = [
            TraceSubAfter(
                before.request_id, msg_id, cost_ms, context.success, keys, code, now_ms, group
            )
            for msg_id, keys in before.messages
        ]
        self._dispatcher.append(before.region_id, records)


class EndTransactionTraceHook:
    """One EndTransaction record per end told to a broker."""

    name = "EndTransactionTraceHook"

    def __init__(self, dispatcher: AsyncTraceDispatcher) -> None:
        self._dispatcher = dispatcher

    def end_transaction(self, context: EndTransactionContext) -> None:
        """Make the record."""
        message = context.message
        if message.topic.startswith(self._dispatcher.trace_topic):
            return
        region_id = message.properties.get(PROPERTY_MSG_REGION) or DEFAULT_REGION
        record = TraceEndTransaction(
            timestamp=self._dispatcher.clock.now_ms(),
            region_id=region_id,
            group_name=without_any_namespace(context.producer_group),
            topic=without_any_namespace(message.topic),
            msg_id=context.msg_id,
            tags=message.tags,
            keys=message.keys,
            store_host=context.broker_address,
            msg_type=MessageType.TRANS_MSG_COMMIT.value,
            transaction_id=context.transaction_id,
            transaction_state=context.transaction_state,
            from_transaction_check=context.from_transaction_check,
        )
        self._dispatcher.append(region_id, [record])


def _context_code(context: ConsumeMessageContext) -> int:
    return _CODES.get(context.properties.get(CONSUME_CONTEXT_TYPE, ""), 0)


def _topic_of(message: Message | MessageExt | Sequence[Message]) -> str:
    return message[0].topic if isinstance(message, Sequence) else message.topic


def _body_length(message: Message | Sequence[Message]) -> int:
    """Return the size of what was sent; a batch's body holds properties too (W 4.5)."""
    if isinstance(message, Message):
        return len(message.body)
    return sum(
        _BATCH_RECORD_BYTES + len(each.body) + len(encode_properties(each.properties).encode())
        for each in message
    )
