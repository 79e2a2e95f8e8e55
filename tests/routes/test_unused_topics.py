"""Topics that are gone and that nobody uses are forgotten, and so are their brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, cast

import pytest

from rocketstream import ClientConfig, MessageModel, MessageQueue
from rocketstream.client.consumer.pull.impl import PullConsumerImpl
from rocketstream.client.consumer.settings import PullConsumerSettings
from rocketstream.client.hooks import ConsumeHooks, FilterHooks
from rocketstream.client.instance.api import MQClientAPI
from rocketstream.client.instance.groups import ConsumerInner, Groups
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.client.instance.outage_log import OutageLog
from rocketstream.client.instance.route_updates import RouteUpdates
from rocketstream.client.instance.routes import RouteTable
from rocketstream.client.producer.policy import ANY_QUEUE, QueueRotation, SendPolicy
from rocketstream.client.producer.settings import ProducerSettings
from rocketstream.errors import ConnectError, TopicNotExistError
from rocketstream.limits import ROUTE_QUESTIONS_AT_ONCE, UNUSED_TOPIC_MS
from rocketstream.protocol.bodies import BrokerData, QueueData, TopicRouteData
from rocketstream.testing import ManualClock

ROUND_MS = 30_000
LIVE, GONE = "live", "gone"
HERE, AWAY = "10.0.0.1:10911", "10.0.0.2:10911"


def route(broker: str, address: str) -> TopicRouteData:
    return TopicRouteData(
        queue_datas=[QueueData(broker, 2, 2, 6, 0)],
        broker_datas=[BrokerData("C", broker, {0: address})],
    )


class NameServer:
    """Knows some topics, or is silent; counts how many ask at one time."""

    def __init__(self) -> None:
        self.routes = {LIVE: route("broker-a", HERE), GONE: route("broker-b", AWAY)}
        self.silent = False
        self.asked: list[str] = []
        self._waiting = self.most = 0

    async def route(self, topic: str) -> TopicRouteData:
        self.asked.append(topic)
        self._waiting += 1
        self.most = max(self.most, self._waiting)
        await asyncio.sleep(0)
        self._waiting -= 1
        if self.silent:
            raise ConnectError("no name server answered")
        if topic not in self.routes:
            raise TopicNotExistError(17, f"no route of {topic}")
        return self.routes[topic]


class Scene:
    """The routes of one client, over time that is played; the topic GONE goes at ``topic_goes``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server = NameServer()
        self.instance = MQClientInstance(ClientConfig(namesrv_addr="ns:9876"), "c", ManualClock())
        self.groups: Groups = self.instance.groups
        self.table: RouteTable = self.instance.routes
        api = cast(MQClientAPI, self.server)
        self.updates = RouteUpdates(
            self.groups, api, self.table, OutageLog(ManualClock(), "c", self.groups)
        )
        self.now = 1_000.0
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now)

    async def topic_goes(self) -> None:
        await self.updates.refresh()
        del self.server.routes[GONE]

    async def rounds(self, ms: float, each: Callable[[], object] = bool) -> None:
        """Look at all routes again and again, for so long, and drop brokers without any."""
        end = self.now + ms / 1000
        while self.now <= end:
            each()
            await self.updates.refresh()
            self.table.forget_offline_brokers()
            self.now += ROUND_MS / 1000

    def known(self) -> list[str]:
        return sorted(self.table.topics())

    def send(self) -> None:
        steps = SendPolicy(ProducerSettings("p"), QueueRotation(0), lambda: 0.0, None).queue(
            self.table, GONE, ANY_QUEUE
        )
        next(steps, None)


def play(monkeypatch: pytest.MonkeyPatch, story: Callable[[Scene], Awaitable[None]]) -> None:
    async def run() -> None:
        scene = Scene(monkeypatch)
        try:
            await story(scene)
        finally:
            await scene.instance.close()

    asyncio.run(run())


class Subscriber:
    """A consumer, as far as routes are concerned."""

    def __init__(self, *topics: str) -> None:
        self.group, self.topics = "g", topics

    def subscribed_topics(self) -> Iterable[str]:
        return self.topics

    def release(self, topics: Iterable[str]) -> None:
        pass


def test_topic_that_is_gone_and_unused_is_dropped_with_its_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Covers C-142: a broker nobody needs any more was sent heartbeats and tried for ever."""

    async def story(scene: Scene) -> None:
        scene.groups.producer_topics.update((LIVE, GONE))
        await scene.topic_goes()
        await scene.rounds(UNUSED_TOPIC_MS - ROUND_MS)
        assert scene.known() == [GONE, LIVE]
        await scene.rounds(2 * ROUND_MS)
        assert scene.known() == [LIVE] == list(scene.table.publish_table)
        assert scene.table.subscribe_queues(GONE) is None
        assert scene.table.addresses(masters_only=False) == [HERE]
        assert scene.groups.producer_topics == {LIVE}
        # A later send finds no route, and asks as the first one does.
        await scene.updates.publish(LIVE, "TBW102", 4)
        scene.server.routes[GONE] = route("broker-b", AWAY)
        await scene.updates.publish(GONE, "TBW102", 4)
        assert scene.known() == [GONE, LIVE]
        assert scene.table.masters["broker-b"] == AWAY

    play(monkeypatch, story)


def test_topic_that_exists_stays_though_nobody_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A send may come while no name server answers."""

    async def story(scene: Scene) -> None:
        scene.groups.producer_topics.update((LIVE, GONE))
        await scene.rounds(3 * UNUSED_TOPIC_MS)
        assert scene.known() == [GONE, LIVE]

    play(monkeypatch, story)


def test_topic_that_is_gone_stays_while_somebody_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its broker may be there, and cut off from the name servers only."""

    async def story(scene: Scene) -> None:
        scene.groups.producer_topics.update((LIVE, GONE))
        await scene.topic_goes()
        await scene.rounds(3 * UNUSED_TOPIC_MS, scene.send)
        assert GONE in scene.table.publish_table

    play(monkeypatch, story)


def test_silence_of_name_servers_drops_no_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(scene: Scene) -> None:
        scene.groups.producer_topics.update((LIVE, GONE))
        await scene.topic_goes()
        await scene.rounds(UNUSED_TOPIC_MS - ROUND_MS)
        scene.server.silent = True
        await scene.rounds(3 * UNUSED_TOPIC_MS)
        scene.server.silent = False
        await scene.rounds(ROUND_MS)
        assert scene.known() == [GONE, LIVE]

    play(monkeypatch, story)


def test_subscribed_topic_that_is_gone_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(scene: Scene) -> None:
        scene.groups.producer_topics.add(GONE)
        scene.groups.add_consumer(cast(ConsumerInner, Subscriber(LIVE, GONE)))
        await scene.topic_goes()
        await scene.rounds(3 * UNUSED_TOPIC_MS)
        assert scene.known() == [GONE, LIVE]
        assert AWAY in scene.table.addresses(masters_only=False)

    play(monkeypatch, story)


def test_topic_nobody_subscribes_any_more_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its route is asked for no more, so what it says counts no more after a while."""

    async def story(scene: Scene) -> None:
        consumer = Subscriber(LIVE, GONE)
        scene.groups.add_consumer(cast(ConsumerInner, consumer))
        await scene.updates.refresh()
        consumer.topics = (LIVE,)
        await scene.rounds(UNUSED_TOPIC_MS + ROUND_MS)
        assert scene.known() == [LIVE]
        assert scene.table.addresses(masters_only=False) == [HERE]

    play(monkeypatch, story)


def test_topic_named_from_the_start_is_asked_for_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its brokers are to know the producer before the first send (C-446)."""

    async def story(scene: Scene) -> None:
        scene.groups.add_producer("p", [LIVE, GONE])
        await scene.topic_goes()
        await scene.rounds(UNUSED_TOPIC_MS + ROUND_MS)
        assert scene.known() == [LIVE]
        scene.server.routes[GONE] = route("broker-b", AWAY)
        await scene.rounds(0)
        assert scene.known() == [GONE, LIVE]

    play(monkeypatch, story)


def test_topics_of_a_transaction_producer_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that comes back asks how transactions ended; only one that knows us can."""

    async def check(*_: Any) -> None: ...

    async def story(scene: Scene) -> None:
        scene.groups.add_producer("p", [LIVE], check)
        scene.groups.producer_topics.add(GONE)
        await scene.topic_goes()
        await scene.rounds(3 * UNUSED_TOPIC_MS)
        assert scene.known() == [GONE, LIVE]

    play(monkeypatch, story)


class Stored:
    """A store that has all it was told, but for the offsets of some queues."""

    def __init__(self, unsettled: MessageQueue) -> None:
        self._unsettled = unsettled
        self.noted: dict[MessageQueue, int] = {}

    def update_offset(self, mq: MessageQueue, offset: int, *, increase_only: bool) -> None:
        self.noted[mq] = offset

    def remove_offset(self, mq: MessageQueue) -> None:
        del self.noted[mq]

    def is_settled(self, mq: MessageQueue) -> bool:
        return mq != self._unsettled


def test_pulled_topic_that_is_gone_is_forgotten_but_for_offsets_not_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(scene: Scene) -> None:
        settled, unsettled = (MessageQueue(GONE, "broker-b", i) for i in range(2))
        store: Any = Stored(unsettled)
        settings = PullConsumerSettings("g", message_model=MessageModel.CLUSTERING)
        consumer = PullConsumerImpl(
            scene.instance, "g", settings, store, {}, ConsumeHooks(), FilterHooks(), threaded=True
        )
        scene.groups.add_consumer(consumer)
        pulled = consumer._pulled
        pulled.update((LIVE, GONE))
        consumer._requests._suggested[settled] = 1
        consumer._requests._compacted[GONE] = True
        await scene.topic_goes()
        for mq in settled, unsettled:
            consumer.update_consume_offset(mq, 5)
        await scene.rounds(UNUSED_TOPIC_MS)
        assert set(consumer.subscribed_topics()) == {LIVE, GONE}  # an offset was noted: used
        await scene.rounds(ROUND_MS)
        assert set(consumer.subscribed_topics()) == {LIVE}
        assert scene.known() == [LIVE]
        assert not consumer._requests._suggested
        assert not consumer._requests._compacted
        assert store.noted == {unsettled: 5}

    play(monkeypatch, story)


def test_few_routes_are_asked_for_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every 30 s a client asked for those of all its topics at once."""

    async def story(scene: Scene) -> None:
        names = [f"job-{number:03}" for number in range(100)]
        scene.groups.producer_topics.update(names)
        await scene.updates.refresh()
        assert sorted(scene.server.asked) == names
        assert scene.server.most == ROUTE_QUESTIONS_AT_ONCE
        scene.now += 10
        await scene.updates.refresh([])
        assert len(scene.updates._asked_at) == len(names)
        scene.groups.producer_topics.clear()
        await scene.updates.refresh()
        assert not scene.updates._asked_at

    play(monkeypatch, story)
