"""The requests about lite topics, one coroutine each, and what a refusal asks of the user.

Law: one request each, typed in and out; retries and meaning are the callers'.
"""

from __future__ import annotations

from collections.abc import Collection

from rocketstream.client.core.lite_runs import LiteRun
from rocketstream.client.core.lite_settings import OffsetOption
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.errors import (
    BrokerError,
    LiteTopicSetupError,
    NotSupportedError,
    OffsetNotFoundError,
    RequestNotSupportedError,
    RocketMQError,
    broker_error,
)
from rocketstream.protocol.bodies import LiteSubscriptionCtlRequestBody, LiteSubscriptionData
from rocketstream.protocol.codes import PopAnswer, RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    PopLiteMessageRequestHeader,
    PopLiteMessageResponseHeader,
    QueryConsumerOffsetRequestHeader,
)
from rocketstream.protocol.lite import LITE_QUEUE_ID, lite_queue_name, receipt

PARTIAL_ADD = "PARTIAL_ADD"
PARTIAL_REMOVE = "PARTIAL_REMOVE"
COMPLETE_ADD = "COMPLETE_ADD"
COMPLETE_REMOVE = "COMPLETE_REMOVE"

SETTLE_TIMEOUT_MS = 5_000
TELL_TIMEOUT_MS = 30_000
"""A hundred thousand names take a broker seconds."""
POLL_MARGIN_MS = 10_000
"""How much longer than it may hold a request a broker's answer is waited for."""

_NOTHING = frozenset({PopAnswer.NOT_FOUND, PopAnswer.POLLING_FULL, PopAnswer.POLLING_TIMEOUT})
_SETUP = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ResponseCode.INVALID_PARAMETER,
        ResponseCode.ILLEGAL_OPERATION,
    }
)


class LiteRequests:
    """Asks brokers about the lite topics of one parent topic, for one group.

    Args:
        instance: the client instance.
        group: consumer group, with its namespace.
        topic: the parent topic, with its namespace.
    """

    def __init__(self, instance: MQClientInstance, group: str, topic: str) -> None:
        self._instance = instance
        self._api = instance.api
        self._group = group
        self._topic = topic

    async def subscribe(
        self,
        address: str,
        action: str,
        names: Collection[str] = (),
        option: OffsetOption | None = None,
    ) -> None:
        """Tell a broker which lite topics this client adds, takes away, or has (200071).

        Raises:
            NotSupportedError: it has no lite topics.
            LiteTopicSetupError: topic or group are not made for them.
            LiteSubscriptionQuotaError: its clients have subscribed as many as they may.
            TransportError: it was not told, or may have been.
        """
        entry = LiteSubscriptionData(
            action,
            self._instance.client_id,
            self._group,
            set(names),
            None if option is None else option.data(),
            self._topic,
        )
        body = LiteSubscriptionCtlRequestBody([entry]).encode()
        command = RemotingCommand.request(RequestCode.LITE_SUBSCRIPTION_CTL, body=body)
        try:
            await self._api.invoke(address, command, TELL_TIMEOUT_MS)
        except BrokerError as error:
            raise self._explained(error) from error

    async def probe(self, address: str) -> None:
        """Ask for no message at all, so that a broker says now what it would refuse later.

        Raises:
            NotSupportedError, LiteTopicSetupError, TransportError: as ``subscribe``.
        """
        await self.receive(address, 0, 10_000, 0, None)

    async def receive(
        self, address: str, count: int, invisible_ms: int, poll_ms: int, attempt: str | None
    ) -> tuple[PopLiteMessageResponseHeader, bytes] | None:
        """Ask for messages of any lite topics subscribed (200070); None where there are none.

        Args:
            address: whom.
            count: how many at most.
            invisible_ms: how long they are hidden from other members.
            poll_ms: how long the broker may hold the request while there are none.
            attempt: names this question; asked again by the same name it brings what an answer
                that was lost has brought.

        Raises:
            NotSupportedError, LiteTopicSetupError, TransportError: as ``subscribe``.
            RemoteProtocolError: an answer that makes no sense.
        """
        header = PopLiteMessageRequestHeader(
            self._instance.client_id,
            self._group,
            self._topic,
            count,
            invisible_ms,
            poll_ms,
            self._instance.clock.now_ms(),
            attempt,
        )
        command = RemotingCommand.request(RequestCode.POP_LITE_MESSAGE, header)
        remoting = self._api.remoting
        answer = await remoting.request(address, command, poll_ms + POLL_MARGIN_MS)
        if answer.code in _NOTHING:
            return None
        if answer.code != PopAnswer.FOUND:
            error = broker_error(answer.code, answer.remark, address)
            raise self._explained(error) from error
        return answer.header(PopLiteMessageResponseHeader), bytes(answer.body)

    async def acknowledge(self, address: str, run: LiteRun, offset: int) -> None:
        """Say that a message is consumed (200051); brokers take them one by one only."""
        header = AckMessageRequestHeader(
            self._group,
            self._topic,
            LITE_QUEUE_ID,
            receipt(run.queue.broker_name, offset, run.pop_time_ms, run.invisible_ms),
            offset,
            run.lite_topic,
            run.queue.broker_name,
        )
        command = RemotingCommand.request(RequestCode.ACK_MESSAGE, header)
        await self._api.invoke(self._api.channel(address), command, SETTLE_TIMEOUT_MS)

    async def hide(self, address: str, run: LiteRun, offset: int, time_ms: int) -> None:
        """Have a message stay hidden for so long from now on (200053)."""
        header = ChangeInvisibleTimeRequestHeader(
            self._group,
            self._topic,
            LITE_QUEUE_ID,
            receipt(run.queue.broker_name, offset, run.pop_time_ms, run.invisible_ms),
            offset,
            time_ms,
            run.lite_topic,
            run.queue.broker_name,
        )
        command = RemotingCommand.request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
        await self._api.invoke(self._api.channel(address), command, SETTLE_TIMEOUT_MS)

    async def has_offset(self, address: str, broker_name: str, name: str) -> bool:
        """Ask whether the group has an offset in a lite topic (14)."""
        header = QueryConsumerOffsetRequestHeader(
            self._group,
            lite_queue_name(self._topic, name),
            LITE_QUEUE_ID,
            broker_name,
            set_zero_if_not_found=False,
        )
        command = RemotingCommand.request(RequestCode.QUERY_CONSUMER_OFFSET, header)
        try:
            await self._api.invoke(self._api.channel(address), command, TELL_TIMEOUT_MS)
        except OffsetNotFoundError:
            return False
        return True

    def _explained(self, error: BrokerError) -> RocketMQError:
        """Return the error that says what is to be done about a refusal."""
        where = f"the broker at {error.address}"
        if isinstance(error, RequestNotSupportedError):
            return NotSupportedError(
                f"lite topics of {self._topic!r} were asked for, but {where} has none: it takes "
                "Apache RocketMQ 5.5 or later with storeType=defaultRocksDB, enableLmq=true and "
                "enableMultiDispatch=true; on other brokers use PushConsumer, with a topic or a "
                "tag for each",
                address=error.address,
            )
        if error.code not in _SETUP:
            return error
        return LiteTopicSetupError(error, self._topic, self._group)
