"""Name servers and brokers as simulated processes, and the questions a check asks them at the end.

Law: the product's own classes, started as a program would; only time, network, disk and background
work are replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from rocketstream.errors import RocketMQError, StoreError
from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import TopicConfig
from rocketstream.protocol.message_ext import MessageExt, decode_messages
from rocketstream.protocol.names import SCHEDULE_TOPIC
from rocketstream.server.broker import Broker, BrokerConfig
from rocketstream.server.nameserver import NameServer
from rocketstream.server.store import MessageStore, StoreConfig
from rocketstream.server.store.retention import RetentionConfig
from rocketstream.testing.sim.apache_broker import ApacheLikeBroker
from rocketstream.testing.sim.lite_broker import LiteTopicBroker
from rocketstream.testing.sim.options import Options
from rocketstream.testing.sim.strange_servers import StrangeBroker, StrangeRoutes
from rocketstream.testing.sim.tls import server_tls
from rocketstream.testing.sim.world import STORE_DIR, Node, World

NAMESRV_PORT = 9876
BROKER_PORT = 10911
_READ_AT_ONCE = 32
QUEUES_MAX = 5
ACCOUNTS_FILE = Path("/plain_acl.yml")
SETTINGS_FILE = Path("/namesrv/kvConfig.json")
ACCOUNTS = b"""\
accounts:
- accessKey: clients
  secretKey: secret-of-clients
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: PUB|SUB
- accessKey: operators
  secretKey: secret-of-operators
  admin: true
"""


class StoredMessage(NamedTuple):
    """One message of a queue, as its broker's store holds it at the end."""

    queue: MessageQueue
    queue_offset: int
    keys: str
    tags: str
    body: bytes
    msg_id: str
    born_ms: int
    store_ms: int
    properties: dict[str, str]


class SimNameServer:
    """One name server: its process, and the product's server in it."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._tls = world.options.tls
        self.server: NameServer | None = None
        self.node: Node = world.add_node(name, self._run, kind="name server")

    @property
    def address(self) -> str:
        """Return where it listens."""
        return f"{self.node.host}:{NAMESRV_PORT}"

    async def _run(self, node: Node) -> None:
        strange = None
        if self._world.options.strange:
            chance = self._world.random(f"{node.name} {node.incarnation} strange")
            strange = StrangeRoutes(chance, lambda: self._world.healed)
        server = self.server = NameServer(
            host=node.host,
            port=NAMESRV_PORT,
            clock=node.clock,
            ssl_context=server_tls(self._tls).context() if self._tls else None,
            tls_mode="enforcing" if self._tls else "disabled",
            settings_path=SETTINGS_FILE,
            files=node.files,
            workers=node.workers,
            guard=strange,
        )
        if strange is not None:
            strange.routes = server.routes
        await server.start()
        await _for_ever()


class SimBroker:
    """One broker: its process, and the product's broker in it.

    Attributes:
        name: name of the broker and of its process.
        topics: the topics it is given when it first runs, with their numbers of queues.
        broker: the broker of the last incarnation that got so far.
    """

    def __init__(self, world: World, name: str, config: dict[str, Any]) -> None:
        self._world, self._config = world, config
        self.name = name
        self.topics: dict[str, int] = {}
        self.broker: Broker | None = None
        self.node: Node = world.add_node(name, self._run, kind="broker")
        self._ready_incarnation = 0
        self._stopping: asyncio.Task[None] | None = None
        self._adding: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """Return where it listens."""
        return f"{self.node.host}:{BROKER_PORT}"

    @property
    def is_up(self) -> bool:
        """Whether it is running and has its topics; it may stand still."""
        return self._ready_incarnation == self.node.incarnation and self.node.is_alive

    @property
    def is_ready(self) -> bool:
        """Whether it answers, and has its topics."""
        return self.is_up and not self.node.loop.is_paused

    @property
    def running(self) -> Broker:
        """Return the broker that runs; to be asked when it is ready."""
        assert self.broker is not None
        return self.broker

    async def _run(self, node: Node) -> None:
        extra, others = dict(self._config), self._world.options.other_delay_levels
        if others and node.incarnation % 2 == 0:
            extra["delay_levels"] = others
        config = broker_config(self._world, self.name, node.host, extra)
        if self._world.options.accounts:
            _have_accounts(node)
        make: Callable[..., Broker] = Broker
        if self._world.options.like_apache:
            chance = self._world.random(f"{self.name} {node.incarnation} like Apache's")
            make = functools.partial(ApacheLikeBroker, chance)
        if self._world.options.strange:
            chance = self._world.random(f"{self.name} {node.incarnation} strange")
            make = functools.partial(StrangeBroker, chance, lambda: self._world.healed)
        if parent := self._world.options.lite_parent:
            kept = node.kept.setdefault("offsets in lite topics", {})
            persist_ms = self._world.options.persist_interval_ms
            make = functools.partial(LiteTopicBroker, parent, kept, persist_ms)
        broker = self.broker = make(
            config, STORE_DIR, node.clock, files=node.files, workers=node.workers
        )
        await broker.start()
        controller = broker.controller
        for name, queues in self.topics.items():
            if controller.topics.get(name) is None:
                await controller.put_topic(
                    TopicConfig(name, read_queue_nums=queues, write_queue_nums=queues)
                )
        self._ready_incarnation = node.incarnation
        await _for_ever()

    # --- what operators do ------------------------------------------------------------------------

    def add_queue(self) -> bool:
        """Have the first topic have one queue more; return whether it is asked for."""
        name = next(iter(self.topics), "")
        if not self.is_ready or self.topics.get(name, QUEUES_MAX) >= QUEUES_MAX:
            return False
        count = self.topics[name] = self.topics[name] + 1
        config = TopicConfig(name, read_queue_nums=count, write_queue_nums=count)
        self._adding = self.node.loop.create_task(self._put(config), name="add-queue")
        return True

    async def _put(self, config: TopicConfig) -> None:
        with contextlib.suppress(RocketMQError, OSError):  # an operator tries again, or does not
            await self.running.controller.put_topic(config)

    def restart(self) -> None:
        """Restart it as an operator does; stopping lets it persist its state.

        A broker that has not finished starting has nothing to persist: it is killed.
        """
        node = self.node
        if not self.is_ready:
            node.kill()
            node.start()
            return
        self._ready_incarnation = 0
        self._stopping = node.loop.create_task(self._stop(node, self.running), name="broker-stop")

    async def _stop(self, node: Node, broker: Broker) -> None:
        # The error that keeps it from closing cleanly is the reason it is stopped.
        with contextlib.suppress(StoreError):
            await broker.close()
        self._world.scheduler.call_later(0.0, self._start_anew, node.incarnation)

    def _start_anew(self, incarnation: int) -> None:
        if self.node.incarnation == incarnation:
            self.node.kill()
            self.node.start()

    # --- questions of a check ---------------------------------------------------------------------

    @property
    def undelivered(self) -> int:
        """How many delayed messages wait."""
        store, schedule = self.running.store, self.running.controller.schedule
        return sum(
            max(store.max_offset(SCHEDULE_TOPIC, level - 1) - schedule.offset(level), 0)
            for level in schedule.levels
        )

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic that it has now."""
        return [MessageQueue(topic, self.name, each) for each in range(self._queue_count(topic))]

    def _queue_count(self, topic: str) -> int:
        config = self.running.controller.topics.get(topic)
        return 0 if config is None else config.read_queue_nums

    def logs(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic that hold or held messages."""
        return [
            MessageQueue(topic, self.name, queue_id)
            for queue_id in sorted(self.running.store.queue_ids(topic))
        ]

    def stored(self, queue: MessageQueue) -> list[StoredMessage]:
        """Return every message of a queue."""
        return [
            StoredMessage(
                queue,
                message.queue_offset,
                message.properties.get("KEYS", ""),
                message.properties.get("TAGS", ""),
                bytes(message.body),
                message.msg_id,
                message.born_timestamp,
                message.store_timestamp,
                dict(message.properties),
            )
            for message in _read_queue(self.running.store, queue)
        ]

    def committed(self, group: str, topic: str) -> dict[MessageQueue, int]:
        """Return the offset it has for each queue of a group that has one."""
        count = self._queue_count(topic)
        offsets = sorted(self.running.controller.offsets.of(group, topic).items())
        return {
            MessageQueue(topic, self.name, queue_id): offset
            for queue_id, offset in offsets
            if 0 <= queue_id < count and offset >= 0
        }


class Cluster:
    """The name servers and brokers of a run, as many as the options say.

    Args:
        world: the world they live in.
        config: settings of the brokers that are not drawn from the options.
    """

    def __init__(self, world: World, **config: Any) -> None:
        self._world = world
        self.name_servers: list[SimNameServer] = [
            SimNameServer(world, f"namesrv-{letter}")
            for letter in "abc"[: world.options.name_servers]
        ]
        self.brokers: list[SimBroker] = [
            SimBroker(world, f"broker-{letter}", config)
            for letter in "abc"[: world.options.brokers]
        ]
        world.namesrv_addr = ";".join(server.address for server in self.name_servers)
        world.cluster = self

    def start(self) -> None:
        """Start all of them."""
        nodes = [each.node for each in self.name_servers] + [each.node for each in self.brokers]
        for node in nodes:
            node.start()

    @property
    def namesrv_addr(self) -> str:
        """``host:port`` of each name server, as clients are given them."""
        return self._world.namesrv_addr

    @property
    def is_ready(self) -> bool:
        """Whether every broker is running and has its topics."""
        return all(broker.is_ready for broker in self.brokers)

    def create_topic(self, name: str, queues: int | None = None) -> None:
        """Have every broker make a topic when it first runs; to be called before the run."""
        for broker in self.brokers:
            broker.topics[name] = queues or self._world.options.queues

    # --- questions of a check, to the brokers that are ready --------------------------------------

    @property
    def _ready(self) -> list[SimBroker]:
        return [broker for broker in self.brokers if broker.is_ready]

    @property
    def _up(self) -> list[SimBroker]:
        return [broker for broker in self.brokers if broker.is_up]

    def broker_of(self, queue: MessageQueue) -> SimBroker:
        """Return the broker that has a queue."""
        (broker,) = (each for each in self.brokers if each.name == queue.broker_name)
        return broker

    def store(self, queue: MessageQueue) -> MessageStore:
        """Return the store that holds a queue."""
        return self.broker_of(queue).running.store

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic."""
        return [queue for broker in self._ready for queue in broker.queues(topic)]

    def logs(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic that hold or held messages, also of who stands still."""
        return [queue for broker in self._up for queue in broker.logs(topic)]

    def stored(self, topic: str) -> list[StoredMessage]:
        """Return every message of a topic, queue by queue; for the end of a run."""
        return [
            message
            for broker in self._up
            for queue in broker.logs(topic)
            for message in broker.stored(queue)
        ]

    def committed(self, group: str, topic: str) -> dict[MessageQueue, int]:
        """Return the offset of each queue of a group that has one."""
        found: dict[MessageQueue, int] = {}
        for broker in self._ready:
            found |= broker.committed(group, topic)
        return found

    @property
    def undelivered(self) -> int:
        """How many delayed messages wait."""
        return sum(broker.undelivered for broker in self._ready)

    @property
    def undecided_transactions(self) -> int:
        """How many transactions wait for their end."""
        return sum(broker.running.undecided_transactions for broker in self._ready)


def _read_queue(store: MessageStore, queue: MessageQueue) -> list[MessageExt]:
    topic, queue_id = queue.topic, queue.queue_id
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


def _have_accounts(node: Node) -> None:
    """Give a broker its first accounts; those an operator has changed since stay."""
    files, building = node.files, ACCOUNTS_FILE.with_suffix(".new")
    if not files.is_file(ACCOUNTS_FILE):
        files.write_bytes(building, ACCOUNTS)
        files.replace(building, ACCOUNTS_FILE)
        files.sync_directory(ACCOUNTS_FILE.parent)


async def _for_ever() -> None:
    await asyncio.get_running_loop().create_future()


def broker_config(world: World, name: str, host: str, extra: dict[str, Any]) -> BrokerConfig:
    """Return the settings of a simulated broker."""
    options: Options = world.options
    settings: dict[str, Any] = {
        "broker_name": name,
        "host": host,
        "broker_port": BROKER_PORT,
        "namesrv_addrs": tuple(world.namesrv_addr.split(";")),
        "tls": server_tls(options.tls) if options.tls else None,
        "acl": ACCOUNTS_FILE if options.accounts else None,
        "admin_without_tls": options.accounts,
        "flush": options.flush,
        "delay_levels": options.delay_levels,
        "default_topic_queue_nums": options.queues,
        "offset_persist_interval_ms": options.persist_interval_ms,
        "delay_persist_interval_ms": options.persist_interval_ms,
        "filter_persist_interval_ms": options.persist_interval_ms,
        "register_interval_ms": options.register_interval_ms,
        "transaction_timeout_ms": 2_000,
        "transaction_check_interval_ms": 3_000,
        # A producer finds with its second heartbeat that its connection delivers nothing.
        "transaction_check_max": 15 + 2 * options.heartbeat_ms // 3_000,
        "store_config": StoreConfig(
            commit_log_file_bytes=options.commit_log_file_bytes,
            consume_queue_file_bytes=options.consume_queue_units * 20,
            flush_interval_ms=options.flush_interval_ms,
            keep_interval_ms=options.keep_interval_ms,
            poll_interval_ms=options.keep_interval_ms,
            index_slots=16,
            index_entries=64,
            memory_bytes=1 << 30,
            retention=RetentionConfig(
                file_reserved_ms=options.retention_ms or RetentionConfig().file_reserved_ms,
                delete_when_hours=tuple(range(24)),
            ),
        ),
    }
    return BrokerConfig(**(settings | extra))
