"""A broker and members of a group in one thread, every step of which a test chooses.

Law: the members' table, offsets, process queues and pull loop are the real ones; broker, network,
clock and listener are what the test says. Nothing waits.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from rocketstream import AllocateMessageQueueAveragely
from rocketstream.client.consumer.assignment import Assignment, RebalanceSettings
from rocketstream.client.consumer.offsets.store import RemoteBrokerOffsetStore
from rocketstream.client.consumer.process_queue import ProcessQueue, Thresholds
from rocketstream.client.consumer.puller import Puller
from rocketstream.client.consumer.push.impl import PushConsumerImpl
from rocketstream.client.consumer.queue import AssignedQueue, QueueLinks
from rocketstream.client.consumer.settings import PushConsumerSettings
from rocketstream.client.hooks import FilterHooks
from rocketstream.client.instance.groups import Groups
from rocketstream.client.instance.outage_log import OutageLog
from rocketstream.client.instance.routes import BrokerAddress
from rocketstream.errors import RequestTimeoutError
from rocketstream.model import ConsumeFromWhere, MessageModel, MessageQueue
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import PullMessageRequestHeader, PullMessageResponseHeader
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.record import RecordFields, encode_record
from rocketstream.protocol.subscription import build_subscription

TOPIC, BROKER, ADDRESS, GROUP = "T", "broker-a", "127.0.0.1:1", "g"
QUEUES = 4
FIRST_FOUND_MAX = 3

T = TypeVar("T")
Answered = Callable[[RemotingCommand | None, Exception | None], None]


class StillLoop(asyncio.SelectorEventLoop):
    """An event loop whose time stands still until it is moved on."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1_000.0

    def time(self) -> float:
        """Return the time a test has chosen."""
        return self.now_s


@dataclass
class Pull:
    """A pull on its way: asked, not answered."""

    member: Member
    header: PullMessageRequestHeader
    request: AssignedQueue
    answered: Answered

    @property
    def queue_id(self) -> int:
        """Its queue."""
        return self.header.queue_id


@dataclass
class Broker:
    """What the broker knows.

    Attributes:
        logs: by queue: whether each message passes the filter.
        bodies: by queue: each message as it is sent.
        offsets: committed, by queue.
        consumed: by queue: what some listener has finished.
        members: of the group, as told to whoever asks.
        refusals: how many of the next questions about offsets are answered with an error.
        late: commits that came with pulls and are noted only later.
    """

    logs: list[list[bool]] = field(default_factory=lambda: [[] for _ in range(QUEUES)])
    bodies: list[list[bytes]] = field(default_factory=lambda: [[] for _ in range(QUEUES)])
    offsets: dict[int, int] = field(default_factory=dict)
    consumed: list[set[int]] = field(default_factory=lambda: [set() for _ in range(QUEUES)])
    members: list[str] = field(default_factory=list)
    refusals: int = 0
    late: list[tuple[int, int]] = field(default_factory=list)

    def append(self, queue_id: int, passes: bool) -> None:
        """Store a message."""
        offset = len(self.logs[queue_id])
        self.logs[queue_id].append(passes)
        fields = RecordFields(
            topic=TOPIC, queue_id=queue_id, flag=0, sys_flag=0, born_timestamp=1,
            born_host=("127.0.0.1", 1), store_timestamp=2, store_host=("127.0.0.1", 2),
            reconsume_times=0, prepared_transaction_offset=0, body=b"x", properties="TAGS\x01A",
            queue_offset=offset, physical_offset=offset * 100,
        )  # fmt: skip
        self.bodies[queue_id].append(bytes(encode_record(fields)))

    def unconsumed(self, queue_id: int) -> int:
        """Return the first offset nobody has consumed and somebody should; the end without."""
        for offset, passes in enumerate(self.logs[queue_id]):
            if passes and offset not in self.consumed[queue_id]:
                return offset
        return len(self.logs[queue_id])

    def answer(self, pull: PullMessageRequestHeader) -> RemotingCommand:
        """Answer a pull as the broker does: found, all filtered, or nothing new."""
        log = self.logs[pull.queue_id]
        found: list[int] = []
        offset = pull.queue_offset
        while offset < len(log) and len(found) < FIRST_FOUND_MAX:
            if log[offset]:
                found.append(offset)
            offset += 1
        header = PullMessageResponseHeader(0, offset, 0, len(log))
        if found:
            body = b"".join(self.bodies[pull.queue_id][each] for each in found)
            return RemotingCommand.response(0, None, header, body)
        return RemotingCommand.response(20 if offset > pull.queue_offset else 19, None, header)


class Member:
    """One consumer: real table, offsets, queues and pull loop; the test is its listener."""

    subscription: Any = PushConsumerImpl.subscription
    may_pull: Any = PushConsumerImpl.may_pull
    terms: Any = PushConsumerImpl.terms
    accept: Any = PushConsumerImpl.accept
    start_queue: Any = PushConsumerImpl.start_queue
    sharing = RebalanceSettings(
        GROUP,
        MessageModel.CLUSTERING,
        AllocateMessageQueueAveragely(),
        where=ConsumeFromWhere.FIRST_OFFSET,
    )

    def __init__(self, world: World, client_id: str) -> None:
        self.world = world
        self.client_id = client_id
        self.group = GROUP
        self.settings = PushConsumerSettings(GROUP, pull_interval_ms=0)
        self.thresholds = Thresholds(count=8, span=20)
        self.filter_hooks = FilterHooks()
        self.subscriptions = {TOPIC: build_subscription(TOPIC, "A", 1)}
        self.handed: list[tuple[AssignedQueue, MessageExt]] = []
        self.alive = True
        instance = cast(Any, _Instance(self))
        self.store = RemoteBrokerOffsetStore(instance, GROUP)
        self.pulls: Puller[AssignedQueue] = Puller(instance, GROUP, cast(Any, self))
        self.links = QueueLinks(
            self.store, self.pulls.pull_soon, self.submit, cast(Any, world.clock)
        )
        self.queues: Assignment[AssignedQueue] = Assignment(
            instance, self.sharing, cast(Any, self), store=self.store, locking=cast(Any, self)
        )
        self._flow_hits = Counter[bool]()
        self._retry_topic, self._namespace = f"%RETRY%{GROUP}", None

    # --- what is asked of a consumer besides ------------------------------------------------------

    def is_active(self) -> bool:
        """Always."""
        return True

    async def may_take(self, mqs: Sequence[MessageQueue]) -> Collection[MessageQueue]:
        """All."""
        return mqs

    def new_queue(self, mq: MessageQueue, offset: int) -> AssignedQueue:
        """As for a concurrent listener."""
        held = ProcessQueue(mq, self.world.clock.monotonic_ms())
        return AssignedQueue(held, offset, self.thresholds, self.links)

    async def give_up(self, queues: Sequence[Any]) -> Any:
        """Nothing to do."""

    async def released(self, mqs: Sequence[MessageQueue]) -> None:
        """Nothing to unlock."""

    def connection_lost(self, address: str) -> None:
        """Nothing was granted."""

    def connection_made(self, address: str) -> None:
        """Nothing to ask for."""

    async def queues_changed(
        self, topic: str, all_queues: Sequence[MessageQueue], mine: Sequence[MessageQueue]
    ) -> None:
        """Nobody to tell."""

    def submit(self, queue: AssignedQueue, messages: list[MessageExt]) -> None:
        """Hand messages to the listener, which finishes them when the test says so."""
        if queue.dropped:
            self.world.handed_late.append(queue.message_queue)
        self.handed += [(queue, message) for message in messages]

    def moved(self, queue: AssignedQueue, offset: int) -> None:
        """Never asked for: the log is never cut."""
        raise AssertionError(f"repair of {queue.message_queue} at {offset}")

    ends_before = moved

    # --- what the test makes it do ----------------------------------------------------------------

    def rebalance(self) -> bool:
        """Run a round."""
        return self.world.run(self.queues.rebalance([TOPIC]))

    def finish(self, number: int) -> None:
        """Have the listener return from one of its messages."""
        request, message = self.handed.pop(number)
        self.world.broker.consumed[message.queue_id].add(message.queue_offset)
        request.finish(message)

    def persist(self) -> None:
        """Send offsets, as the timer does."""
        self.world.run(self.store.persist(list(self.queues.table)))

    def leave(self) -> None:
        """Shut down in order; what the listener still has counts no more."""
        self.alive = False
        self.queues.stop()
        self.pulls.stop()
        self.world.run(self.queues.close())
        self.world.broker.members.remove(self.client_id)

    def crash(self) -> None:
        """Be gone without a word; answers to its pulls find nobody."""
        self.alive = False
        self.pulls.stop()
        self.queues.stop()
        self.world.pulls = [pull for pull in self.world.pulls if pull.member is not self]
        self.world.broker.members.remove(self.client_id)


class World:
    """Broker, members, and everything on its way between them."""

    def __init__(self) -> None:
        self.loop = StillLoop()
        self.clock = SimpleNamespace(
            now_ms=lambda: int(self.loop.now_s * 1000), monotonic_ms=lambda: self.loop.now_s * 1000
        )
        self.broker = Broker()
        self.members: list[Member] = []
        self.pulls: list[Pull] = []
        self.handed_late: list[MessageQueue] = []
        self.joined = 0
        self.losses = 0

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work that waits for nothing but itself."""
        return self.loop.run_until_complete(work)

    def settle(self) -> None:
        """Run what is due."""
        for _ in range(3):
            self.run(asyncio.sleep(0))

    def join(self) -> Member:
        """Let a new member in; brokers know it at once, others at their next round."""
        self.joined += 1

        async def make() -> Member:
            return Member(self, f"c{self.joined}")

        member = self.run(make())
        self.members.append(member)
        self.broker.members.append(member.client_id)
        return member

    def advance(self, ms: float) -> None:
        """Let time pass."""
        self.loop.now_s += ms / 1000
        self.settle()

    def pulled(self, pull: Pull) -> None:
        """A pull has come to the broker; the offset with it may be noted now or later."""
        if pull.header.commit_offset > 0:
            self.broker.late.append((pull.queue_id, pull.header.commit_offset))
        self.pulls.append(pull)

    def note_late(self) -> None:
        """Have the broker note the offsets that came with pulls."""
        for queue_id, offset in self.broker.late:
            self.broker.offsets[queue_id] = offset
        self.broker.late.clear()

    def answer(self, number: int) -> None:
        """Answer one of the pulls."""
        pull = self.pulls.pop(number)
        pull.answered(self.broker.answer(pull.header), None)
        self.settle()

    def fail(self, number: int) -> None:
        """Let one of the pulls time out."""
        self.pulls.pop(number).answered(None, RequestTimeoutError("no answer"))
        self.settle()

    def close(self) -> None:
        """End all members and the loop."""
        for member in self.members:
            member.pulls.stop()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.settle()
        self.loop.close()


class _Instance:
    """As much of ``MQClientInstance`` as a member's parts use."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._world = member.world
        self.client_id = member.client_id
        self.clock = member.world.clock
        self.api = self.routes = self.remoting = self.stats = self
        self.route_updates = self.links = self.heartbeats = self.groups = self.background = self
        self.outages = OutageLog(cast(Any, self.clock), "me", Groups())
        self.name_servers = SimpleNamespace(addresses=[ADDRESS])
        self.config = SimpleNamespace(
            persist_consumer_offset_interval_ms=5_000,
            pull_time_delay_ms_when_exception=1_000, unit_mode=False,
            effective_namespace=lambda: None,
        )  # fmt: skip

    # routes and connections
    def subscribe_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        return tuple(MessageQueue(TOPIC, BROKER, number) for number in range(QUEUES))

    def group_addresses(self, topic: str) -> list[str]:
        return [ADDRESS]

    def find_for_subscribe(self, broker_name: str, broker_id: int) -> BrokerAddress:
        return BrokerAddress(ADDRESS, is_slave=False)

    def connected(self, address: str) -> _Instance:
        return self

    async def update(self, topic: str) -> bool:
        return True

    def channel(self, address: str) -> str:
        return address

    def losses(self, address: str) -> int:
        return self._world.losses

    def is_away(self, broker_name: str) -> bool:
        return False

    # requests
    async def send(self) -> None:
        pass

    async def consumer_ids(self, address: str, group: str) -> list[str]:
        return list(self._world.broker.members)

    async def query_consumer_offset(self, address: str, group: str, mq: MessageQueue) -> int | None:
        self._maybe_refuse()
        return self._world.broker.offsets.get(mq.queue_id)

    async def update_consumer_offset(
        self, address: str, group: str, mq: MessageQueue, offset: int
    ) -> None:
        self._maybe_refuse()
        self._world.broker.offsets[mq.queue_id] = offset

    def _maybe_refuse(self) -> None:
        if self._world.broker.refusals:
            self._world.broker.refusals -= 1
            raise RequestTimeoutError("no answer")

    def request_callback(
        self, command: RemotingCommand, timeout_ms: float, answered: Answered
    ) -> None:
        header = command.header(PullMessageRequestHeader)
        mq = MessageQueue(TOPIC, BROKER, header.queue_id)
        request = self._member.queues.table[mq]
        self._world.pulled(Pull(self._member, header, request, answered))

    # background work and figures
    def run_soon(self, work: Coroutine[Any, Any, None]) -> None:
        self._world.loop.create_task(work)

    def send_soon(self) -> None:
        pass

    def rebalance_soon(self) -> None:
        pass

    def inc_pull_rt(self, group: str, topic: str, rt_ms: float) -> None:
        pass

    def inc_pull_tps(self, group: str, topic: str, messages: int) -> None:
        pass
