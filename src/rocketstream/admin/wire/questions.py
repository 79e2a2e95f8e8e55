"""The questions of a sweep: the requests, how answers are read, and asking many at a time.

Law: an error in an answer takes the answer's place; silence is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.client.instance.questions import Question
from rocketstream.errors import (
    BrokerError,
    RemoteProtocolError,
    RocketMQError,
    TransportError,
    broker_error,
)
from rocketstream.protocol.bodies import (
    ConsumerConnection,
    ConsumerOffsetTable,
    ConsumerRunningInfo,
    ConsumeStats,
    DelayOffsetTable,
    GroupList,
    KVTable,
    QueryConsumeTimeSpanBody,
    QueueEntries,
    SubscriptionGroupWrapper,
    TopicConfigSerializeWrapper,
    TopicStatsTable,
    read_queue_entries,
)
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    GetConsumerConnectionListRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumeStatsRequestHeader,
    GetTopicStatsInfoRequestHeader,
    QueryConsumeQueueRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
    ViewMessageRequestHeader,
)
from rocketstream.protocol.message_ext import MessageExt, decode_messages

T = TypeVar("T")

CONSUME_STATS_PATIENCE = 3
"""examineConsumeStats waits three times as long as other questions (C-525)."""


@dataclass(slots=True)
class Asking:
    """Asks one address, and counts the requests.

    Attributes:
        requests: how many were sent.
    """

    client: BlockingAdminClient
    address: str
    timeout_ms: int
    requests: int = 0

    def each(self, questions: Sequence[Question[T]]) -> list[T | RocketMQError]:
        """Return an answer for each question, or the error that came in its place.

        Raises:
            TransportError: the address does not answer (any more).
        """
        if not questions:
            return []
        found: list[T | RocketMQError | None] = [None] * len(questions)

        def read(place: int, answer: RemotingCommand) -> None:
            if answer.code != ResponseCode.SUCCESS:
                found[place] = broker_error(answer.code, answer.remark, self.address)
                return
            try:
                found[place] = questions[place].read(answer)
            except (RemoteProtocolError, ValueError) as error:
                text = f"{self.address} answered request {questions[place].code:d} with: {error}"
                found[place] = RemoteProtocolError(text, address=self.address)

        self._ask(questions, read)
        return [BrokerError(1, "no answer") if each is None else each for each in found]

    def as_told(
        self, questions: Sequence[Question[T]], keep: Callable[[int, T], None]
    ) -> dict[int, str]:
        """Hand on each answer with its question's index; return why others did not come.

        For questions a broker passes on to clients: silence is then a client's, not the broker's.
        """
        left = set(range(len(questions)))
        why: dict[int, str] = {}

        def read(place: int, answer: RemotingCommand) -> None:
            left.discard(place)
            if answer.code != ResponseCode.SUCCESS:
                why[place] = str(broker_error(answer.code, answer.remark, self.address))
                return
            try:
                keep(place, questions[place].read(answer))
            except (RemoteProtocolError, ValueError) as error:
                why[place] = f"its answer cannot be read: {error}"

        try:
            self._ask(questions, read)
        except TransportError as error:
            why |= dict.fromkeys(left, str(error))
        return why

    def _ask(
        self, questions: Sequence[Question[Any]], read: Callable[[int, RemotingCommand], None]
    ) -> None:
        self.requests += len(questions)
        commands = [each.command() for each in questions]
        timeout_ms = self.timeout_ms * max((each.patience for each in questions), default=1)
        self.client.request_each(self.address, commands, read, timeout_ms)

    def one(self, question: Question[T]) -> T | RocketMQError:
        """Return the answer to one question, or the error that came in its place.

        Raises:
            TransportError: the address does not answer (any more).
        """
        return self.each([question])[0]


def _body(decode: Callable[[bytes], T]) -> Callable[[RemotingCommand], T]:
    return lambda answer: decode(bytes(answer.body))


def _properties(data: bytes) -> dict[str, str]:
    lines = (line.partition("=") for line in data.decode("utf-8", "replace").splitlines())
    return {name.strip(): value.strip() for name, found, value in lines if found}


def _first_message(data: bytes) -> MessageExt:
    return decode_messages(data)[0]


TOPICS = Question(
    RequestCode.GET_ALL_TOPIC_CONFIG,
    None,
    _body(lambda b: TopicConfigSerializeWrapper.decode(b).topic_config_table),
)
GROUPS = Question(
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    None,
    _body(lambda b: SubscriptionGroupWrapper.decode(b).subscription_group_table),
)
OFFSETS = Question(
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    None,
    _body(lambda b: ConsumerOffsetTable.decode(b).offset_table),
)
DELAY_OFFSETS = Question(
    RequestCode.GET_ALL_DELAY_OFFSET,
    None,
    _body(lambda b: DelayOffsetTable.decode(b).offset_table),
)
RUNTIME = Question(
    RequestCode.GET_BROKER_RUNTIME_INFO,
    None,
    _body(lambda b: KVTable.decode(b).table),
)
BROKER_CONFIG = Question(RequestCode.GET_BROKER_CONFIG, None, _body(_properties))
NAMESRV_CONFIG = Question(RequestCode.GET_NAMESRV_CONFIG, None, _body(_properties))


def ends_of(topic: str) -> Question[TopicStatsTable]:
    """GET_TOPIC_STATS_INFO (202)."""
    header = GetTopicStatsInfoRequestHeader(topic=topic)
    code = RequestCode.GET_TOPIC_STATS_INFO
    return Question(code, header, _body(TopicStatsTable.decode))


def consumers_of(topic: str) -> Question[set[str]]:
    """QUERY_TOPIC_CONSUME_BY_WHO (300): groups with progress in it or members subscribing it."""
    header = QueryTopicConsumeByWhoRequestHeader(topic=topic)
    code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
    return Question(code, header, _body(lambda b: GroupList.decode(b).group_list))


def connection_of(group: str) -> Question[ConsumerConnection]:
    """GET_CONSUMER_CONNECTION_LIST (203)."""
    header = GetConsumerConnectionListRequestHeader(consumer_group=group)
    return Question(
        RequestCode.GET_CONSUMER_CONNECTION_LIST, header, _body(ConsumerConnection.decode)
    )


def stats_of(group: str, topic: str | None = None) -> Question[ConsumeStats]:
    """GET_CONSUME_STATS (208)."""
    header = GetConsumeStatsRequestHeader(consumer_group=group, topic=topic)
    code = RequestCode.GET_CONSUME_STATS
    return Question(code, header, _body(ConsumeStats.decode), CONSUME_STATS_PATIENCE)


def span_of(group: str, topic: str) -> Question[QueryConsumeTimeSpanBody]:
    """QUERY_CONSUME_TIME_SPAN (303)."""
    header = QueryConsumeTimeSpanRequestHeader(topic=topic, group=group)
    return Question(
        RequestCode.QUERY_CONSUME_TIME_SPAN, header, _body(QueryConsumeTimeSpanBody.decode)
    )


def running_of(
    group: str, client_id: str, *, stacks: bool = False
) -> Question[ConsumerRunningInfo]:
    """GET_CONSUMER_RUNNING_INFO (307), which the broker asks the member itself."""
    header = GetConsumerRunningInfoRequestHeader(
        consumer_group=group, client_id=client_id, jstack_enable=stacks
    )
    return Question(
        RequestCode.GET_CONSUMER_RUNNING_INFO, header, _body(ConsumerRunningInfo.decode)
    )


def entries_of(topic: str, queue_id: int, index: int, count: int) -> Question[QueueEntries]:
    """QUERY_CONSUME_QUEUE (321): entries of a queue's index, fewer where a file of it ends."""
    header = QueryConsumeQueueRequestHeader(
        topic=topic, queue_id=queue_id, index=index, count=count
    )
    code = RequestCode.QUERY_CONSUME_QUEUE
    return Question(code, header, _body(read_queue_entries))


def message_at(physical: int) -> Question[MessageExt]:
    """VIEW_MESSAGE_BY_ID (33): the message at an offset of the commit log."""
    header = ViewMessageRequestHeader(offset=physical)
    return Question(
        RequestCode.VIEW_MESSAGE_BY_ID,
        header,
        _body(_first_message),
    )
