"""Lite topics on Apache's 5.5.0: order, acknowledgement, redelivery, exclusive groups, restart.

One broker for the whole module: it stores in RocksDB, which others do without.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from rocketstream import (
    ConsumeConcurrentlyStatus,
    LitePushConsumer,
    LiteTopicContext,
    Message,
    MessageExt,
    OffsetOption,
    Producer,
    aio,
)
from rocketstream.errors import LiteTopicSetupError, NotSupportedError
from rocketstream.server.embedded import EmbeddedCluster
from tests.kits.apache.cluster import ApacheCluster, ask
from tests.plugins.apache import prepared
from tests.plugins.waiting import wait_until

pytestmark = [pytest.mark.interop]

SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
LATER = ConsumeConcurrentlyStatus.RECONSUME_LATER
SETTINGS = {
    "storeType": "defaultRocksDB",
    "enableLmq": "true",
    "enableMultiDispatch": "true",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheCluster]:
    root = tmp_path_factory.mktemp("lite-topics-")
    made = ApacheCluster(prepared("5.5.0"), root, broker_settings=SETTINGS).start()
    try:
        yield made
    finally:
        made.stop(kill=True)


@pytest.fixture
def place(cluster: ApacheCluster) -> tuple[str, str]:
    """A parent topic and a group bound to it."""
    topic = cluster.unique("agents")
    cluster.create_topic(topic, queues=4, attributes="+message.type=LITE")
    return topic, bound_group(cluster, topic)


def bound_group(cluster: ApacheCluster, topic: str, **attributes: str) -> str:
    group = cluster.unique("lite-group")
    wanted = {"+lite.bind.topic": topic, **attributes}
    body = json.dumps({"groupName": group, "consumeEnable": True, "attributes": wanted})
    code, answer = ask(cluster.broker_addr, 200, {}, body.encode())
    assert code == 0, answer
    return group


class Seen:
    """A listener that keeps bodies by lite topic and fails those it is told to."""

    def __init__(self) -> None:
        self.bodies: dict[str, list[str]] = defaultdict(list)
        self.times: list[int] = []
        self.failing: set[str] = set()
        self._lock = threading.Lock()

    def __call__(
        self, messages: list[MessageExt], context: LiteTopicContext
    ) -> ConsumeConcurrentlyStatus:
        with self._lock:
            for message in messages:
                assert message.lite_topic == context.lite_topic
                body = message.body.decode()
                if body in self.failing:
                    self.failing.discard(body)
                    return LATER
                self.times.append(message.reconsume_times)
                self.bodies[context.lite_topic].append(body)
            return SUCCESS

    @property
    def count(self) -> int:
        with self._lock:
            return sum(map(len, self.bodies.values()))

    def wait(self, count: int, timeout_s: float = 80) -> None:
        wait_until(lambda: self.count >= count, f"{count} messages", timeout_s=timeout_s)


def consumer(
    cluster: ApacheCluster, place: tuple[str, str], listener: Any, *names: str, **settings: Any
) -> LitePushConsumer:
    topic, group = place
    return LitePushConsumer(
        group, topic, namesrv_addr=cluster.namesrv_addr, listener=listener, lite_topics=names,
        **settings,
    )  # fmt: skip


def send(cluster: ApacheCluster, topic: str, *places: tuple[str, str]) -> None:
    with Producer("lite-producers", namesrv_addr=cluster.namesrv_addr) as producer:
        for name, body in places:
            producer.send(Message(topic, body, lite_topic=name))


def test_each_lite_topic_is_consumed_in_order_and_once(
    cluster: ApacheCluster, place: tuple[str, str]
) -> None:
    """Messages sent before anybody subscribed come too; a second member finds nothing left."""
    names = [f"agent-{number}" for number in range(20)]
    send(cluster, place[0], *((name, str(number)) for number in range(5) for name in names))
    seen = Seen()
    with consumer(cluster, place, seen, *names[:10], consume_message_batch_max_size=3) as made:
        made.subscribe_lite(names[10:])
        seen.wait(100)
    assert seen.bodies == {name: list("01234") for name in names}
    later = Seen()
    with consumer(cluster, place, later, *names):
        send(cluster, place[0], (names[7], "more"))
        later.wait(1)
    assert later.bodies == {names[7]: ["more"]}


def test_what_fails_comes_again_before_what_follows_it(
    cluster: ApacheCluster, place: tuple[str, str]
) -> None:
    seen = Seen()
    seen.failing = {"2"}
    with consumer(cluster, place, seen, "a", "b", suspend_ms=200):
        send(cluster, place[0], *(("a", str(number)) for number in range(4)), ("b", "x"))
        seen.wait(5)
    assert seen.bodies == {"a": list("0123"), "b": ["x"]}
    assert max(seen.times) == 1


def test_what_a_member_did_not_finish_comes_to_another(
    cluster: ApacheCluster, place: tuple[str, str]
) -> None:
    """Its listener never ended; what had not been begun comes at once, what had when time is up."""
    begun, never = threading.Event(), threading.Event()

    def stuck(_: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        begun.set()
        never.wait(60)
        return SUCCESS

    send(cluster, place[0], ("a", "0"), ("a", "1"), ("b", "2"))
    first = consumer(cluster, place, stuck, "a", "b", consume_thread_max=1, invisible_ms=10_000)
    first.start()
    assert begun.wait(30)
    first.shutdown(100)
    seen = Seen()
    with consumer(cluster, place, seen, "a", "b"):
        seen.wait(3)
    never.set()
    assert seen.bodies == {"a": ["0", "1"], "b": ["2"]}


def test_an_offset_option_moves_the_group(cluster: ApacheCluster, place: tuple[str, str]) -> None:
    send(cluster, place[0], *(("a", str(number)) for number in range(4)))
    seen = Seen()
    with consumer(cluster, place, seen) as made:
        made.subscribe_lite("a", OffsetOption.of_offset(2))
        seen.wait(2)
        made.unsubscribe_lite("a")
        made.subscribe_lite("a", OffsetOption.MIN_OFFSET)
        seen.wait(6)
    assert seen.bodies["a"] == list("230123")


def test_an_exclusive_lite_topic_is_with_the_member_that_came_last(
    cluster: ApacheCluster, place: tuple[str, str]
) -> None:
    group = bound_group(cluster, place[0], **{"+lite.sub.model": "Exclusive"})
    mine = (place[0], group)
    first, second = Seen(), Seen()
    with consumer(cluster, mine, first, "a", "b") as one, consumer(cluster, mine, second) as other:
        other.subscribe_lite("a")
        wait_until(lambda: one.lite_topics == {"b"}, "the name to be taken")
        send(cluster, place[0], ("a", "1"), ("b", "2"))
        second.wait(1)
        first.wait(1)
    assert (first.bodies, second.bodies) == ({"b": ["2"]}, {"a": ["1"]})


def test_coroutines_consume_too(cluster: ApacheCluster, place: tuple[str, str]) -> None:
    seen: list[tuple[str | None, bytes]] = []

    async def main() -> None:
        done = asyncio.Event()

        async def listener(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
            await asyncio.sleep(0)
            seen.extend((message.lite_topic, message.body) for message in messages)
            if len(seen) == 3:
                done.set()
            return SUCCESS

        addr = cluster.namesrv_addr
        async with (
            aio.Producer("lite-aio", namesrv_addr=addr) as producer,
            aio.LitePushConsumer(
                place[1], place[0], namesrv_addr=addr, listener=listener, lite_topics=["a"]
            ),
        ):
            for body in ("0", "1", "2"):
                await producer.send(Message(place[0], body, lite_topic="a"))
            async with asyncio.timeout(30):
                await done.wait()

    asyncio.run(main())
    assert seen == [("a", b"0"), ("a", b"1"), ("a", b"2")]


def test_topics_and_groups_not_made_for_it_are_named(
    cluster: ApacheCluster, place: tuple[str, str]
) -> None:
    plain = cluster.create_topic(cluster.unique("plain"))
    for topic, group in ((plain, place[1]), (place[0], cluster.unique("unbound"))):
        with pytest.raises(LiteTopicSetupError, match=r"\+lite\.bind\.topic="):
            consumer(cluster, (topic, group), Seen(), "a").start()


def test_the_embedded_broker_says_that_it_has_none() -> None:
    with EmbeddedCluster() as embedded:
        embedded.create_topic("agents")
        made = LitePushConsumer(
            "g", "agents", namesrv_addr=embedded.namesrv_addr, listener=Seen(), lite_topics=["a"]
        )
        with pytest.raises(NotSupportedError, match=r"Apache RocketMQ 5\.5 or later"):
            made.start()


def test_a_broker_that_was_killed_is_told_everything_again(
    cluster: ApacheCluster, place: tuple[str, str]
) -> None:
    """The last test: one member lives on over the kill, and gets what is sent afterwards, in order.

    What it acknowledged just before the kill may come again.
    """
    seen = Seen()
    with consumer(cluster, place, seen, "a", "new"):
        send(cluster, place[0], ("a", "0"))
        seen.wait(1)
        cluster.kill_broker()
        cluster.restart_broker()
        send(cluster, place[0], ("a", "1"), ("new", "2"), ("new", "3"))
        wait_until(
            lambda: "1" in seen.bodies["a"] and "3" in seen.bodies["new"], "what was sent", 60
        )
    assert {name: bodies[-2:] for name, bodies in seen.bodies.items()} == {
        "a": ["0", "1"],
        "new": ["2", "3"],
    }
