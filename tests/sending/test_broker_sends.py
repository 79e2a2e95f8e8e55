"""What a broker decides about a send by itself: the queue, the topic, whether it is for later."""

from __future__ import annotations

import pytest

from rocketstream.errors import BrokerError
from rocketstream.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from rocketstream.protocol.codes import ResponseCode
from rocketstream.protocol.headers import SendMessageRequestHeader
from rocketstream.server.broker.core import sends
from rocketstream.server.broker.core.sends import Outgoing, SendRules, finish, queue_of, retried

NOW = 1_700_000_000_000


@pytest.mark.parametrize(("reads", "writes"), [(4, 2), (2, 4), (4, 4)])
def test_a_queue_exists_that_is_written_or_read(reads: int, writes: int) -> None:
    """While a topic shrinks it has queues that are only read."""
    config = TopicConfig("T1", reads, writes)
    assert [queue_of(config, queue_id, 9, "peer") for queue_id in range(4)] == [0, 1, 2, 3]
    with pytest.raises(BrokerError, match=r"request queueId\[4\] is illegal"):
        queue_of(config, 4, 9, "peer")


def test_a_queue_that_is_not_named_is_the_next_one_that_is_written() -> None:
    assert [queue_of(TopicConfig("T1", 8, 3), -1, turn, "peer") for turn in range(4)] == [
        0,
        1,
        2,
        0,
    ]
    assert queue_of(TopicConfig("T1", 8, 1), -1, 7, "peer") == 0
    assert queue_of(TopicConfig("T1", 8, 0), -1, 7, "peer") == 0


@pytest.mark.parametrize(
    ("properties", "is_later"),
    [
        ({"TIMER_DELAY_SEC": "1"}, True),
        ({"TIMER_DELAY_SEC": "0"}, False),
        ({"TIMER_DELAY_MS": "1"}, True),
        ({"TIMER_DELAY_MS": "0"}, False),
        ({"TIMER_DELIVER_MS": str(NOW + 1)}, True),
        ({"TIMER_DELIVER_MS": str(NOW)}, False),
        ({"TIMER_DELIVER_MS": "soon"}, True),
        ({"TIMER_DELAY_SEC": "1", "DELAY": "1"}, False),
        ({"TIMER_DELAY_SEC": "1", "DELAY": "0"}, True),
        ({"TIMER_DELAY_SEC": "1", "DELAY": "x"}, True),
        ({"TIMER_DELAY_SEC": "1", "TIMER_OUT_MS": "1"}, False),
    ],
)
def test_a_message_is_for_later_when_its_time_is_still_to_come(
    properties: dict[str, str], is_later: bool
) -> None:
    """As a 5.x broker reads the three ways to say it; a delay level goes before them."""
    assert sends._is_for_later(properties, NOW) is is_later


@pytest.mark.parametrize(
    ("attempts", "most", "is_locked", "is_dead"),
    [
        (3, 3, False, False),
        (4, 3, False, True),
        (3, 3, True, True),
        (2, 3, True, False),
        (None, 0, False, False),
        (None, 0, True, True),
        (16, None, False, False),
        (17, None, False, True),
    ],
)
def test_a_retry_after_the_last_is_a_dead_letter(
    attempts: int | None, most: int | None, is_locked: bool, is_dead: bool
) -> None:
    """Covers C-592: the header's maximum, else the group's; ordered consumers stop one sooner."""
    header = SendMessageRequestHeader("g", "%RETRY%g", "TBW102", 4, 0, 0, NOW, 0, "")
    header.reconsume_times, header.max_reconsume_times = attempts, most
    topic = retried(header, SubscriptionGroupConfig("g", retry_max_times=16), is_locked=is_locked)
    assert topic == ("%DLQ%g" if is_dead else "%RETRY%g")
    with pytest.raises(BrokerError, match="subscription group not exist, g"):
        retried(header, None, is_locked=is_locked)


@pytest.mark.parametrize(
    ("properties", "level"),
    [({}, 0), ({"DELAY": ""}, 0), ({"DELAY": "x"}, 0), ({"DELAY": "3"}, 3), ({"DELAY": "-1"}, -1)],
)
def test_a_delay_level_is_the_number_that_is_said(properties: dict[str, str], level: int) -> None:
    assert sends.delay_level_of(properties) == level


@pytest.mark.parametrize(
    ("perm", "text"), [(0, "---"), (1, "--X"), (2, "-W-"), (4, "R--"), (6, "RW-"), (7, "RWX")]
)
def test_a_topic_is_printed_as_upstream_prints_it(perm: int, text: str) -> None:
    assert sends.topic_config_text(TopicConfig("T1", 4, 2, perm, topic_sys_flag=1)) == (
        f"TopicConfig [topicName=T1, readQueueNums=4, writeQueueNums=2, perm={text}, "
        "topicFilterType=SINGLE_TAG, topicSysFlag=1, order=false]"
    )


RULES = SendRules("C1", "10.0.0.1", 100, refuses_transactions=False)
NO_TRANSACTIONS = SendRules("C1", "10.0.0.1", 100, refuses_transactions=True)
HEADER = SendMessageRequestHeader("g", "T1", "TBW102", 4, 2, 8, NOW, 0, "")


def outgoing(
    properties: dict[str, str],
    rules: SendRules = RULES,
    config: TopicConfig | None = None,
    body_bytes: int = 100,
) -> Outgoing:
    config = config or TopicConfig("T1", 4, 4)
    return sends.outgoing(rules, HEADER, config, 2, body_bytes, dict(properties), NOW)


@pytest.mark.parametrize(
    ("properties", "is_usual"),
    [
        ([], True),
        (["TAGS", "KEYS", "WAIT", "UNIQ_KEY"], True),
        (["TAGS", "DELAY"], False),
        (["TRAN_MSG"], False),
        (["TIMER_DELIVER_MS"], False),
        (["TIMER_DELAY_SEC"], False),
    ],
)
def test_a_message_is_usual_unless_a_property_asks_for_something(
    properties: list[str], is_usual: bool
) -> None:
    assert sends.is_usual(properties) is is_usual
    made = outgoing(dict.fromkeys(properties, "0"))
    assert made.is_special is not is_usual


@pytest.mark.parametrize(
    ("queue_id", "is_usual"), [(-1, False), (0, True), (1, True), (2, False), (3, False)]
)
def test_only_queues_that_are_written_need_no_further_look(queue_id: int, is_usual: bool) -> None:
    assert sends.is_usual_queue(TopicConfig("T1", 4, 2), "T1", queue_id) is is_usual


@pytest.mark.parametrize(
    ("config", "topic", "is_usual"),
    [
        (TopicConfig("T1", 4, 4), "T1", True),
        (TopicConfig("T1", 4, 4, topic_filter_type="MULTI_TAG"), "T1", False),
        (TopicConfig("SCHEDULE_TOPIC_XXXX", 4, 4), "SCHEDULE_TOPIC_XXXX", False),
        (TopicConfig("%RETRY%g", 4, 4), "%RETRY%g", False),
        (TopicConfig("%DLQ%g", 4, 4), "%DLQ%g", True),
    ],
)
def test_what_its_topic_changes_or_forbids_needs_a_further_look(
    config: TopicConfig, topic: str, is_usual: bool
) -> None:
    assert sends.is_usual_queue(config, topic, 0) is is_usual


def test_a_topic_of_the_broker_itself_is_refused_and_a_name_nobody_may_use_too() -> None:
    """Covers C-96."""
    assert sends.is_open("T1")
    assert not sends.is_open("SELF_TEST_TOPIC")
    sends.check_topic("T1")
    with pytest.raises(BrokerError) as refused:
        sends.check_topic("SELF_TEST_TOPIC")
    assert refused.value.code == ResponseCode.NO_PERMISSION
    assert "topic[SELF_TEST_TOPIC] is forbidden" in str(refused.value)
    for name, text in (("a b", "illegal characters"), (" ", "The specified topic is blank")):
        with pytest.raises(BrokerError, match=text) as refused:
            sends.check_topic(name)
        assert refused.value.code == ResponseCode.SYSTEM_ERROR


def test_refusals_have_upstreams_codes_and_words() -> None:
    """Covers C-425, C-430: clients of Apache decide by the code whether to send again."""
    missing = sends.no_topic("T1")
    assert missing.code == ResponseCode.TOPIC_NOT_EXIST
    assert "topic[T1] not exist, apply first please!" in str(missing)
    illegal = sends.illegal(RULES)
    assert illegal.code == ResponseCode.MESSAGE_ILLEGAL
    assert "msg body length limit 100B, msg properties length limit 32KB." in str(illegal)
    with pytest.raises(BrokerError) as refused:
        queue_of(TopicConfig("T1", 4, 4), 4, 0, "peer")
    assert refused.value.code == ResponseCode.SYSTEM_ERROR
    with pytest.raises(BrokerError) as refused:
        retried(HEADER, None, is_locked=False)
    assert refused.value.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_a_message_goes_out_with_the_cluster_and_what_its_header_says() -> None:
    """Covers C-426."""
    made = outgoing({"TAGS": "A"})
    assert made == Outgoing("T1", 2, 8, {"TAGS": "A", "CLUSTER": "C1"}, True, False, False)
    tagged = outgoing({}, config=TopicConfig("T1", 4, 4, topic_filter_type="MULTI_TAG"))
    assert tagged.sys_flag == 8 | 2


@pytest.mark.parametrize(
    ("given", "waits"), [({}, True), ({"WAIT": "true"}, True), ({"WAIT": "false"}, False)]
)
def test_the_answer_waits_for_the_disk_unless_the_message_says_otherwise(
    given: dict[str, str], waits: bool
) -> None:
    assert outgoing(given).wants_flush is waits


@pytest.mark.parametrize(
    ("text", "is_half"), [("true", True), ("TRUE", True), ("false", False), ("", False)]
)
def test_a_half_message_says_so_and_is_refused_where_transactions_are(
    text: str, is_half: bool
) -> None:
    assert outgoing({"TRAN_MSG": text}).is_half is is_half
    if is_half:
        with pytest.raises(BrokerError, match="transaction message is forbidden") as refused:
            outgoing({"TRAN_MSG": text}, NO_TRANSACTIONS)
        assert refused.value.code == ResponseCode.NO_PERMISSION
    else:
        assert not outgoing({"TRAN_MSG": text}, NO_TRANSACTIONS).is_half
    assert not outgoing({}, NO_TRANSACTIONS).is_half


def test_a_body_of_just_the_maximum_is_taken() -> None:
    """Covers C-430."""
    assert outgoing({}, body_bytes=100).topic == "T1"
    with pytest.raises(BrokerError, match="the message is illegal"):
        outgoing({}, body_bytes=101)


def test_a_message_that_is_over_its_time_goes_out_and_a_later_one_is_refused() -> None:
    assert outgoing({"TIMER_DELIVER_MS": str(NOW)}).is_special
    with pytest.raises(BrokerError, match="timerWheelEnable is false") as refused:
        outgoing({"TIMER_DELIVER_MS": str(NOW + 1)})
    assert refused.value.code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize(
    ("properties", "is_kept"),
    [
        ({"WAIT": "true"}, False),
        ({"WAIT": "true", "DELAY": "0"}, False),
        ({"WAIT": "true", "DELAY": "-1"}, False),
        ({"WAIT": "true", "DELAY": "1"}, True),
        ({"WAIT": "true", "TRAN_MSG": "true"}, True),
    ],
)
def test_only_what_is_stored_twice_keeps_its_wait(
    properties: dict[str, str], is_kept: bool
) -> None:
    """As upstream: a delayed or half message is read again before it is delivered."""
    made = outgoing(properties)
    finish(RULES, made)
    assert ("WAIT" in made.properties) is is_kept
    plain = outgoing({"TAGS": "A"})
    finish(RULES, plain)
    assert plain.properties == {"TAGS": "A", "CLUSTER": "C1"}


def test_properties_of_just_the_maximum_are_taken() -> None:
    """Covers C-430: 32,767 bytes, counted as they are stored."""
    empty = len("u\x01\x02CLUSTER\x01C1")
    finish(RULES, outgoing({"u": "x" * (32_767 - empty)}))
    with pytest.raises(BrokerError, match="the message is illegal"):
        finish(RULES, outgoing({"u": "x" * (32_768 - empty)}))
