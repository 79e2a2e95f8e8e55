"""Maintenance of a broker: codes 306, 308, 314, 316, 321, 323, 328, 329.

Mistakes of upstream (C-332, C-537) are corrected.
"""

from __future__ import annotations

from rocketstream.errors import LocalProtocolError, StoreError
from rocketstream.protocol import names
from rocketstream.protocol.bodies import (
    ProducerInfo,
    ProducerTableInfo,
    QueryConsumeQueueResponseBody,
    QueryCorrectionOffsetBody,
)
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    CloneGroupOffsetRequestHeader,
    QueryConsumeQueueRequestHeader,
    QueryCorrectionOffsetRequestHeader,
    ResumeCheckHalfMessageRequestHeader,
)
from rocketstream.protocol.message_id import decode_offset_msg_id
from rocketstream.protocol.properties import PROPERTY_PGROUP, PROPERTY_REAL_TOPIC
from rocketstream.server.broker.controller import BrokerController
from rocketstream.server.broker.core.offsets import correction_offsets
from rocketstream.server.broker.handlers.clients import language_name
from rocketstream.server.broker.transaction_service import TransactionService
from rocketstream.server.dispatch import Handler, ok, refusal
from rocketstream.transport.connection import Connection
from rocketstream.transport.sharing import AnswerSteps

ENTRIES_MAX = 10_000
NO_FILTER_DATA = "null"
"""Upstream writes its result as JSON, even an empty one."""
NOT_RESUMED = "Put message back to RMQ_SYS_TRANS_HALF_TOPIC failed."


class UpkeepHandlers:
    """Operators' requests about one broker."""

    def __init__(self, controller: BrokerController, transactions: TransactionService) -> None:
        self._controller = controller
        self._transactions = transactions

    def table(self) -> dict[int, Handler]:
        """The codes of this module."""
        return {
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self.clean_queues,
            RequestCode.QUERY_CORRECTION_OFFSET: self.correction_offset,
            RequestCode.CLONE_GROUP_OFFSET: self.clone_offsets,
            RequestCode.CLEAN_UNUSED_TOPIC: self.clean_topics,
            RequestCode.QUERY_CONSUME_QUEUE: self.consume_queue,
            RequestCode.RESUME_CHECK_HALF_MESSAGE: self.resume_half,
            RequestCode.GET_ALL_PRODUCER_INFO: self.producers,
            RequestCode.DELETE_EXPIRED_COMMITLOG: self.delete_expired,
        }

    # --- offsets ---------------------------------------------------------------------------------

    def correction_offset(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Code 308: the lowest offsets of all groups; nothing is removed (C-332)."""
        header = request.header(QueryCorrectionOffsetRequestHeader)
        store, topic = self._controller.store, header.topic
        found = correction_offsets(
            self._controller.offsets,
            topic,
            header.compare_group,
            set(filter(None, (header.filter_groups or "").split(","))),
            lambda queue_id: store.min_offset(topic, queue_id),
        )
        return ok(body=QueryCorrectionOffsetBody(found).encode())

    def clone_offsets(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Code 314: with a blank topic every topic of the source is copied (C-537).

        Where there is no room for all of it, nothing is.
        """
        header = request.header(CloneGroupOffsetRequestHeader)
        controller, source = self._controller, header.src_group
        given = header.topic or ""
        known = [given] if given.strip() else sorted(controller.offsets.topics_of(source))
        online = None if header.offline else controller.consumers.group(source)
        topics = [
            topic
            for topic in known
            if controller.topics.get(topic) is not None
            and (online is None or topic in online.subscriptions)
        ]
        offsets = controller.offsets
        queues = [(topic, queue) for topic in topics for queue in offsets.of(source, topic)]
        why = offsets.no_room(header.dest_group, queues)
        if why is not None:
            raise refusal(ResponseCode.SYSTEM_ERROR, f"offsets not cloned: {why}")
        for topic in topics:
            offsets.clone(source, header.dest_group, topic)
        return ok()

    # --- the store -------------------------------------------------------------------------------

    def consume_queue(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Code 321: entries of a queue's index, exactly as in the file."""
        header = request.header(QueryConsumeQueueRequestHeader)
        store, topic, queue_id = self._controller.store, header.topic, header.queue_id
        if queue_id not in store.queue_ids(topic):
            raise refusal(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!")
        body = QueryConsumeQueueResponseBody(
            max_queue_index=store.max_offset(topic, queue_id),
            min_queue_index=store.min_offset(topic, queue_id),
        )
        if header.consumer_group is not None:
            self._add_subscription(body, header.consumer_group, topic)
        count = min(max(header.count, 0), ENTRIES_MAX)
        if not body.min_queue_index <= header.index < body.max_queue_index:
            text = f"Index {header.index} of {queue_id}@{topic} is not exist!"
            return RemotingCommand.response(ResponseCode.SUCCESS, text)
        entries = store.consume_queue_entries(topic, queue_id, header.index, count)
        return ok(body=body.encode_with(entries))

    def _add_subscription(
        self, body: QueryConsumeQueueResponseBody, group: str, topic: str
    ) -> None:
        controller = self._controller
        body.subscription_data = controller.consumers.subscription(group, topic)
        if body.subscription_data is None:
            body.filter_data = f"{group}@{topic} is not online!"
            return
        filters = controller.filters.snapshot(controller.now_ms()).filter_data_by_topic.get(topic)
        found = filters.group_filter_data.get(group) if filters else None
        body.filter_data = found.encode(pretty=True).decode() if found else NO_FILTER_DATA

    def clean_queues(self, _: Connection, __: RemotingCommand) -> RemotingCommand:
        """Code 306: indexes go together with their log files, so nothing is left to do."""
        return ok()

    def clean_topics(self, _: Connection, __: RemotingCommand) -> AnswerSteps:
        """Code 316: removes queues of topics that no longer exist, and groups' offsets in them.

        A topic of the same name begins at 0 again: answered once those are gone from the disk.
        """
        controller = self._controller
        for topic in controller.store.topics():
            if controller.topics.get(topic) is None and not names.is_system_topic(topic):
                controller.forget_topic(topic)
        yield from controller.offsets_kept(
            "the topics are removed, but the offsets of groups cannot be written yet"
        )
        return ok()

    def delete_expired(self, _: Connection, __: RemotingCommand) -> RemotingCommand:
        """Code 329: removes log files past their time at once, at any hour."""
        try:
            self._controller.store.delete_expired(manual=True)
        except OSError as error:
            text = f"expired files cannot be removed: {error}"
            raise refusal(ResponseCode.SYSTEM_ERROR, text) from error
        return ok()

    # --- producers and transactions --------------------------------------------------------------

    def producers(self, _: Connection, __: RemotingCommand) -> RemotingCommand:
        """Code 328."""
        members = self._controller.producers
        table = {
            group: [
                ProducerInfo(
                    client_id=member.client_id,
                    remote_ip="/" + str(getattr(member.channel, "peer", "")),
                    language=language_name(member.language),
                    version=member.version,
                    last_update_timestamp=member.last_update_ms,
                )
                for member in members.members(group)
            ]
            for group in members.names()
        }
        return ok(body=ProducerTableInfo(table).encode())

    def resume_half(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Code 323: a half message that was given up is checked again from the beginning."""
        header = request.header(ResumeCheckHalfMessageRequestHeader)
        offset = decode_offset_msg_id(header.msg_id or "")[2]
        stored = self._transactions.read(offset)
        wanted = {PROPERTY_PGROUP, PROPERTY_REAL_TOPIC}
        is_given_up = stored is not None and stored.head.topic == names.TRANS_CHECK_MAX_TIME_TOPIC
        # A committed message has these properties too, and would be delivered once more.
        if stored is None or not is_given_up or not wanted <= set(stored.properties):
            text = f"{NOT_RESUMED} {header.msg_id} is not a half message that was given up"
            raise refusal(ResponseCode.SYSTEM_ERROR, text)
        try:
            self._transactions.resume(stored)
        except (StoreError, LocalProtocolError) as error:
            text = f"{NOT_RESUMED} {error.message}"
            raise refusal(ResponseCode.SYSTEM_ERROR, text) from error
        return ok()
