"""The state all handlers of a broker share: its tables, its store, and the effects they have."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Hashable, Iterable
from typing import Any, Protocol

from rocketstream._util.clock import Clock
from rocketstream.errors import BrokerError, TransportError
from rocketstream.protocol.addresses import format_address
from rocketstream.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import NotifyConsumerIdsChangedRequestHeader
from rocketstream.protocol.names import retry_topic
from rocketstream.server.broker.acl import AccessGuard
from rocketstream.server.broker.config import BrokerConfig
from rocketstream.server.broker.core.consumer_filters import ConsumerFilters
from rocketstream.server.broker.core.groups import GroupTable
from rocketstream.server.broker.core.locks import QueueLocks
from rocketstream.server.broker.core.members import ConsumerMembers, ProducerMembers
from rocketstream.server.broker.core.offsets import ConsumerOffsets
from rocketstream.server.broker.core.room import Fullness
from rocketstream.server.broker.core.schedule import DelaySchedule, parse_delay_levels
from rocketstream.server.broker.core.stats import Counter
from rocketstream.server.broker.core.topics import TopicTable
from rocketstream.server.broker.editing import Edits
from rocketstream.server.broker.statistics import BrokerStatistics
from rocketstream.server.store import MessageStore
from rocketstream.transport.connection import Connection
from rocketstream.transport.sharing import AnswerSteps, Sharing, Steps

logger: logging.Logger = logging.getLogger("rocketstream.server")


class Registrar(Protocol):
    """Registers this broker's topics with the name servers."""

    def announce(self, topics: Iterable[str]) -> asyncio.Future[None]:
        """Register changed topics; the future is done when the name servers answered."""
        ...


class Saver(Protocol):
    """Writes the tables for whose changes requests wait."""

    def topics_saved(self) -> asyncio.Future[None]:
        """Write topics.json; raises StoreError when it cannot be written."""
        ...

    def edits_saved(self) -> asyncio.Future[None]:
        """Write brokerSettings.json; raises StoreError when it cannot be written."""
        ...

    def groups_saved(self) -> asyncio.Future[None]:
        """Write subscriptionGroup.json; raises StoreError when it cannot be written."""
        ...

    def offsets_written(self) -> asyncio.Future[bool]:
        """Write consumerOffset.json; returns whether it was written."""
        ...

    def locks_written(self) -> asyncio.Future[bool]:
        """Write queueLocks.json, or remove it; returns whether either was done."""
        ...

    def locks_known(self, generation: int) -> bool:
        """Whether a restart finds the locks of a generation, or finds that they are unknown."""
        ...


class BrokerController:
    """The state of one broker, confined to its loop."""

    registrar: Registrar
    saver: Saver
    sharing: Sharing | None = None
    """The resources the connections of all its ports share; None before the start."""
    access: AccessGuard | None = None
    """Access control; None grants every right to all peers."""

    def __init__(self, config: BrokerConfig, store: MessageStore, clock: Clock) -> None:
        self.config: BrokerConfig = config
        self.store = store
        self.clock = clock
        self.topics: TopicTable = TopicTable(auto_create=config.auto_create_topics)
        self.groups: GroupTable = GroupTable(auto_create=config.auto_create_groups)
        self.offsets: ConsumerOffsets = ConsumerOffsets()
        self.consumers: ConsumerMembers = ConsumerMembers()
        self.filters: ConsumerFilters = ConsumerFilters()
        self.producers: ProducerMembers = ProducerMembers()
        self.locks: QueueLocks = QueueLocks()
        self.schedule: DelaySchedule = DelaySchedule(parse_delay_levels(config.delay_levels))
        self._fullness = Fullness()
        self.edits: Edits = Edits()
        """Settings that were changed while the broker ran, in this run or an earlier one."""
        self.edits_generation = 0
        self.statistics: BrokerStatistics = BrokerStatistics(store, clock)
        self.put_count: Counter = self.statistics.puts
        self.started_ms = 0
        self.started_monotonic_ms: float = 0.0
        self._steady_base_ms = clock.now_ms() - int(clock.monotonic_ms())
        self.host: str = config.advertise_host or config.host
        self.store_host_bytes = b""
        self.port: int = config.broker_port
        self.on_closed: list[Callable[[Connection], None]] = [self._member_closed]
        self.on_deleted: list[Callable[[str], None]] = []
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._making: dict[str, asyncio.Future[asyncio.Future[None]]] = {}

    def reconfigure(self, config: BrokerConfig) -> None:
        """Use other settings from now on; those that `editing` allows take effect at once."""
        self.config = config
        self.topics.auto_create = config.auto_create_topics
        self.groups.auto_create = config.auto_create_groups
        self.store.set_retention(config.store.retention)

    @property
    def address(self) -> str:
        """The address for clients."""
        return format_address(self.host, self.port)

    def now_ms(self) -> int:
        """Wall-clock milliseconds, for timestamps that leave the process."""
        return self.clock.now_ms()

    def monotonic_ms(self) -> float:
        """Milliseconds that only grow, for leases, silence and rates."""
        return self.clock.monotonic_ms()

    def steady_ms(self) -> int:
        """Wall-clock milliseconds of the start plus the time since then, for delays.

        A wall clock that is set while the broker runs makes no message due earlier or later; after
        a restart the wall clock of that moment counts.
        """
        return self._steady_base_ms + int(self.clock.monotonic_ms())

    # --- tasks -----------------------------------------------------------------------------------

    def spawn(self, coro: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine that this broker owns until it is closed."""
        task = asyncio.get_running_loop().create_task(coro)
        self._tasks[task] = None
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            logger.error("INTERNAL a task of the broker failed", exc_info=task.exception())

    async def close_tasks(self) -> None:
        """Cancel the tasks that still run and wait for them."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- topics and groups -----------------------------------------------------------------------

    def change_topic(
        self, topic: str, config: TopicConfig | None
    ) -> asyncio.Future[asyncio.Future[None]]:
        """Set or, with None, delete a topic's configuration, and tell the name servers.

        The change counts once a worker has written it to the disk: a topic that was never written
        would be unreachable after a kill, with all its messages.

        Returns:
            A future that is done when the change counts; its result is a future that is done when
            the name servers know. It raises a StoreError when the change cannot be written; then
            nothing has changed.
        """
        counts: asyncio.Future[asyncio.Future[None]] = asyncio.get_running_loop().create_future()
        self.topics.propose(topic, config)

        def saved(done: asyncio.Future[None]) -> None:
            error = done.exception()
            if error is None:
                self.topics.accept(topic, config, self.now_ms())
                told = self.registrar.announce((topic,))
            else:
                self.topics.withdraw(topic)
            if counts.done():  # the caller was cancelled: what is written counts all the same
                return
            if error is None:
                counts.set_result(told)
            else:
                counts.set_exception(error)
                counts.exception()  # the caller may be gone

        self.saver.topics_saved().add_done_callback(saved)
        return counts

    def make_topic(self, config: TopicConfig) -> asyncio.Future[asyncio.Future[None]]:
        """Create a missing topic, once for all concurrent callers; see `change_topic`."""
        topic = config.topic_name
        made = self._making.get(topic)
        if made is None:
            made = self._making[topic] = self.change_topic(topic, config)
            made.add_done_callback(lambda _: self._making.pop(topic))
        return made

    async def put_topic(self, config: TopicConfig) -> None:
        """Create or replace a topic; returns when the name servers know it.

        Raises:
            BrokerError: the topic is new, and there is no room for another.
            StoreError: the change cannot be written; nothing has changed.
        """
        self.topics.check_room(config.topic_name)
        await (await self.change_topic(config.topic_name, config))

    def forget_topic(self, topic: str) -> None:
        """Remove what the broker keeps of a topic that has no configuration any more."""
        self.offsets.remove_topic(topic)
        self.store.delete_topic(topic)
        for tell in self.on_deleted:
            tell(topic)
        self.statistics.topic_deleted(topic)

    def ensure_topic(self, topic: str, queue_nums: int, *, unit: bool = False) -> TopicConfig:
        """Return a topic of the broker's own, created if missing.

        It counts, and is announced, before it is written to the disk: its users make it again after
        a restart, and consumers must be able to work off the messages of a full disk.
        """
        config, is_new = self.topics.ensure(topic, queue_nums, self.now_ms(), unit=unit)
        if is_new:
            self.registrar.announce((topic,))
        return config

    def ensure_retry_topic(
        self, group: SubscriptionGroupConfig, *, unit: bool = False
    ) -> TopicConfig:
        """Return the retry topic of a group, created if missing (C-338)."""
        return self.ensure_topic(retry_topic(group.group_name), group.retry_queue_nums, unit=unit)

    def find_group(self, group: str) -> SubscriptionGroupConfig | None:
        """Return a group's settings, created if allowed (C-350) and persisted soon."""
        return self.groups.find(group, self.now_ms())[0]

    # --- members ---------------------------------------------------------------------------------

    def notify_members(self, group: str, channels: Iterable[Hashable]) -> None:
        """Tell consumers that their group changed, so that they rebalance at once (code 40)."""
        for channel in channels:
            if isinstance(channel, Connection):
                header = NotifyConsumerIdsChangedRequestHeader(consumer_group=group)
                command = RemotingCommand.request(
                    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header, oneway=True
                )
                try:
                    channel.oneway(command)
                except TransportError as error:
                    logger.info("cannot notify %s of group %s: %s", channel.peer, group, error)

    def member_left(self, group: str, left: Iterable[Hashable], *, notify: bool = True) -> None:
        """Tell the others that a consumer left; the last one's conditions die with it."""
        if self.consumers.group(group) is None:
            self.filters.unregister(group, self.now_ms())
        elif notify:
            self.notify_members(group, left)

    def closed(self, connection: Connection) -> None:
        """Forget everything tied to a connection that is gone."""
        for forget in self.on_closed:
            forget(connection)

    def _member_closed(self, connection: Connection) -> None:
        self.producers.channel_closed(connection)
        steps = self._leave_groups(connection)
        if self.sharing is not None:
            self.sharing.start(steps)
        else:
            for _ in steps:
                pass

    def _leave_groups(self, connection: Connection) -> Steps:
        for group in self.consumers.groups_of_channel(connection):
            self.member_left(group, self.consumers.unregister(group, connection))
            yield

    def expire_members(self, since_ms: float = -math.inf) -> None:
        """Remove clients silent for 120 s, close their connections, tell the others (C-551).

        Args:
            since_ms: silence before that does not count: the broker stood still.
        """
        now_ms = self.monotonic_ms()
        self.locks.expire(now_ms)
        channels, left = self.consumers.expire(now_ms, since_ms)
        channels += self.producers.expire(now_ms, since_ms)
        for group, stay in left.items():
            self.member_left(group, stay)
        for channel in channels:
            if isinstance(channel, Connection):
                channel.close("no heartbeat for 120 s")

    def offsets_kept(self, remark: str) -> AnswerSteps:
        """Wait until the disk has the offsets of now, so that removed ones do not come back.

        Raises:
            BrokerError: they cannot be written yet, which ``remark`` says.
        """
        written = self.saver.offsets_written()
        yield written
        if written.cancelled() or not written.result():
            raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)

    def tell_fullness(self) -> None:
        """Log which tables have become nearly full, or full."""
        tables = (
            self.topics, self.groups, self.offsets, self.consumers, self.producers, self.locks,
        )  # fmt: skip
        for line in self._fullness.look(table.room for table in tables):
            logger.warning("broker: %s", line)

    def sample(self) -> None:
        """Take the samples from which rates are computed."""
        self.statistics.sharing = self.sharing
        self.statistics.sample()
