"""The consumer of lite topics against a broker that does what the test says."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest

from rocketstream import (
    ConsumeConcurrentlyStatus,
    LitePushConsumer,
    LiteTopicContext,
    MessageExt,
    OffsetOption,
    aio,
)
from rocketstream.client.consumer.lite_topics import impl
from rocketstream.client.consumer.lite_topics.service import ThreadedLiteService
from rocketstream.client.consumer.lite_topics.topics import LiteRun
from rocketstream.client.instance.life_cycle import ServiceState
from rocketstream.errors import (
    BrokerError,
    ConfigurationError,
    LiteSubscriptionQuotaError,
    LiteTopicSetupError,
    NotSupportedError,
    RouteNotFoundError,
)
from rocketstream.protocol.bodies import LiteSubscriptionCtlRequestBody, LiteSubscriptionData
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import NotifyUnsubscribeLiteRequestHeader
from tests.kits.client.fake_broker import GROUP, TOPIC, WAIT_S, Asked, FakeBroker, ok, refusal
from tests.kits.client.lite_broker import (
    ACK,
    HIDE,
    LATER,
    POP,
    SUCCESS,
    TELL,
    Listener,
    consumer,
    ext,
    lite_broker,
    pop,
    popped,
    wait_pop,
)
from tests.plugins.waiting import wait_until

NOTHING = RemotingCommand.response(210, "no message")


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with lite_broker() as running:
        yield running


def told(asked: Asked) -> LiteSubscriptionData:
    (entry,) = LiteSubscriptionCtlRequestBody.decode(bytes(asked.command.body)).subscription_set
    return entry


def wait_told(broker: FakeBroker, action: str, count: int = 1) -> list[LiteSubscriptionData]:
    found = broker.wait_for(TELL, count, lambda asked: told(asked).action == action)
    return [told(each) for each in found]


# --- messages -----------------------------------------------------------------------------------


def test_a_message_is_acknowledged_after_its_listener_and_not_before(broker: FakeBroker) -> None:
    listener = Listener()
    listener.holds[b"a5"] = threading.Event()
    with consumer(broker, listener, "a") as made:
        broker.reply(wait_pop(broker), popped(("a", 5)))
        listener.wait(1)
        assert not broker.asked(ACK)
        listener.holds[b"a5"].set()
        (ack,) = broker.wait_for(ACK)
        assert ack.ext == {
            "consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "offset": "5",
            "extraInfo": "5 500 60000 999 0 broker-a 0 5", "liteTopic": "a", "bname": "broker-a",
        }  # fmt: skip
        asked = wait_pop(broker).ext
        assert (asked["clientId"], asked["maxMsgNum"]) == (made.client_id, "32")
        assert (asked["invisibleTime"], asked["pollTime"]) == ("60000", "15000")


@pytest.mark.parametrize("answer", [LATER, None, "yes"])
def test_a_failed_message_comes_again_with_what_follows_it(
    broker: FakeBroker, answer: object
) -> None:
    """The lite topic stays in order, and no other is held up."""
    listener = Listener()
    listener.answers[b"a6"] = [answer]
    with consumer(broker, listener, "a", "b", suspend_ms=2_000, consume_thread_max=1):
        broker.reply(wait_pop(broker), popped(("a", 5), ("a", 6), ("b", 1), ("a", 7)))
        hidden = broker.wait_for(HIDE, 2)
        assert [(each.ext["offset"], each.ext["invisibleTime"]) for each in hidden] == [
            ("6", "2000"),
            ("7", "2000"),
        ]
        acks = broker.wait_for(ACK, 2)
        places = {(each.ext["liteTopic"], each.ext["offset"]) for each in acks}
        assert places == {("a", "5"), ("b", "1")}
        assert listener.seen == [("a", b"a5"), ("a", b"a6"), ("b", b"b1")]


def test_a_listener_says_when_what_failed_comes_again(broker: FakeBroker) -> None:
    def listener(_: list[MessageExt], context: LiteTopicContext) -> ConsumeConcurrentlyStatus:
        context.suspend_ms = 30
        raise ValueError("not now")

    with consumer(broker, listener, "a"):
        broker.reply(wait_pop(broker), popped(("a", 5)))
        (hidden,) = broker.wait_for(HIDE)
        assert (hidden.ext["invisibleTime"], hidden.ext["liteTopic"]) == ("30", "a")
    assert not broker.asked(ACK)


def test_an_acknowledgement_that_is_lost_is_sent_again(broker: FakeBroker) -> None:
    listener = Listener()
    with consumer(broker, listener, "a"):
        question = wait_pop(broker)
        broker.on[ACK] = lambda _: None
        broker.reply(question, popped(("a", 5)))
        broker.wait_for(ACK)
        broker.on[ACK] = lambda _: ok()
        broker.drop_connections()
        assert [each.ext["offset"] for each in broker.wait_for(ACK, 2)] == ["5", "5"]
        assert len(listener.seen) == 1


def test_no_more_is_asked_for_than_may_be_unfinished(broker: FakeBroker) -> None:
    listener = Listener()
    listener.holds[b"a0"] = threading.Event()
    with consumer(broker, listener, "a", max_cache_message_count=32, pull_batch_size=32):
        broker.reply(wait_pop(broker), popped(*(("a", offset) for offset in range(32))))
        listener.wait(1)
        assert len(broker.asked(POP)) == 2  # that for none, and the one that was answered
        listener.holds[b"a0"].set()
        wait_pop(broker, 2)
        assert len(broker.wait_for(ACK, 32)) == 32


def test_a_broker_that_holds_a_question_keeps_no_other_from_being_asked() -> None:
    """With as little room as may be set, the second one would never be asked."""
    with lite_broker("broker-a") as one, lite_broker("broker-b") as other:
        one.others = [other]
        with consumer(one, Listener(), "a", max_cache_message_count=32, pull_batch_size=32):
            sizes = [wait_pop(each).ext["maxMsgNum"] for each in (one, other)]
    assert sizes == ["16", "16"]


def test_what_comes_of_a_lite_topic_nobody_wants_is_given_back(broker: FakeBroker) -> None:
    """It was unsubscribed while the answer was on its way."""
    listener = Listener()
    with consumer(broker, listener, "a", "b") as made:
        made.unsubscribe_lite("a")
        assert wait_told(broker, "PARTIAL_REMOVE")[0].lite_topic_set == {"a"}
        broker.reply(wait_pop(broker), popped(("a", 5), ("b", 1)))
        (hidden,) = broker.wait_for(HIDE)
        assert (hidden.ext["liteTopic"], hidden.ext["invisibleTime"]) == ("a", "10")
        broker.wait_for(ACK)
    assert listener.seen == [("b", b"b1")]


# --- subscriptions ------------------------------------------------------------------------------


def test_a_group_begins_at_the_oldest_message_only_where_it_never_was(broker: FakeBroker) -> None:
    """Apache's broker would begin at the end of a lite topic when something arrives there."""
    known = f"%LMQ%${TOPIC}$known"
    broker.on[RequestCode.QUERY_CONSUMER_OFFSET] = lambda command: (
        broker._query_offset(command)
        if ext(command)["topic"] == known
        else RemotingCommand.response(ResponseCode.QUERY_NOT_FOUND, "none")
    )
    broker.offsets[0] = 4
    with consumer(broker, Listener()) as made:
        made.subscribe_lite(["known", "new"])
        adds = {
            frozenset(each.lite_topic_set): each.offset_option
            for each in wait_told(broker, "PARTIAL_ADD", 2)
        }
        assert adds == {
            frozenset({"new"}): OffsetOption.MIN_OFFSET.data(),
            frozenset({"known"}): None,
        }
        (asked, _) = broker.asked(RequestCode.QUERY_CONSUMER_OFFSET)
        assert asked.ext["setZeroIfNotFound"] == "false"
        assert made.lite_topics == {"known", "new"}
        made.subscribe_lite("moved", OffsetOption.MAX_OFFSET)
        assert wait_told(broker, "PARTIAL_ADD", 3)[-1].offset_option == (
            OffsetOption.MAX_OFFSET.data()
        )
        assert len(broker.asked(RequestCode.QUERY_CONSUMER_OFFSET)) == 2


def test_a_lost_broker_is_told_everything_before_it_is_asked_again(broker: FakeBroker) -> None:
    """It may have been restarted: then it knows neither the names nor where to begin."""
    with consumer(broker, Listener(), "a", "b"):
        wait_pop(broker)
        assert wait_told(broker, "COMPLETE_ADD")[0].lite_topic_set == {"a", "b"}
        before = len(broker._asked)
        broker.drop_connections()
        wait_pop(broker, 2)
        after = [each for each in broker._asked[before:] if each.code in (TELL, POP)]
        assert [each.code for each in after] == [TELL, TELL, POP]
        place, whole = told(after[0]), told(after[1])
        assert (place.action, place.offset_option) == (
            "PARTIAL_ADD",
            OffsetOption.MIN_OFFSET.data(),
        )
        assert (whole.action, whole.lite_topic_set) == ("COMPLETE_ADD", {"a", "b"})


def test_a_lost_broker_is_told_anew_of_a_place_that_was_named(broker: FakeBroker) -> None:
    """Before anything is finished there, it has it in memory alone."""
    with consumer(broker, Listener(), "a") as made:
        made.subscribe_lite("b", OffsetOption.of_offset(3))
        wait_pop(broker)
        before = len(broker.asked(TELL))
        broker.drop_connections()
        wait_pop(broker, 2)
        adds = {
            frozenset(each.lite_topic_set): each.offset_option
            for each in map(told, broker.asked(TELL)[before:])
            if each.action == "PARTIAL_ADD"
        }
    assert adds == {
        frozenset({"a"}): OffsetOption.MIN_OFFSET.data(),
        frozenset({"b"}): OffsetOption.of_offset(3).data(),
    }


def test_a_question_whose_answer_was_lost_is_asked_by_the_same_name(broker: FakeBroker) -> None:
    """Else what the answer had brought would stay hidden."""
    with consumer(broker, Listener(), "a"):
        first = wait_pop(broker).ext["attemptId"]
        broker.drop_connections()
        again = wait_pop(broker, 2)
        assert again.ext["attemptId"] == first
        broker.reply(again, NOTHING)
        assert wait_pop(broker, 3).ext["attemptId"] != first


def test_every_broker_of_the_parent_topic_is_told_and_asked() -> None:
    with lite_broker("broker-a") as one, lite_broker("broker-b") as other:
        one.others = [other]
        listener = Listener()
        with consumer(one, listener, "a") as made:
            for each, name in ((one, "x"), (other, "y")):
                assert wait_told(each, "COMPLETE_ADD")[0].lite_topic_set == {"a"}
                each.reply(wait_pop(each), popped(("a", 1)))
                (ack,) = each.wait_for(ACK)
                assert ack.ext["bname"] == each.name
                made.subscribe_lite(name)
            for each in (one, other):
                names = [told.lite_topic_set for told in wait_told(each, "PARTIAL_ADD", 3)]
                assert names == [{"a"}, {"x"}, {"y"}]


def test_a_refused_name_is_not_subscribed(broker: FakeBroker) -> None:
    with consumer(broker, Listener(), "a") as made:
        broker.on[TELL] = refusal(2018, "lite subscription quota exceeded 100000")
        with pytest.raises(LiteSubscriptionQuotaError, match="quota exceeded"):
            made.subscribe_lite("b")
        assert made.lite_topics == {"a"}
        with pytest.raises(ConfigurationError, match="lite_topic must be"):
            made.subscribe_lite("b c")


def test_a_name_subscribed_twice_at_once_is_refused_to_both(broker: FakeBroker) -> None:
    """The second has nothing to add only if the first succeeds."""

    async def main() -> None:
        made = aio.LitePushConsumer(
            GROUP, TOPIC, namesrv_addr=broker.address, listener=Listener().__call__
        )
        async with made:
            query = RequestCode.QUERY_CONSUMER_OFFSET
            broker.on[query] = lambda _: None
            first = asyncio.ensure_future(made.subscribe_lite("b"))
            (question,) = await asyncio.to_thread(broker.wait_for, query)
            second = asyncio.ensure_future(made.subscribe_lite("b"))
            await asyncio.sleep(0)
            broker.on[query] = refusal(2018, "quota exceeded")
            broker.reply(question, RemotingCommand.response(2018, "quota exceeded"))
            results = await asyncio.gather(first, second, return_exceptions=True)
            assert [type(each) for each in results] == [LiteSubscriptionQuotaError] * 2
            assert made.lite_topics == set()

    asyncio.run(main())


def test_unsubscribing_gives_back_what_no_listener_has_begun(broker: FakeBroker) -> None:
    listener = Listener()
    listener.holds[b"a5"] = threading.Event()
    with consumer(broker, listener, "a", "b", consume_thread_max=1) as made:
        broker.reply(wait_pop(broker), popped(("a", 5), ("b", 1)))
        listener.wait(1)
        made.unsubscribe_lite("b")
        (hidden,) = broker.wait_for(HIDE)
        assert (hidden.ext["liteTopic"], hidden.ext["offset"]) == ("b", "1")
        listener.holds[b"a5"].set()
        broker.wait_for(ACK)
    assert listener.seen == [("a", b"a5")]


def test_a_lite_topic_added_while_all_are_announced_has_its_place_first(
    broker: FakeBroker,
) -> None:
    """In the whole set before that, a broker might begin at its end: messages would be missed."""
    query = RequestCode.QUERY_CONSUMER_OFFSET
    usual = broker.on[query]
    with consumer(broker, Listener(), "a") as made:
        wait_pop(broker)
        before = len(broker.asked(TELL))
        broker.on[query] = lambda _: None
        broker.drop_connections()
        question = broker.wait_for(query, 2)[-1]
        subscribing = threading.Thread(target=made.subscribe_lite, args=("b",))
        subscribing.start()
        wait_until(lambda: "b" in made.lite_topics, "the new name is wanted")
        broker.on[query] = usual
        broker.reply(question, usual(question.command) or ok())
        subscribing.join(WAIT_S)
        entries = [told(asked) for asked in broker.asked(TELL)[before:]]
        assert [(entry.action, entry.lite_topic_set) for entry in entries] == [
            ("PARTIAL_ADD", {"a"}),
            ("COMPLETE_ADD", {"a"}),
            ("PARTIAL_ADD", {"b"}),
        ]


def test_a_broker_that_failed_rests_though_others_are_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What another confirms makes room; it does not end the pause of one that refuses."""
    monkeypatch.setattr(impl, "AGAIN_MS", 600_000)
    with lite_broker("broker-a") as one, lite_broker("broker-b") as other:
        one.others = [other]
        other.on[POP] = lambda command: pop(command) or RemotingCommand.response(1, "busy")
        with consumer(one, Listener(), "a"):
            wait_pop(other)
            for offset in range(1, 6):
                one.reply(wait_pop(one, offset), popped(("a", offset)))
                one.wait_for(ACK, offset)
            wait_pop(one, 6)
            assert len([each for each in other.asked(POP) if each.ext["maxMsgNum"] != "0"]) == 1


def test_a_message_is_handed_over_under_the_name_the_listener_knows(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-148: listeners begin on other threads as soon as a run is handed over."""
    broker.topics[f"ns%{TOPIC}"] = 1
    submit = ThreadedLiteService.submit
    topics: list[str] = []

    def watched(service: ThreadedLiteService, runs: Sequence[LiteRun]) -> bool:
        topics.extend(message.topic for run in runs for message in run.messages)
        return submit(service, runs)

    monkeypatch.setattr(ThreadedLiteService, "submit", watched)
    with consumer(broker, Listener(), "a", namespace="ns"):
        broker.reply(wait_pop(broker), popped(("a", 5), topic=f"ns%{TOPIC}"))
        broker.wait_for(ACK)
    assert topics == [TOPIC]


def test_a_lite_topic_another_member_took_is_subscribed_no_more(broker: FakeBroker) -> None:
    """In groups of the model Exclusive."""
    with consumer(broker, Listener(), "a", "b") as made:
        header = NotifyUnsubscribeLiteRequestHeader("a", GROUP, made.client_id)
        broker.ask_clients(RequestCode.NOTIFY_UNSUBSCRIBE_LITE, header, oneway=True)
        wait_until(lambda: made.lite_topics == {"b"}, "the name to be gone")


# --- start and end ------------------------------------------------------------------------------


def test_a_broker_without_lite_topics_is_named_with_what_it_takes(broker: FakeBroker) -> None:
    broker.on[TELL] = refusal(3, "request type 200071 not supported")
    made = consumer(broker, Listener(), "a")
    with pytest.raises(NotSupportedError) as caught:
        made.start()
    text = str(caught.value)
    assert broker.address in text
    assert "5.5 or later with storeType=defaultRocksDB, enableLmq=true" in text
    assert "use PushConsumer" in text
    assert made.state is ServiceState.CREATE_JUST


@pytest.mark.parametrize(
    ("code", "refused", "remark"),
    [
        (POP, 29, "the topic [T] message type not match"),
        (POP, 26, "subscription group [g] not exist"),
        (TELL, 604, "Consumer group is not allowed to consume."),
    ],
)
def test_what_topic_and_group_lack_is_said_at_the_start(
    broker: FakeBroker, code: int, refused: int, remark: str
) -> None:
    broker.on[code] = refusal(refused, remark)
    with pytest.raises(LiteTopicSetupError) as caught:
        consumer(broker, Listener(), "a").start()
    text = str(caught.value)
    assert remark in text
    assert "+message.type=LITE" in text
    assert f"+lite.bind.topic={TOPIC}" in text
    assert isinstance(caught.value, BrokerError)


def test_a_start_that_fails_has_brokers_forget_what_they_were_told() -> None:
    """They would hold messages for a member that is not there, for three minutes."""
    with lite_broker("broker-a") as one, lite_broker("broker-b") as other:
        one.others = [other]
        other.on[TELL] = refusal(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        with pytest.raises(NotSupportedError, match=other.address):
            consumer(one, Listener(), "a").start()
        wait_told(one, "COMPLETE_REMOVE")


def test_a_parent_topic_that_does_not_exist_is_an_error(broker: FakeBroker) -> None:
    made = LitePushConsumer(GROUP, "none", namesrv_addr=broker.address, listener=Listener())
    with pytest.raises(RouteNotFoundError, match=r"\+message.type=LITE"):
        made.start()


def test_shutdown_unsubscribes_waits_and_gives_back_the_rest(broker: FakeBroker) -> None:
    listener = Listener()
    listener.holds[b"a0"] = threading.Event()
    with consumer(broker, listener, "a", "b", consume_thread_max=1) as made:
        broker.reply(wait_pop(broker), popped(("a", 0), ("a", 1), ("b", 7)))
        listener.wait(1)
        ending = threading.Thread(target=made.shutdown)
        ending.start()
        wait_told(broker, "COMPLETE_REMOVE")
        listener.holds[b"a0"].set()
        ending.join(WAIT_S)
    assert listener.seen == [("a", b"a0")]
    assert [each.ext["offset"] for each in broker.asked(ACK)] == ["0"]
    back = {(each.ext["liteTopic"], each.ext["offset"]) for each in broker.asked(HIDE)}
    assert back == {("a", "1"), ("b", "7")}
    codes = [each.code for each in broker._asked]
    assert codes.index(RequestCode.UNREGISTER_CLIENT) > max(
        at for at, code in enumerate(codes) if code in (ACK, HIDE)
    )
    assert made.wait(0)


def test_the_heartbeat_tells_of_the_parent_topic(broker: FakeBroker) -> None:
    with consumer(broker, Listener(), "a"):
        (data,) = broker.heartbeats[-1].consumer_data_set
        assert (data.group_name, data.consume_type) == (GROUP, "CONSUME_POP")
        assert [each.topic for each in data.subscription_data_set] == [TOPIC]


def test_a_coroutine_listener_has_each_lite_topic_in_order(broker: FakeBroker) -> None:
    seen: list[bytes] = []

    async def listener(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        await asyncio.sleep(0)
        seen.append(messages[0].body)
        return LATER if messages[0].body == b"b2" else SUCCESS

    async def main() -> None:
        async with aio.LitePushConsumer(
            GROUP, TOPIC, namesrv_addr=broker.address, listener=listener, lite_topics=["a", "b"]
        ) as made:
            await made.subscribe_lite("c")
            assert made.lite_topics == {"a", "b", "c"}
            question = await asyncio.to_thread(wait_pop, broker)
            broker.reply(question, popped(("a", 1), ("b", 2), ("a", 2), ("b", 3)))
            await asyncio.to_thread(broker.wait_for, ACK, 2)
            await asyncio.to_thread(broker.wait_for, HIDE, 2)
            await made.unsubscribe_lite("c")
        assert await made.wait(0)

    asyncio.run(main())
    assert [each for each in seen if each.startswith(b"a")] == [b"a1", b"a2"]
    assert b"b3" not in seen


def test_a_call_that_somebody_cancels_has_its_lite_topic_come_again(broker: FakeBroker) -> None:
    """As one that failed: not only once the broker shows again what it hid for long."""
    seen: list[bytes] = []

    async def main() -> None:
        called: asyncio.Future[asyncio.Task[object]] = asyncio.get_running_loop().create_future()

        async def listener(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
            seen.append(messages[0].body)
            if not called.done():
                called.set_result(cast(Any, asyncio.current_task()))
                await asyncio.Event().wait()
            return SUCCESS

        async with aio.LitePushConsumer(
            GROUP, TOPIC, namesrv_addr=broker.address, listener=listener, lite_topics=["a", "b"],
            consume_thread_max=1,
        ):  # fmt: skip
            question = await asyncio.to_thread(wait_pop, broker)
            broker.reply(question, popped(("a", 1), ("a", 2), ("b", 1)))
            (await called).cancel()
            await asyncio.to_thread(broker.wait_for, HIDE, 2)
            await asyncio.to_thread(broker.wait_for, ACK, 1)

    asyncio.run(main())
    assert seen == [b"a1", b"b1"]


def test_a_sync_consumer_refuses_a_coroutine_and_an_ordered_listener(broker: FakeBroker) -> None:
    async def listener(_: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        return SUCCESS

    with pytest.raises(ConfigurationError, match=r"aio\.LitePushConsumer"):
        consumer(broker, listener, "a").start()
    with pytest.raises(ConfigurationError, match="invisible_ms"):
        consumer(broker, Listener(), invisble_ms=1)
