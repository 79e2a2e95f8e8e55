"""Topics and their figures: codes 17, 21, 202, 215, 300, 303, 305, 351."""

from __future__ import annotations

from rocketstream.limits import TOPIC_QUEUES_MAX
from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import (
    GroupList,
    QueryConsumeTimeSpanBody,
    QueueTimeSpan,
    TopicConfig,
    TopicList,
    TopicOffset,
    TopicStatsTable,
)
from rocketstream.protocol.bodies.route import MULTI_TAG, SINGLE_TAG
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    CreateTopicRequestHeader,
    DeleteTopicRequestHeader,
    GetTopicConfigRequestHeader,
    GetTopicStatsInfoRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
)
from rocketstream.server.broker.controller import BrokerController
from rocketstream.server.broker.core.topics import check_name
from rocketstream.server.dispatch import Handler, ok, ok_in_parts, refusal
from rocketstream.transport.connection import Connection
from rocketstream.transport.sharing import AnswerSteps, Steps


class TopicHandlers:
    """Requests that create, delete and describe topics."""

    def __init__(self, controller: BrokerController) -> None:
        self._controller = controller

    def table(self) -> dict[int, Handler]:
        """The codes of this module."""
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.update,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.delete,
            RequestCode.GET_ALL_TOPIC_CONFIG: self.all_configs,
            RequestCode.GET_TOPIC_CONFIG: self.config,
            RequestCode.GET_TOPIC_STATS_INFO: self.stats,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.consumed_by,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self.time_span,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.system_topics,
        }

    def update(self, connection: Connection, request: RemotingCommand) -> AnswerSteps:
        """Code 17: answered once the name servers know the topic."""
        header = request.header(CreateTopicRequestHeader)
        self._check_name(header.topic)
        self._check_numbers(header)
        config = TopicConfig(
            topic_name=header.topic,
            read_queue_nums=header.read_queue_nums,
            write_queue_nums=header.write_queue_nums,
            perm=header.perm,
            topic_filter_type=header.topic_filter_type,
            topic_sys_flag=header.topic_sys_flag or 0,
        )
        self._controller.topics.check_room(header.topic)
        counts = self._controller.change_topic(header.topic, config)
        yield counts
        known = counts.result()
        known.add_done_callback(lambda _: connection.reply(request, ok()))
        return None

    def _check_name(self, topic: str) -> None:
        check_name(topic)
        if self._controller.topics.is_system(topic):
            text = f"The topic[{topic}] is conflict with system topic."
            raise refusal(ResponseCode.SYSTEM_ERROR, text)

    def _check_numbers(self, header: CreateTopicRequestHeader) -> None:
        read, write = header.read_queue_nums, header.write_queue_nums
        if not (0 < read <= TOPIC_QUEUES_MAX and 0 < write <= TOPIC_QUEUES_MAX):
            raise refusal(
                ResponseCode.SYSTEM_ERROR,
                f"readQueueNums {read} and writeQueueNums {write} are not accepted: give 1 to "
                f"{TOPIC_QUEUES_MAX}",
            )
        if header.topic_filter_type not in (SINGLE_TAG, MULTI_TAG):
            raise refusal(
                ResponseCode.SYSTEM_ERROR,
                f"topicFilterType {header.topic_filter_type!r:.80} is not accepted: give "
                f"{SINGLE_TAG} or {MULTI_TAG}",
            )
        if not 0 <= header.perm <= 7:
            text = f"perm {header.perm} is not accepted: give the sum of 4 (read) and 2 (write)"
            raise refusal(ResponseCode.SYSTEM_ERROR, text)

    def delete(self, _: Connection, request: RemotingCommand) -> AnswerSteps:
        """Code 215: answered once the groups' offsets in the topic are gone from the disk, too.

        A topic of the same name begins at 0 again; an old offset would skip its first messages.
        """
        topic = request.header(DeleteTopicRequestHeader).topic
        self._check_name(topic)
        controller = self._controller
        if controller.topics.get(topic) is not None:
            counts = controller.change_topic(topic, None)
            yield counts
            counts.result()
        # Without a configuration, too: a crash may have left the queues of a deleted topic.
        controller.forget_topic(topic)
        yield from controller.offsets_kept(
            f"topic {topic} is deleted, but the offsets of its groups cannot be written yet"
        )
        return ok()

    def all_configs(self, _: Connection, __: RemotingCommand) -> Steps:
        """Code 21."""
        answer = ok_in_parts((yield from self._controller.topics.wrapper().encoding()))
        answer.response.ext_fields = {}
        return answer

    def config(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Code 351: unknown to 4.9 servers, but 5.x tools ask for it before they show anything."""
        return ok(body=self._known(request.header(GetTopicConfigRequestHeader).topic).encode())

    def stats(self, _: Connection, request: RemotingCommand) -> Steps:
        """Code 202."""
        topic = request.header(GetTopicStatsInfoRequestHeader).topic
        config = self._known(topic)
        store, broker = self._controller.store, self._controller.config.broker_name
        table = TopicStatsTable()
        for queue_id in range(config.write_queue_nums):
            low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
            last_ms = store.store_timestamp(topic, queue_id, high - 1) if high > low else 0
            table.offset_table[MessageQueue(topic, broker, queue_id)] = TopicOffset(
                min_offset=low, max_offset=high, last_update_timestamp=max(last_ms, 0)
            )
            yield
        return ok_in_parts((yield from table.encoding()))

    def consumed_by(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Code 300: the groups that subscribe now, and those that have offsets."""
        topic = request.header(QueryTopicConsumeByWhoRequestHeader).topic
        controller = self._controller
        groups = controller.consumers.groups_of(topic) | controller.offsets.groups_of(topic)
        return ok(body=GroupList(groups).encode())

    def time_span(self, _: Connection, request: RemotingCommand) -> Steps:
        """Code 303: the store times between which a group's progress lies, by queue."""
        header = request.header(QueryConsumeTimeSpanRequestHeader)
        config = self._known(header.topic)
        spans = []
        for queue_id in range(config.write_queue_nums):
            spans.append(self._span(header.group, header.topic, queue_id))
            yield
        return ok_in_parts((yield from QueryConsumeTimeSpanBody(spans).encoding()))

    def _span(self, group: str, topic: str, queue_id: int) -> QueueTimeSpan:
        controller, store = self._controller, self._controller.store
        queue = MessageQueue(topic, controller.config.broker_name, queue_id)
        low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        first_ms = store.store_timestamp(topic, queue_id, low)
        last_ms = store.store_timestamp(topic, queue_id, high - 1) if high > low else -1
        offset = controller.offsets.query(group, topic, queue_id)
        consumed_ms = first_ms
        if offset is not None and offset > low:
            consumed_ms = store.store_timestamp(topic, queue_id, offset - 1)
        delay_ms = 0
        if offset is not None and offset < high:
            delay_ms = controller.now_ms() - store.store_timestamp(topic, queue_id, offset)
        return QueueTimeSpan(
            message_queue=queue,
            min_time_stamp=first_ms,
            max_time_stamp=last_ms,
            consume_time_stamp=consumed_ms,
            delay_time=max(delay_ms, 0),
        )

    def _known(self, topic: str) -> TopicConfig:
        config = self._controller.topics.get(topic)
        if config is None:
            raise refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        return config

    def system_topics(self, _: Connection, __: RemotingCommand) -> RemotingCommand:
        """Code 305."""
        return ok(body=TopicList(set(self._controller.topics.system_topic_names())).encode())
