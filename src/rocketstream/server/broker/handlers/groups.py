"""Consumer groups and their progress: codes 200, 201, 207, 208, 317, 43, 45."""

from __future__ import annotations

from collections.abc import Generator

from rocketstream.errors import ConfigurationError
from rocketstream.model import MessageQueue
from rocketstream.protocol import names
from rocketstream.protocol.bodies import (
    ConsumeStats,
    ConsumeStatsList,
    OffsetWrapper,
    SubscriptionGroupConfig,
)
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    DeleteSubscriptionGroupRequestHeader,
    GetBrokerConsumeStatsRequestHeader,
    GetConsumeStatsRequestHeader,
)
from rocketstream.server.broker.controller import BrokerController
from rocketstream.server.dispatch import Handler, ok, ok_in_parts, refusal
from rocketstream.transport.connection import Connection
from rocketstream.transport.sharing import AnswerSteps, Steps


class GroupHandlers:
    """Requests about settings and progress of groups."""

    def __init__(self, controller: BrokerController) -> None:
        self._controller = controller

    def table(self) -> dict[int, Handler]:
        """The codes of this module."""
        return {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.update,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.delete,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.all_configs,
            RequestCode.GET_CONSUME_STATS: self.stats,
            RequestCode.GET_BROKER_CONSUME_STATS: self.broker_stats,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self.all_offsets,
            RequestCode.GET_ALL_DELAY_OFFSET: self.delay_offsets,
        }

    def update(self, _: Connection, request: RemotingCommand) -> AnswerSteps:
        """Code 200: answered once the change is persisted."""
        config = SubscriptionGroupConfig.decode_request(bytes(request.body))
        try:
            names.check_consumer_group(config.group_name)
        except ConfigurationError as error:
            raise refusal(ResponseCode.SYSTEM_ERROR, error.message) from None
        self._controller.groups.check_room(config.group_name)
        self._controller.groups.put(config, self._controller.now_ms())
        saved = self._controller.saver.groups_saved()
        yield saved
        saved.result()
        return ok()

    def delete(self, _: Connection, request: RemotingCommand) -> AnswerSteps:
        """Code 207: answered once the change is persisted, offsets that go with it included."""
        header = request.header(DeleteSubscriptionGroupRequestHeader)
        controller = self._controller
        if controller.groups.delete(header.group_name, controller.now_ms()):
            saved = controller.saver.groups_saved()
            yield saved
            saved.result()
        controller.statistics.group_deleted(header.group_name)
        if header.remove_offset or header.clean_offset:
            controller.offsets.remove_group(header.group_name)
            yield from controller.offsets_kept(
                f"{header.group_name} is deleted, but its offsets cannot be written yet"
            )
        return ok()

    def all_configs(self, _: Connection, __: RemotingCommand) -> Steps:
        """Code 201."""
        return ok_in_parts((yield from self._controller.groups.wrapper().encoding()))

    def stats(self, _: Connection, request: RemotingCommand) -> Steps:
        """Code 208: progress by queue, of one topic or of all topics the group has offsets in."""
        header = request.header(GetConsumeStatsRequestHeader)
        group = header.consumer_group
        topics = (
            [header.topic] if header.topic else sorted(self._controller.offsets.topics_of(group))
        )
        stats = yield from self._stats_of(group, topics)
        return ok_in_parts((yield from stats.encoding()))

    def _stats_of(self, group: str, topics: list[str]) -> Generator[None, None, ConsumeStats]:
        controller = self._controller
        online = controller.consumers.group(group)
        stats = ConsumeStats()
        for topic in topics:
            # A topic the members no longer subscribe is not part of the group's progress.
            if online and online.subscriptions and topic not in online.subscriptions:
                continue
            config = controller.topics.get(topic)
            if config is not None:
                yield from self._add_topic(stats, group, topic, config.read_queue_nums)
                queues = config.read_queue_nums
                tps = controller.statistics.pulled_per_second(topic, group, queues)
                stats.consume_tps += tps
        return stats

    def _add_topic(self, stats: ConsumeStats, group: str, topic: str, queues: int) -> Steps:
        controller, store = self._controller, self._controller.store
        for queue_id in range(queues):
            offset = controller.offsets.query(group, topic, queue_id) or 0
            last_ms = store.store_timestamp(topic, queue_id, offset - 1) if offset > 0 else 0
            queue = MessageQueue(topic, controller.config.broker_name, queue_id)
            stats.offset_table[queue] = OffsetWrapper(
                broker_offset=max(store.max_offset(topic, queue_id), 0),
                consumer_offset=offset,
                last_timestamp=max(last_ms, 0),
            )
            yield

    def broker_stats(self, _: Connection, request: RemotingCommand) -> Steps:
        """Code 317: the same for every group of this broker."""
        request.header(GetBrokerConsumeStatsRequestHeader)
        controller = self._controller
        found = ConsumeStatsList(broker_addr=controller.address)
        for group in sorted(controller.groups):
            topics = sorted(controller.offsets.topics_of(group))
            yield
            per_topic = []
            for topic in topics:
                per_topic.append((yield from self._stats_of(group, [topic])))
            per_topic = [stats for stats in per_topic if stats.offset_table]
            if per_topic:
                found.consume_stats_list.append({group: per_topic})
                found.total_diff += sum(
                    wrapper.broker_offset - wrapper.consumer_offset
                    for stats in per_topic
                    for wrapper in stats.offset_table.values()
                )
        return ok_in_parts((yield from found.encoding()))

    def all_offsets(self, _: Connection, __: RemotingCommand) -> Steps:
        """Code 43."""
        return ok_in_parts((yield from self._controller.offsets.snapshot().encoding()))

    def delay_offsets(self, _: Connection, __: RemotingCommand) -> RemotingCommand:
        """Code 45."""
        return ok(body=self._controller.schedule.snapshot().encode())
