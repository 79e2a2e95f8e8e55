"""One pull, whichever consumer makes it: which broker, what request, what its answer says.

Law: runs on the loop; knows neither loops over queues nor offsets (upstream's PullAPIWrapper, C-212
to C-223).
"""

from __future__ import annotations

from rocketstream.client.core.pull_decision import keep_tagged, pull_status
from rocketstream.client.core.pull_result import PullResult
from rocketstream.client.core.routes import BrokerAddress, unknown_broker
from rocketstream.client.hooks import FilterHooks, FilterMessageContext
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.errors import NotSupportedError
from rocketstream.model import MessageQueue, PullStatus
from rocketstream.protocol.bodies import SubscriptionData
from rocketstream.protocol.codes import VERSION_SQL92, PullSysFlag, RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import PullMessageRequestHeader, PullMessageResponseHeader
from rocketstream.protocol.message_ext import MessageExt, before_damage, read_pulled
from rocketstream.protocol.properties import PROPERTY_MAX_OFFSET, PROPERTY_MIN_OFFSET
from rocketstream.protocol.subscription import EXPRESSION_TAG


class PullKernel:
    """Makes the pulls of one consumer.

    Args:
        instance: the client instance.
        group: consumer group, with its namespace.
        filter_hooks: called by ``filtered``.
        unit_mode: told to the hooks.
    """

    def __init__(
        self,
        instance: MQClientInstance,
        group: str,
        filter_hooks: FilterHooks,
        *,
        unit_mode: bool = False,
    ) -> None:
        self._instance = instance
        self._group = group
        self._hooks = filter_hooks
        self._unit_mode = unit_mode
        self._suggested: dict[MessageQueue, int] = {}

    def forget(self, mq: MessageQueue) -> None:
        """Forget which broker the last answer for a queue suggested."""
        self._suggested.pop(mq, None)

    def broker(self, mq: MessageQueue) -> BrokerAddress | None:
        """Return where to pull a queue: what its last answer suggested, else the master."""
        return self._instance.routes.find_for_subscribe(mq.broker_name, self._suggested.get(mq, 0))

    async def known_broker(self, mq: MessageQueue, subscription: SubscriptionData) -> str:
        """Return the address to pull from, asking the name server if need be (C-214, C-216).

        Raises:
            RouteNotFoundError: no name server knows the broker.
            NotSupportedError: the broker cannot filter by such an expression.
        """
        broker = self.broker(mq)
        if broker is None:
            await self._instance.update_route(mq.topic)
            broker = self.broker(mq)
        if broker is None:
            raise unknown_broker(mq.broker_name, mq)
        if subscription.expression_type != EXPRESSION_TAG:
            if self._instance.broker_version(broker.address) == 0:
                await self._instance.heartbeat()
            self.check_version(mq, broker.address, subscription)
        return broker.address

    def check_version(self, mq: MessageQueue, address: str, subscription: SubscriptionData) -> None:
        """Refuse to ask a broker for what it cannot select (C-216).

        Raises:
            NotSupportedError: it is too old for the expression, or its version is unknown.
        """
        if subscription.expression_type == EXPRESSION_TAG:
            return
        version = self._instance.broker_version(address)
        if version < VERSION_SQL92:
            raise NotSupportedError(
                f"broker {mq.broker_name} is too old for expressions of type "
                f"{subscription.expression_type}: it must be 4.1 or later (it tells version "
                f"number {version}); subscribe by tags"
            )

    def command(
        self,
        mq: MessageQueue,
        subscription: SubscriptionData,
        offset: int,
        max_nums: int,
        *,
        sys_flag: int,
        suspend_ms: int,
        version: int,
        commit: int = 0,
    ) -> RemotingCommand:
        """Return the request of a pull.

        Args:
            mq: queue to pull.
            subscription: of its topic; its expression travels along if the flags say so.
            offset: where to begin.
            max_nums: how many messages at most.
            sys_flag: of ``PullSysFlag``.
            suspend_ms: how long the broker may hold it.
            version: of the subscription, as the broker is to know it.
            commit: offset to commit, if the flags say so.
        """
        header = PullMessageRequestHeader(
            self._group,
            mq.topic,
            mq.queue_id,
            offset,
            max_nums,
            sys_flag,
            commit,
            suspend_ms,
            version,
            subscription.sub_string if sys_flag & PullSysFlag.SUBSCRIPTION else None,
            subscription.expression_type,
            mq.broker_name,
        )
        return RemotingCommand.request(RequestCode.PULL_MESSAGE, header)

    def answered(
        self, mq: MessageQueue, answer: RemotingCommand, address: str
    ) -> tuple[PullStatus, PullMessageResponseHeader]:
        """Return what an answer says; which broker it suggests is kept for the next pull.

        Args:
            mq: whose answer it is.
            answer: the broker's.
            address: whose answer it is, for errors.

        Raises:
            BrokerError: a code that is not a pull status.
            RemoteProtocolError: bytes that make no sense.
        """
        status = pull_status(answer.code, answer.remark, address)
        header = answer.header(PullMessageResponseHeader)
        self._suggested[mq] = header.suggest_which_broker_id
        return status, header

    @staticmethod
    def read(
        mq: MessageQueue,
        answer: RemotingCommand,
        header: PullMessageResponseHeader,
        offset: int,
        *,
        check_crc: bool,
    ) -> tuple[list[MessageExt], bool]:
        """Return the messages of an answer, and whether each of them is undamaged.

        Args:
            mq: whose answer it is.
            answer: the broker's.
            header: of the answer.
            offset: that was asked for; of a batch stored as one record nothing before it is taken.
            check_crc: whether bodies are looked at.

        Raises:
            RemoteProtocolError: bytes that make no sense.
        """
        extra = {
            PROPERTY_MIN_OFFSET: str(header.min_offset),
            PROPERTY_MAX_OFFSET: str(header.max_offset),
        }
        return read_pulled(answer.body, mq, offset, check_crc=check_crc, extra_properties=extra)

    @staticmethod
    def selected(
        mq: MessageQueue,
        subscription: SubscriptionData,
        messages: list[MessageExt],
        next_offset: int,
        *,
        undamaged: bool,
    ) -> tuple[list[MessageExt], int]:
        """Return the messages of ``read`` that the subscription wants, and where to pull next.

        Raises:
            DamagedMessageError: the first message's body is damaged; one behind it ends the result.
        """
        messages = keep_tagged(messages, subscription.tags_set)
        if undamaged:
            return messages, next_offset
        return before_damage(messages, mq, next_offset)

    def filtered(self, mq: MessageQueue, messages: list[MessageExt]) -> list[MessageExt]:
        """Return the messages that the filter hooks leave (C-220)."""
        if not self._hooks:
            return messages
        context = FilterMessageContext(self._group, list(messages), mq, unit_mode=self._unit_mode)
        return self._hooks.filter(context)

    def result(
        self,
        mq: MessageQueue,
        subscription: SubscriptionData,
        answer: RemotingCommand,
        address: str,
        offset: int,
        *,
        check_crc: bool,
    ) -> PullResult:
        """Read an answer all at once; arguments and errors are those of the steps above."""
        status, header = self.answered(mq, answer, address)
        messages: list[MessageExt] = []
        next_offset = header.next_begin_offset
        if status is PullStatus.FOUND:
            messages, undamaged = self.read(mq, answer, header, offset, check_crc=check_crc)
            messages, next_offset = self.selected(
                mq, subscription, messages, next_offset, undamaged=undamaged
            )
            messages = self.filtered(mq, messages)
        return PullResult(status, next_offset, header.min_offset, header.max_offset, messages)


def active_version(subscription: SubscriptionData) -> int:
    """Return the version of a subscription in pulls that bring their expression along (C-493).

    Of one by tags there is none: the broker need not know it before.
    """
    return 0 if subscription.expression_type == EXPRESSION_TAG else subscription.sub_version
