"""The FastStream broker consumes: at least once, retried, dead in the end, given back."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated, Any

import pytest
from faststream import AckPolicy, Context
from faststream.exceptions import NackMessage, RejectMessage, SkipMessage, StopConsume
from pydantic import BaseModel

from rocketstream.client.keywords import PushConsumerKeywords
from rocketstream.errors import ClientStateError, ConfigurationError
from rocketstream.frameworks.faststream import RocketMQBroker, RocketMQMessage
from rocketstream.frameworks.faststream.message import RocketMQMessage as Received
from rocketstream.frameworks.intake import Delivery
from rocketstream.model import Message, MessageModel, MessageSelector
from rocketstream.testing import received_message
from tests.frameworks.faststream_support import dead, made, running, sent_by_hand
from tests.frameworks.seen import WAIT_S, Seen, committed, until
from tests.kits.cluster import Cluster


class Order(BaseModel):
    number: int
    what: str = "tea"


def test_every_message_is_handled_and_consumed(cluster: Cluster, topic: str) -> None:
    async def scenario() -> list[int]:
        broker, seen = made(cluster), Seen()

        @broker.subscriber(topic, group=f"{topic}-g")
        async def handle(order: Order) -> None:
            await seen.add(order.number)

        async with running(broker):
            for number in range(50):
                await broker.publish(Order(number=number), topic)
            found = await seen.wait(50)
            await committed(cluster, f"{topic}-g", topic, 50)
        return found

    assert sorted(asyncio.run(scenario())) == list(range(50))


def test_a_plain_function_handles_messages_too(cluster: Cluster, topic: str) -> None:
    async def scenario() -> None:
        broker, seen = made(cluster), Seen()
        loop = asyncio.get_running_loop()

        @broker.subscriber(topic, group=f"{topic}-g")
        def handle(text: str) -> None:
            asyncio.run_coroutine_threadsafe(seen.add(text), loop).result()

        async with running(broker):
            await broker.publish("hello", topic)
            assert await seen.wait(1) == ["hello"]
            await committed(cluster, f"{topic}-g", topic, 1)

    asyncio.run(scenario())


def test_a_handler_that_raises_is_tried_again_and_ends_in_the_dead_letters(
    cluster: Cluster, topic: str
) -> None:
    async def scenario() -> None:
        broker, seen = made(cluster), Seen()

        @broker.subscriber(topic, group=f"{topic}-g", consumer_settings={"max_reconsume_times": 2})
        async def handle(text: str, message: RocketMQMessage) -> None:
            await seen.add((text, message.raw_message.reconsume_times))
            raise LookupError("always")

        async with running(broker):
            await broker.publish("lost", topic)
            (letter,) = await dead(cluster, f"{topic}-g")
            assert letter.body == b"lost"
            assert seen.items == [("lost", 0), ("lost", 1), ("lost", 2)]

    asyncio.run(scenario())


def test_a_message_that_is_none_of_the_type_is_tried_again(cluster: Cluster, topic: str) -> None:
    """What a handler's type refuses is not lost either."""

    async def scenario() -> None:
        broker, seen = made(cluster), Seen()

        @broker.subscriber(topic, group=f"{topic}-g", consumer_settings={"max_reconsume_times": 1})
        async def handle(order: Order) -> None:
            await seen.add(order)

        async with running(broker):
            await broker.publish({"number": "many"}, topic)
            await broker.publish(b"{", topic)
            assert len(await dead(cluster, f"{topic}-g", 2)) == 2
            assert seen.items == []

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("policy", "ends"),
    [
        (AckPolicy.ACK, "consumed"),
        (AckPolicy.ACK_FIRST, "consumed"),
        (AckPolicy.REJECT_ON_ERROR, "dead"),
        (AckPolicy.NACK_ON_ERROR, "again"),
    ],
)
def test_the_policy_says_what_becomes_of_a_message_whose_handler_raises(
    cluster: Cluster, topic: str, policy: AckPolicy, ends: str
) -> None:
    async def scenario() -> None:
        broker, seen, group = made(cluster), Seen(), f"{topic}-g"

        @broker.subscriber(topic, group=group, ack_policy=policy)
        async def handle(text: str) -> None:
            await seen.add(text)
            if len(seen.items) == 1:
                raise LookupError("once")

        async with running(broker):
            await broker.publish("x", topic)
            await committed(cluster, group, topic, 1)
            if ends == "dead":
                await dead(cluster, group)
            assert await seen.wait(2 if ends == "again" else 1) == ["x"] * len(seen.items)
        assert len(seen.items) == (2 if ends == "again" else 1)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("raised", "ends", "levels"),
    [
        (NackMessage(delay_level=2), "again", [0, 2]),
        (NackMessage(), "again", [0, 3]),  # what brokers choose for the first retry
        (RejectMessage(), "dead", [0]),
        (SkipMessage(), "again", [0, 3]),
    ],
)
def test_a_handler_settles_by_raising(
    cluster: Cluster, topic: str, raised: Exception, ends: str, levels: list[int]
) -> None:
    async def scenario() -> None:
        broker, seen, group = made(cluster, ack_policy=AckPolicy.ACK), Seen(), f"{topic}-g"

        @broker.subscriber(topic, group=group)
        async def handle(text: str, message: RocketMQMessage) -> None:
            await seen.add(message.raw_message.delay_level)
            if len(seen.items) == 1:
                raise raised

        async with running(broker):
            await broker.publish("x", topic)
            if ends == "dead":
                await dead(cluster, group)
            else:
                await seen.wait(2)
        assert seen.items == levels

    asyncio.run(scenario())


@pytest.mark.parametrize("way", ["nack", "reject"])
def test_a_handler_settles_by_hand(cluster: Cluster, topic: str, way: str) -> None:
    """And the first answer counts: what FastStream says at the end changes nothing."""

    async def scenario() -> None:
        broker, seen, group = made(cluster), Seen(), f"{topic}-g"

        @broker.subscriber(topic, group=group)
        async def handle(text: str, message: RocketMQMessage) -> None:
            await seen.add(text)
            if len(seen.items) == 1:
                await getattr(message, way)()

        async with running(broker):
            await broker.publish("x", topic)
            if way == "nack":
                await seen.wait(2)
            else:
                await dead(cluster, group)
        assert len(seen.items) == (2 if way == "nack" else 1)

    asyncio.run(scenario())


def test_no_offset_passes_a_message_that_is_not_settled(cluster: Cluster, topic: str) -> None:
    """Not even in MANUAL, where the handler returned long ago; acknowledged later, it does."""

    async def scenario() -> None:
        broker, seen, group = made(cluster), Seen(), f"{topic}-g"
        kept: list[Any] = []

        @broker.subscriber(topic, group=group, ack_policy=AckPolicy.MANUAL)
        async def handle(number: int, message: RocketMQMessage) -> None:
            if number == 0:
                kept.append(message)
            else:
                await message.ack()
            await seen.add(number)

        async with running(broker):
            for number in range(20):
                await broker.publish(number, topic, sharding_key=str(number % 2))
            await seen.wait(20)
            await committed(cluster, group, topic, 10)  # all of the other queue, none of this one
            await kept[0].ack()
            await committed(cluster, group, topic, 20)
        assert sorted(seen.items) == list(range(20))

    asyncio.run(scenario())


def test_a_broker_that_stops_gives_back_what_was_not_done(cluster: Cluster, topic: str) -> None:
    """And only that: what was done behind it does not come again."""

    async def scenario() -> None:
        group, never = f"{topic}-g", asyncio.Event()
        first, begun = made(cluster, graceful_timeout=0.1), Seen()

        @first.subscriber(topic, group=group)
        async def stuck(number: int) -> None:
            if number in (0, 7):
                await begun.add(number)
                await never.wait()
            await begun.add(number)

        async with running(first):
            for number in range(20):
                await first.publish(number, topic)
            await begun.wait(20)

        second, seen = made(cluster), Seen()

        @second.subscriber(topic, group=group)
        async def handle(number: int) -> None:
            await seen.add(number)

        async with running(second):
            await second.publish(20, topic)
            assert sorted(await seen.wait(3)) == [0, 7, 20]
            await committed(cluster, group, topic, 21)
        assert len(seen.items) == 3

    asyncio.run(scenario())


def test_a_broker_that_stops_waits_for_its_handlers(cluster: Cluster, topic: str) -> None:
    async def scenario() -> None:
        group, go = f"{topic}-g", asyncio.Event()
        broker, begun, ended = made(cluster), Seen(), Seen()

        @broker.subscriber(topic, group=group, max_workers=1)
        async def slow(number: int) -> None:
            await begun.add(number)
            await go.wait()
            await ended.add(number)

        await broker.start()
        for number in range(3):
            await broker.publish(number, topic)
        (first,) = await begun.wait(1)
        stopping = asyncio.create_task(broker.stop())
        await asyncio.sleep(0)
        go.set()
        await stopping
        assert ended.items == [first]  # the other two are not begun any more

    asyncio.run(scenario())


def test_a_message_not_settled_in_time_comes_again(cluster: Cluster, topic: str) -> None:
    async def scenario() -> None:
        broker, seen = made(cluster), Seen()

        @broker.subscriber(topic, group=f"{topic}-g", ack_policy=AckPolicy.MANUAL, ack_limit_s=0.2)
        async def forgets(text: str) -> None:
            await seen.add(text)

        async with running(broker):
            await broker.publish("x", topic)
            await seen.wait(2)

    asyncio.run(scenario())


def test_no_more_are_handled_at_once_than_there_are_workers(cluster: Cluster, topic: str) -> None:
    async def scenario() -> None:
        broker, seen = made(cluster), Seen()
        now, most = 0, 0

        @broker.subscriber(topic, group=f"{topic}-g", max_workers=3)
        async def handle(number: int) -> None:
            nonlocal now, most
            now += 1
            most = max(most, now)
            for _ in range(20):
                await asyncio.sleep(0)
            now -= 1
            await seen.add(number)

        async with running(broker):
            await asyncio.gather(*(broker.publish(number, topic) for number in range(40)))
            await seen.wait(40)
        assert most == 3

    asyncio.run(scenario())


def test_tags_say_which_messages_a_handler_gets(cluster: Cluster, topic: str) -> None:
    async def scenario() -> None:
        broker, seen = made(cluster), Seen()

        @broker.subscriber(topic, group=f"{topic}-g", expression="paid || lost")
        async def handle(text: str, message: RocketMQMessage) -> None:
            await seen.add((text, message.raw_message.tags))

        @broker.subscriber(
            topic, group=f"{topic}-s", expression=MessageSelector.by_sql("price > 5")
        )
        async def dear(text: str) -> None:
            await seen.add((text, "dear"))

        async with running(broker):
            await broker.publish("a", topic, tags="paid")
            await broker.publish("b", topic, tags="new", headers={"price": "9"})
            await broker.publish("c", topic, tags="lost", headers={"price": "2"})
            found = await seen.wait(3)
        assert sorted(found) == [("a", "paid"), ("b", "dear"), ("c", "lost")]

    asyncio.run(scenario())


def test_in_order_a_queue_waits_for_the_message_at_its_head(cluster: Cluster, topic: str) -> None:
    async def scenario() -> None:
        broker, seen, group = made(cluster), Seen(), f"{topic}-g"

        @broker.subscriber(
            topic,
            group=group,
            orderly=True,
            consumer_settings={"suspend_current_queue_time_ms": 10},
        )
        async def handle(number: int) -> None:
            await seen.add(number)
            if number == 3 and seen.items.count(3) < 3:
                raise LookupError("twice")
            if number == 5:
                raise RejectMessage

        async with running(broker):
            for number in range(8):
                await broker.publish(number, topic, sharding_key="one")
            await seen.wait(10)
            (letter,) = await dead(cluster, group)
            assert letter.body == b"5"
            await committed(cluster, group, topic, 8)
        assert seen.items == [0, 1, 2, 3, 3, 3, 4, 5, 6, 7]

    asyncio.run(scenario())


@pytest.mark.parametrize("orderly", [False, True])
def test_a_handler_that_raises_a_cancellation_of_its_own_is_tried_again(
    cluster: Cluster, topic: str, orderly: bool
) -> None:
    """Something it waited for was cancelled; in order the queue would wait for ever."""

    async def scenario() -> None:
        broker, seen, group = made(cluster), Seen(), f"{topic}-g"
        soon: PushConsumerKeywords | None = (
            {"suspend_current_queue_time_ms": 10} if orderly else None
        )

        @broker.subscriber(topic, group=group, orderly=orderly, consumer_settings=soon)
        async def handle(number: int) -> None:
            await seen.add(number)
            if seen.items == [0]:
                raise asyncio.CancelledError

        async with running(broker):
            await broker.publish(0, topic)
            assert await seen.wait(2) == [0, 0]
            await committed(cluster, group, topic, 1)

    asyncio.run(scenario())


def test_a_broker_that_stops_gives_an_ordered_queue_back_as_it_is(
    cluster: Cluster, topic: str
) -> None:
    async def scenario() -> None:
        group, never = f"{topic}-g", asyncio.Event()
        first, begun = made(cluster, graceful_timeout=0.1), Seen()

        @first.subscriber(topic, group=group, orderly=True)
        async def stuck(number: int) -> None:
            await begun.add(number)
            if number == 2:
                await never.wait()

        async with running(first):
            for number in range(5):
                await first.publish(number, topic, sharding_key="one")
            await begun.wait(3)

        second, seen = made(cluster), Seen()

        @second.subscriber(topic, group=group, orderly=True)
        async def handle(number: int) -> None:
            await seen.add(number)

        async with running(second):
            assert await seen.wait(3) == [2, 3, 4]
            await committed(cluster, group, topic, 5)

    asyncio.run(scenario())


def test_a_handler_may_stop_its_subscriber(cluster: Cluster, topic: str) -> None:
    """What it raised in is tried again by the next."""

    async def scenario() -> None:
        group, seen = f"{topic}-g", Seen()
        broker = made(cluster)

        @broker.subscriber(topic, group=group, max_workers=1)
        async def handle(text: str) -> None:
            await seen.add(text)
            raise StopConsume

        async with running(broker):
            await broker.publish("x", topic)
            await seen.wait(1)
            subscriber = broker.subscribers[0]
            await until(lambda: not subscriber.running)
            await subscriber.start()
            assert await seen.wait(2) == ["x", "x"]

    asyncio.run(scenario())


def test_messages_are_taken_by_hand_from_a_subscriber_without_handlers(
    cluster: Cluster, topic: str
) -> None:
    async def scenario() -> None:
        broker, group = made(cluster), f"{topic}-g"
        subscriber = broker.subscriber(topic, group=group, persistent=False)
        with pytest.raises(ClientStateError, match="not started"):
            await subscriber.get_one()
        async with running(broker):
            assert await subscriber.get_one(timeout=0.05) is None
            await broker.publish({"a": 1}, topic, headers={"from": "here"})
            message = await subscriber.get_one(timeout=WAIT_S)
            assert message is not None
            assert await message.decode() == {"a": 1}
            assert message.headers["from"] == "here"
            await message.nack()
            async with asyncio.timeout(WAIT_S):
                async for again in subscriber:
                    assert await again.decode() == {"a": 1}
                    await again.ack()
                    break
            await committed(cluster, group, topic, 1)

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["get_one", "iteration"])
@pytest.mark.parametrize("fails", [False, True], ids=["cancelled", "raises"])
def test_a_message_taken_by_hand_that_cannot_be_handed_over_comes_again(
    how: str, fails: bool
) -> None:
    """Its taker never gets it, so nobody could settle it: in order, its queue would stand still."""

    async def scenario() -> None:
        parsing = asyncio.Event()

        async def parse(message: Any, original: Any) -> Any:
            parsing.set()
            if fails:
                raise LookupError("no such schema")
            await asyncio.Event().wait()

        subscriber: Any = RocketMQBroker("127.0.0.1:1", logger=None).subscriber(
            "orders", group="g", parser=parse
        )
        subscriber._intake = object()  # as one that is started
        delivery = Delivery(received_message("orders", b"7"), None)
        subscriber._arrived.put_nowait(delivery)
        taking = subscriber.get_one() if how == "get_one" else anext(aiter(subscriber))
        task = asyncio.ensure_future(taking)
        await parsing.wait()
        if not fails:
            task.cancel()
        with pytest.raises(LookupError if fails else asyncio.CancelledError):
            await task
        assert delivery.answer.result() == 0, "after a delay that grows with the number of tries"

    asyncio.run(scenario())


def test_whoever_takes_messages_by_hand_is_told_of_the_end(cluster: Cluster, topic: str) -> None:
    """And gets nothing that came before it: somebody else does."""

    async def scenario() -> None:
        broker, group = made(cluster), f"{topic}-g"
        subscriber = broker.subscriber(topic, group=group, persistent=False)
        async with running(broker):
            for number in range(3):
                await broker.publish(number, topic, sharding_key="one")
            iterating = aiter(subscriber)
            first = await anext(iterating)
            await first.ack()
            await broker.stop()
            async with asyncio.timeout(WAIT_S):
                assert [each async for each in iterating] == []
        async with running(broker):
            others = [await subscriber.get_one(timeout=WAIT_S) for _ in range(2)]
            assert [await each.decode() for each in others if each] == [1, 2]

    asyncio.run(scenario())


@pytest.mark.parametrize("level", [-1, "3"])
def test_a_message_does_not_come_again_at_what_is_no_delay_level(level: Any) -> None:
    """-1 would be a dead letter, which is what reject makes."""

    async def scenario() -> None:
        delivery = Delivery(received_message("orders", b"7"), None)
        with pytest.raises(ConfigurationError, match="delay_level must be a whole number"):
            await Received(delivery.message, delivery).nack(level)
        assert not delivery.answer.done()

    asyncio.run(scenario())


def test_a_subscriber_with_handlers_gives_none_by_hand(cluster: Cluster, topic: str) -> None:
    async def scenario() -> None:
        broker = made(cluster)
        subscriber = broker.subscriber(topic, group=f"{topic}-g")

        @subscriber
        async def handle(text: str) -> None: ...

        with pytest.raises(ClientStateError, match="go to its handlers"):
            await subscriber.get_one()

    asyncio.run(scenario())


def test_a_message_of_a_program_without_faststream_is_read(cluster: Cluster, topic: str) -> None:
    """JSON is recognised, a text is its bytes; it is correlated by its own id."""

    async def scenario() -> None:
        broker, seen = made(cluster), Seen()

        @broker.subscriber(topic, group=f"{topic}-g")
        async def handle(body: Any, message: RocketMQMessage) -> None:
            await seen.add((body, message.headers))
            assert message.correlation_id == message.message_id == message.raw_message.msg_id

        sent = [
            Message(topic, b'{"a": 1}', keys="k", properties={"color": "red"}),
            Message(topic, b"\xff plain"),
        ]
        await asyncio.to_thread(sent_by_hand, cluster, *sent)
        async with running(broker):
            found = await seen.wait(2)
            await committed(cluster, f"{topic}-g", topic, 2)
        assert ({"a": 1}, {"color": "red"}) in found
        assert (b"\xff plain", {}) in found

    asyncio.run(scenario())


def test_the_context_has_message_broker_and_what_the_user_put_there(
    cluster: Cluster, topic: str
) -> None:
    async def scenario() -> None:
        broker, seen = made(cluster), Seen()
        broker.context.set_global("shop", "corner")

        @broker.subscriber(topic, group=f"{topic}-g")
        async def handle(
            text: str,
            shop: Annotated[str, Context()],
            tag: Annotated[str, Context("message.raw_message.tags")],
            found: Annotated[RocketMQBroker, Context("broker")],
        ) -> None:
            await seen.add((text, shop, tag, found is broker))

        async with running(broker):
            await broker.publish("x", topic, tags="t")
            assert await seen.wait(1) == [("x", "corner", "t", True)]

    asyncio.run(scenario())


def test_a_new_group_begins_with_the_first_message(cluster: Cluster, topic: str) -> None:
    async def scenario() -> None:
        broker, seen = made(cluster), Seen()

        @broker.subscriber(topic, group=f"{topic}-g")
        async def handle(number: int) -> None:
            await seen.add(number)

        await asyncio.to_thread(sent_by_hand, cluster, *[Message(topic, str(n)) for n in range(9)])
        async with running(broker):
            assert sorted(await seen.wait(9)) == list(range(9))

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            {"consumer_settings": {"message_model": MessageModel.BROADCASTING}},
            "no message a second",
        ),
        ({"consumer_settings": {"consume_message_batch_max_size": 8}}, "settled one by one"),
        ({"consumer_settings": {"pull_batch_sise": 8}}, "pull_batch_size"),
        ({"expression": MessageSelector.by_sql("price >")}, "SQL92 expression is wrong"),
    ],
)
def test_a_wrong_setting_is_refused_at_the_start(
    cluster: Cluster, topic: str, wrong: dict[str, Any], said: str
) -> None:
    async def scenario() -> None:
        broker = made(cluster)

        @broker.subscriber(topic, group=f"{topic}-g", **wrong)
        async def handle(text: str) -> None: ...

        with pytest.raises((ConfigurationError, TypeError)) as raised:
            async with running(broker):
                pass
        assert said in str(raised.value)
        assert not broker.subscribers[0].running

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_workers", 0),
        ("max_workers", 1001),
        ("max_workers", "5"),
        ("ack_limit_s", 0),
        ("ack_limit_s", "5"),
        ("ack_limit_s", float("nan")),
    ],
)
def test_a_number_that_cannot_be_used_is_refused_where_it_is_given(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"^{name} must be "):
        RocketMQBroker("127.0.0.1:1").subscriber("orders", group="g", **{name: value})


@pytest.mark.parametrize("group", ["", None, 7])
def test_a_subscriber_has_a_group(group: Any) -> None:
    with pytest.raises(ConfigurationError, match="group must be the name of a consumer group"):
        RocketMQBroker("127.0.0.1:1").subscriber("orders", group=group)


def test_members_of_a_group_that_consume_different_things_are_refused(cluster: Cluster) -> None:
    async def scenario() -> None:
        broker = made(cluster)
        for name in ("orders", "invoices"):

            @broker.subscriber(name, group="billing")
            async def handle(text: str) -> None: ...

        with pytest.raises(ConfigurationError) as raised:
            await broker.start()
        assert "the members of group 'billing' must all consume the same" in str(raised.value)
        assert "'orders' with expression '*'" in str(raised.value)
        with contextlib.suppress(Exception):
            await broker.stop()

    asyncio.run(scenario())
