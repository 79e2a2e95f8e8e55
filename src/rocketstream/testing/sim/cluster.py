"""Name server and broker as simulated processes, and the questions a check asks them at the end.

Law: the product's own classes, started as a program would; only time, network, disk and background
work are replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, NamedTuple

from rocketstream.errors import RocketMQError, StoreError
from rocketstream.protocol.bodies import TopicConfig
from rocketstream.protocol.message_ext import MessageExt, decode_messages
from rocketstream.server.broker import Broker, BrokerConfig
from rocketstream.server.nameserver import NameServer
from rocketstream.server.store import StoreConfig
from rocketstream.testing.sim.options import Options
from rocketstream.testing.sim.world import STORE_DIR, Node, World

NAMESRV_PORT = 9876
BROKER_PORT = 10911
_READ_AT_ONCE = 32
QUEUES_MAX = 5


class StoredMessage(NamedTuple):
    """One message of a queue, as the broker's store holds it at the end."""

    queue_id: int
    queue_offset: int
    keys: str
    tags: str
    body: bytes
    msg_id: str
    born_ms: int
    store_ms: int
    properties: dict[str, str]


class Cluster:
    """One name server and one broker.

    Args:
        world: the world they live in.
        config: settings of the broker that are not drawn from the options.
    """

    def __init__(self, world: World, **config: Any) -> None:
        self._world = world
        self._config = config
        self._topics: dict[str, int] = {}
        self.broker: Broker | None = None
        self.nameserver: NameServer | None = None
        self.repair = False
        self.namesrv: Node = world.add_node("namesrv", self._run_name_server)
        self.node: Node = world.add_node("broker", self._run_broker)
        world.namesrv_addr = f"{self.namesrv.host}:{NAMESRV_PORT}"
        world.cluster = self
        self._ready_incarnation = 0
        self._stopping: asyncio.Task[None] | None = None
        self._adding: asyncio.Task[None] | None = None

    @property
    def namesrv_addr(self) -> str:
        """``host:port`` clients are given."""
        return self._world.namesrv_addr

    @property
    def is_ready(self) -> bool:
        """Whether the broker is running and has its topics."""
        node = self.node
        is_up = self._ready_incarnation == node.incarnation and node.is_alive
        return is_up and not node.loop.is_paused

    def create_topic(self, name: str, queues: int | None = None) -> None:
        """Register a topic to be made when the broker first runs; to be called before the run."""
        self._topics[name] = queues or self._world.options.queues

    def add_queue(self) -> bool:
        """Have the first topic have one queue more; return whether it is asked for."""
        name = next(iter(self._topics), "")
        broker = self.broker
        if broker is None or not self.is_ready or self._topics.get(name, QUEUES_MAX) >= QUEUES_MAX:
            return False
        count = self._topics[name] = self._topics[name] + 1
        config = TopicConfig(name, read_queue_nums=count, write_queue_nums=count)
        self._adding = self.node.loop.create_task(self._put(broker, config), name="add-queue")
        return True

    async def _put(self, broker: Broker, config: TopicConfig) -> None:
        with contextlib.suppress(RocketMQError, OSError):  # an operator tries again, or does not
            await broker.controller.put_topic(config)

    def restart_broker(self) -> None:
        """Restart the broker as an operator does; stopping lets it persist its state.

        A broker that has not finished starting has nothing to persist: it is killed.
        """
        node, broker = self.node, self.broker
        if broker is None or not self.is_ready:
            node.kill()
            node.start()
            return
        self._ready_incarnation = 0
        self._stopping = node.loop.create_task(self._stop(node, broker), name="broker-stop")

    async def _stop(self, node: Node, broker: Broker) -> None:
        # The error that keeps it from closing cleanly is the reason it is stopped.
        with contextlib.suppress(StoreError):
            await broker.close()
        self._world.scheduler.call_later(0.0, self._start_anew, node.incarnation)

    def _start_anew(self, incarnation: int) -> None:
        if self.node.incarnation == incarnation:
            self.node.kill()
            self.node.start()

    # --- the processes ----------------------------------------------------------------------------

    async def _run_name_server(self, node: Node) -> None:
        server = self.nameserver = NameServer(host=node.host, port=NAMESRV_PORT, clock=node.clock)
        await server.start()
        await _for_ever()

    async def _run_broker(self, node: Node) -> None:
        broker = self.broker = Broker(
            broker_config(
                self._world.options, node.host, self.namesrv_addr, self._config, self.repair
            ),
            STORE_DIR,
            node.clock,
            files=node.files,
            workers=node.workers,
        )
        await broker.start()
        controller = broker.controller
        for name, queues in self._topics.items():
            if controller.topics.get(name) is None:
                config = TopicConfig(name, read_queue_nums=queues, write_queue_nums=queues)
                await controller.put_topic(config)
        self._ready_incarnation = node.incarnation
        await _for_ever()

    # --- questions of a check ---------------------------------------------------------------------

    def stored(self, topic: str) -> list[StoredMessage]:
        """Return every message of a topic, queue by queue; for the end of a run."""
        broker = self.broker
        if broker is None or not self.is_ready:
            return []
        found = []
        for queue_id in sorted(broker.store.queue_ids(topic)):
            for message in _read_queue(broker, topic, queue_id):
                found.append(
                    StoredMessage(
                        message.queue_id,
                        message.queue_offset,
                        message.properties.get("KEYS", ""),
                        message.properties.get("TAGS", ""),
                        bytes(message.body),
                        message.msg_id,
                        message.born_timestamp,
                        message.store_timestamp,
                        dict(message.properties),
                    )
                )
        return found

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """Return the offset the broker has for each queue of a group that has one."""
        broker = self.broker
        if broker is None:
            return {}
        offsets = broker.controller.offsets
        config = broker.controller.topics.get(topic)
        queues = range(config.read_queue_nums) if config is not None else range(0)
        found = {queue: offsets.query(group, topic, queue) for queue in queues}
        return {
            queue: offset for queue, offset in found.items() if offset is not None and offset >= 0
        }


def _read_queue(broker: Broker, topic: str, queue_id: int) -> list[MessageExt]:
    store = broker.store
    offset, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
    found: list[MessageExt] = []
    while offset < end:
        result = store.get(topic, queue_id, offset, _READ_AT_ONCE)
        for part in result.records:
            found.extend(decode_messages(part))
        if result.next_begin_offset <= offset:
            break
        offset = result.next_begin_offset
    return found


async def _for_ever() -> None:
    await asyncio.get_running_loop().create_future()


def broker_config(
    options: Options, host: str, namesrv_addr: str, extra: dict[str, Any], repair: bool
) -> BrokerConfig:
    """Return the settings of a simulated broker."""
    settings: dict[str, Any] = {
        "host": host,
        "broker_port": BROKER_PORT,
        "namesrv_addrs": (namesrv_addr,),
        "flush": options.flush,
        "delay_levels": options.delay_levels,
        "default_topic_queue_nums": options.queues,
        "offset_persist_interval_ms": options.persist_interval_ms,
        "delay_persist_interval_ms": options.persist_interval_ms,
        "filter_persist_interval_ms": options.persist_interval_ms,
        "register_interval_ms": options.register_interval_ms,
        "transaction_timeout_ms": 2_000,
        "transaction_check_interval_ms": 3_000,
        "repair": repair,
        "store_config": StoreConfig(
            commit_log_file_bytes=options.commit_log_file_bytes,
            consume_queue_file_bytes=options.consume_queue_units * 20,
            flush_interval_ms=options.flush_interval_ms,
            keep_interval_ms=options.keep_interval_ms,
            poll_interval_ms=options.keep_interval_ms,
            index_slots=16,
            index_entries=64,
            memory_bytes=1 << 30,
        ),
    }
    return BrokerConfig(**(settings | extra))
