"""A client instance without a network, on a loop whose time the tests move.

It answers what they say.

Law: keeps what it is told, and decides nothing; one object stands for all parts of an instance.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from types import SimpleNamespace
from typing import Any

from rocketstream import ClientConfig, MessageQueue
from rocketstream.client.instance.routes import BrokerAddress
from rocketstream.client.stats import ConsumerStats
from rocketstream.errors import RouteNotFoundError
from rocketstream.protocol.command import RemotingCommand
from tests.kits.client.model_cluster import StillLoop

MASTER = "m:1"


class StillStore:
    """Offsets that are noted and stored, and every call that changed them.

    Attributes:
        noted, stored: by queue.
        calls: name and what it was called with.
        passed: what others have overtaken.
        unsettled: the queues whose offsets could not be stored.
        error: of the next reads of the store.
    """

    def __init__(self) -> None:
        self.noted: dict[MessageQueue, int] = {}
        self.stored: dict[MessageQueue, int] = {}
        self.calls: list[tuple[Any, ...]] = []
        self.passed: dict[MessageQueue, int] = {}
        self.unsettled: set[MessageQueue] = set()
        self.piggyback = 0
        self.error: Exception | None = None

    def update_offset(self, mq: MessageQueue, offset: int, *, increase_only: bool = True) -> None:
        self.calls.append(("update", mq, offset, increase_only))
        self.noted[mq] = offset

    def read_memory(self, mq: MessageQueue) -> int | None:
        return self.noted.get(mq)

    async def read_store(self, mq: MessageQueue) -> int | None:
        if self.error is not None:
            raise self.error
        return self.stored.get(mq)

    def remove_offset(self, mq: MessageQueue) -> None:
        self.calls.append(("remove", mq))
        self.noted.pop(mq, None)

    async def persist(self, mqs: Iterable[MessageQueue]) -> None:
        self.calls.append(("persist", sorted(mqs)))

    async def persist_for_good(self, mqs: Iterable[MessageQueue]) -> None:
        self.calls.append(("persist for good", sorted(mqs)))

    def is_settled(self, mq: MessageQueue) -> bool:
        return mq not in self.unsettled

    def doubt(self, mqs: Iterable[MessageQueue]) -> None:
        self.calls.append(("doubt", sorted(mqs)))

    async def check(self, mqs: Iterable[MessageQueue]) -> None:
        self.calls.append(("check", sorted(mqs)))

    def overtaken(self, mqs: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        return {mq: offset for mq, offset in self.passed.items() if mq in set(mqs)}

    def piggyback_offset(self, mq: MessageQueue) -> int:
        return self.piggyback

    def piggybacked(self, mq: MessageQueue) -> None:
        self.calls.append(("piggybacked", mq))

    def connection_lost(self, address: str) -> None:
        self.calls.append(("connection lost", address))

    def called(self, name: str) -> list[tuple[Any, ...]]:
        return [call for call in self.calls if call[0] == name]


class StillClient:
    """The instance, its parts, and its loop.

    Attributes:
        said: what was said of outages, without texts.
        done: other things it was asked to do, in order.
        queues: of every topic that has a route.
        pulls: requests on their way by callback, with how to answer.
        answers: of requests that are awaited, by code; an error is raised.
        route_error: of the next look-ups of a route.
    """

    def __init__(self, **settings: Any) -> None:
        self.loop = StillLoop()
        self.config = ClientConfig(namesrv_addr="x:1", **settings)
        self.clock = SimpleNamespace(
            now_ms=lambda: round(self.loop.now_s * 1000),
            monotonic_ms=lambda: round(self.loop.now_s * 1000, 3),
        )
        self.client_id = "10.0.0.1@7"
        self.api = self.routes = self.route_updates = self.remoting = self.background = self
        self.outages = self.groups = self.heartbeats = self.links = self.callbacks = self
        self.stats = ConsumerStats(self.clock)
        self.said: list[tuple[object, ...]] = []
        self.done: list[tuple[Any, ...]] = []
        self.queues: dict[str, tuple[MessageQueue, ...]] = {}
        self.used: set[str] = set()
        self.pulls: list[tuple[RemotingCommand, Any]] = []
        self.answers: dict[int, RemotingCommand | Exception] = {}
        self.asked: list[tuple[str, RemotingCommand, float]] = []
        self.members = [self.client_id]
        self.masters = {"broker-a": MASTER}
        self.ends = (0, 77)
        self.route_error: Exception | None = None
        self.refusal: BaseException | None = None
        self.name_servers = SimpleNamespace(addresses=["x:1"])

    # --- the loop ---------------------------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def turn(self, ms: float = 0) -> None:
        """Let time pass, and do what is due."""
        self.loop.now_s += ms / 1000
        for _ in range(12):
            self.run(asyncio.sleep(0))

    def close(self) -> None:
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.turn()
        self.loop.close()

    # --- what machines ask for --------------------------------------------------------------------

    def run_soon(self, work: Coroutine[Any, Any, None]) -> None:
        self.loop.create_task(work)

    def add_consumer(self, consumer: Any) -> None:
        self.done.append(("added", consumer.group))
        self._maybe_refuse("add")

    async def unregister_consumer(self, group: str) -> None:
        self.done.append(("unregistered", group))

    def rebalance_soon(self) -> None:
        self.done.append(("rebalance",))

    async def send(self, data: Any = None) -> None:
        self.done.append(("beat", data) if data is not None else ("beat",))

    def send_soon(self) -> None:
        self.done.append(("beat soon",))

    async def check_client_in_broker(self, consumer: Any) -> None:
        self.done.append(("checked", consumer.group))
        self._maybe_refuse("check")

    def _maybe_refuse(self, what: str) -> None:
        if self.refusal is not None and self.refusal.args[0] == what:
            raise self.refusal

    async def update(self, topic: str) -> bool:
        self.done.append(("route", topic))
        if self.route_error is not None:
            raise self.route_error
        return topic in self.queues

    def subscribe_queues(self, topic: str) -> tuple[MessageQueue, ...] | None:
        return self.queues.get(topic)

    def group_addresses(self, topic: str) -> list[str]:
        return [MASTER]

    async def consumer_ids(self, address: str, group: str) -> list[str]:
        return list(self.members)

    def find_for_subscribe(self, broker_name: str, broker_id: int) -> BrokerAddress | None:
        address = self.masters.get(broker_name)
        return None if address is None else BrokerAddress(address, is_slave=broker_id > 0)

    def known_master(self, broker: str) -> str:
        if broker not in self.masters:
            raise RouteNotFoundError(f"no {broker}", broker=broker)
        return self.masters[broker]

    def channel(self, address: str) -> str:
        return address

    def broker_version(self, address: str) -> int:
        return 500

    def losses(self, address: str) -> int:
        return 0

    def is_away(self, broker: str) -> bool:
        return False

    def connected(self, address: str) -> StillClient:
        return self

    async def connection(self, address: str) -> StillClient:
        return self

    def request_callback(self, command: RemotingCommand, timeout_ms: float, answered: Any) -> None:
        self.pulls.append((command, answered))

    async def request(
        self, address: str, command: RemotingCommand, timeout_ms: float
    ) -> RemotingCommand:
        self.asked.append((address, command, timeout_ms))
        answer = self.answers[command.code]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def invoke(
        self, address: str, command: RemotingCommand, timeout_ms: float
    ) -> RemotingCommand:
        return RemotingCommand.response(0)

    async def max_offset(self, address: str, mq: MessageQueue) -> int:
        return self.ends[1]

    async def min_offset(self, address: str, mq: MessageQueue) -> int:
        return self.ends[0]

    # --- outages ----------------------------------------------------------------------------------

    def __bool__(self) -> bool:
        return True

    def failed(self, subject: tuple[object, ...], error: Exception, *, expected: int = 0) -> None:
        self.said.append(("failed", *subject))

    def worked(self, *subject: object) -> None:
        self.said.append(("worked", *subject))

    def report(self, subject: tuple[object, ...], line: str, *, expected: int = 0) -> None:
        self.said.append(("told", *subject))

    def subscribed(self, group: str) -> None:
        self.said.append(("subscribed", group))

    def unsubscribed(self, group: str) -> None:
        self.said.append(("unsubscribed", group))

    def forget(self, *subject: object) -> None:
        """Nothing is kept."""

    def answered(self, address: str) -> None:
        """Servers that answer are no news."""

    def id_is_shared(self, address: str, **how: Any) -> None:
        """Ids are no news either."""
