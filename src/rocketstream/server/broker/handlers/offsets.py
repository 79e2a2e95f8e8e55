"""Offsets: codes 14, 15, 29, 30, 31, 32 (C-323 to C-335, C-372, C-373).

Positions come from the store, progress comes from the offset table.
"""

from __future__ import annotations

import logging

from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rocketstream.server.broker.controller import BrokerController
from rocketstream.server.broker.core.offsets import commit_refusal
from rocketstream.server.dispatch import Answer, Handler, ok, refusal
from rocketstream.transport.connection import Connection
from rocketstream.transport.sharing import AnswerSteps

logger: logging.Logger = logging.getLogger("rocketstream.server")


def of_this_broker(name: str, handler: Handler) -> Handler:
    """Return a handler of requests about a queue that refuses those about another broker's.

    A client may still take the address for that of a broker which was there before: offsets of its
    queues, followed or stored here, would pass over messages.
    """

    def handled(connection: Connection, request: RemotingCommand) -> Answer | AnswerSteps:
        wanted = (request.ext_fields or {}).get("bname")
        if wanted and wanted != name:
            text = f"this is broker {name}, not {wanted:.127}"
            raise refusal(ResponseCode.NOT_LEADER_FOR_QUEUE, text)
        return handler(connection, request)

    return handled


class OffsetHandlers:
    """Requests for positions, and commits."""

    def __init__(self, controller: BrokerController) -> None:
        self._controller = controller
        self._store = controller.store

    def table(self) -> dict[int, Handler]:
        """The codes of this module."""
        table: dict[int, Handler] = {
            RequestCode.QUERY_CONSUMER_OFFSET: self.query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search,
            RequestCode.GET_MAX_OFFSET: self.max_offset,
            RequestCode.GET_MIN_OFFSET: self.min_offset,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.earliest,
        }
        name = self._controller.config.broker_name
        return {code: of_this_broker(name, handler) for code, handler in table.items()}

    def query(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Code 14: an unknown offset is 0 while the queue's first message is in memory (C-333)."""
        header = request.header(QueryConsumerOffsetRequestHeader)
        topic, queue_id = header.topic, header.queue_id
        offset = self._controller.offsets.query(header.consumer_group, topic, queue_id)
        if offset is not None:
            return ok(QueryConsumerOffsetResponseHeader(offset=offset))
        if (
            header.set_zero_if_not_found is not False
            and self._min_offset(topic, queue_id) <= 0
            and self._store.first_entry_in_memory(topic, queue_id)
        ):
            return ok(QueryConsumerOffsetResponseHeader(offset=0))
        text = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
        raise refusal(ResponseCode.QUERY_NOT_FOUND, text)

    def update(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Code 15."""
        header = request.header(UpdateConsumerOffsetRequestHeader)
        why = self.commit(
            header.consumer_group,
            header.topic,
            header.queue_id,
            header.commit_offset,
            connection.peer,
        )
        if why is None:
            return ok()
        is_unknown = self._controller.topics.get(header.topic) is None
        code = ResponseCode.TOPIC_NOT_EXIST if is_unknown else ResponseCode.SYSTEM_ERROR
        raise refusal(code, f"offset of topic {header.topic} not stored: {why}")

    def commit(self, group: str, topic: str, queue_id: int, offset: int, peer: str) -> str | None:
        """Store an offset; return why it was refused, if it cannot be right (C-567)."""
        config = self._controller.topics.get(topic)
        queues = max(config.read_queue_nums, config.write_queue_nums) if config else None
        end = self._store.max_offset(topic, queue_id)
        why = commit_refusal(queue_id, offset, queues, end)
        why = why or self._controller.offsets.no_room(group, [(topic, queue_id)])
        if why is not None:
            logger.info(
                "refused offset group=%s topic=%s queue=%d offset=%d peer=%s: %s",
                group, topic, queue_id, offset, peer, why,
            )  # fmt: skip
            return why
        before = self._controller.offsets.commit(group, topic, queue_id, offset)
        if before is not None and offset < before:
            logger.warning(
                "offset moved back group=%s topic=%s queue=%d from=%d to=%d peer=%s",
                group, topic, queue_id, before, offset, peer,
            )  # fmt: skip
        return None

    def search(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Code 29."""
        header = request.header(SearchOffsetRequestHeader)
        if not self._has(header.topic, header.queue_id):
            return ok(SearchOffsetResponseHeader(offset=0))
        offset = self._store.offset_by_timestamp(header.topic, header.queue_id, header.timestamp)
        return ok(SearchOffsetResponseHeader(offset=offset))

    def max_offset(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Code 30; 0 for an unknown queue."""
        header = request.header(GetMaxOffsetRequestHeader)
        known = self._has(header.topic, header.queue_id)
        offset = self._store.max_offset(header.topic, header.queue_id) if known else 0
        return ok(GetMaxOffsetResponseHeader(offset=offset))

    def min_offset(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Code 31; 0 for an unknown queue."""
        header = request.header(GetMinOffsetRequestHeader)
        return ok(
            GetMinOffsetResponseHeader(offset=self._min_offset(header.topic, header.queue_id))
        )

    def earliest(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Code 32; -1 for an empty queue."""
        header = request.header(GetEarliestMsgStoretimeRequestHeader)
        timestamp = -1
        if self._has(header.topic, header.queue_id):
            first = self._store.min_offset(header.topic, header.queue_id)
            timestamp = self._store.store_timestamp(header.topic, header.queue_id, first)
        return ok(GetEarliestMsgStoretimeResponseHeader(timestamp=timestamp))

    def _min_offset(self, topic: str, queue_id: int) -> int:
        return self._store.min_offset(topic, queue_id) if self._has(topic, queue_id) else 0

    def _has(self, topic: str, queue_id: int) -> bool:
        """Whether the queue may hold messages; a queue the topic no longer has may, too."""
        return queue_id >= 0 and self._controller.topics.get(topic) is not None
