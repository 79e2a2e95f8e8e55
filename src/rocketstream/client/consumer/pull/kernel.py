"""One pull as the pull consumers make it: which broker, what request, what its answer says.

Law: runs on the loop; knows neither loops over queues nor offsets (upstream's PullAPIWrapper, C-212
to C-223).
"""

from __future__ import annotations

from rocketstream.client.core.pull_decision import keep_tagged, pull_status
from rocketstream.client.core.pull_result import PullResult
from rocketstream.client.core.routes import BrokerAddress
from rocketstream.client.hooks import FilterHooks, FilterMessageContext
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.errors import NotSupportedError, RouteNotFoundError
from rocketstream.model import MessageQueue, PullStatus
from rocketstream.protocol.bodies import SubscriptionData
from rocketstream.protocol.codes import VERSION_SQL92, PullSysFlag, RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import PullMessageRequestHeader, PullMessageResponseHeader
from rocketstream.protocol.message_ext import MessageExt, before_damage, read_pulled
from rocketstream.protocol.properties import PROPERTY_MAX_OFFSET, PROPERTY_MIN_OFFSET
from rocketstream.protocol.subscription import EXPRESSION_TAG


class PullKernel:
    """Makes the pulls of one consumer."""

    def __init__(
        self,
        instance: MQClientInstance,
        group: str,
        filter_hooks: FilterHooks,
        *,
        unit_mode: bool = False,
        check_crc: bool = True,
    ) -> None:
        self._instance = instance
        self._group = group
        self._hooks = filter_hooks
        self._unit_mode = unit_mode
        self._check_crc = check_crc
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
            raise RouteNotFoundError(f"The broker[{mq.broker_name}] not exist", queue=mq)
        if subscription.expression_type != EXPRESSION_TAG:
            await self._check_version(mq, broker.address, subscription.expression_type)
        return broker.address

    async def _check_version(self, mq: MessageQueue, address: str, kind: str) -> None:
        version = self._instance.broker_version(address)
        if version == 0:
            await self._instance.heartbeat()
            version = self._instance.broker_version(address)
        if version < VERSION_SQL92:
            raise NotSupportedError(
                f"The broker[{mq.broker_name}, {version}] does not upgrade to support for filter "
                f"message by {kind}"
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
    ) -> RemotingCommand:
        """Return the request; the expression always travels along (C-493)."""
        is_tag = subscription.expression_type == EXPRESSION_TAG
        header = PullMessageRequestHeader(
            self._group,
            mq.topic,
            mq.queue_id,
            offset,
            max_nums,
            sys_flag | PullSysFlag.SUBSCRIPTION,
            0,
            suspend_ms,
            0 if is_tag else subscription.sub_version,
            subscription.sub_string,
            subscription.expression_type,
            mq.broker_name,
        )
        return RemotingCommand.request(RequestCode.PULL_MESSAGE, header)

    def result(
        self,
        mq: MessageQueue,
        subscription: SubscriptionData,
        answer: RemotingCommand,
        address: str,
        offset: int,
    ) -> PullResult:
        """Read an answer: decode, filter by this subscription, run the filter hooks (C-220).

        Args:
            mq: whose answer it is.
            subscription: of its topic.
            answer: the broker's.
            address: whose answer it is, for errors.
            offset: that was asked for; of a batch stored as one record nothing before it is taken.

        Raises:
            BrokerError: a code that is no pull status.
            RemoteProtocolError: bytes that make no sense.
            DamagedMessageError: the first message's body is damaged; one behind it ends the result.
        """
        status = pull_status(answer.code, answer.remark, address)
        header = answer.header(PullMessageResponseHeader)
        self._suggested[mq] = header.suggest_which_broker_id
        messages: list[MessageExt] = []
        next_offset = header.next_begin_offset
        if status is PullStatus.FOUND:
            extra = {
                PROPERTY_MIN_OFFSET: str(header.min_offset),
                PROPERTY_MAX_OFFSET: str(header.max_offset),
            }
            messages, undamaged = read_pulled(
                answer.body, mq, offset, check_crc=self._check_crc, extra_properties=extra
            )
            messages = keep_tagged(messages, subscription.tags_set)
            if not undamaged:
                messages, next_offset = before_damage(messages, mq, next_offset)
            if self._hooks:
                messages = self._filtered(mq, messages)
        return PullResult(status, next_offset, header.min_offset, header.max_offset, messages)

    def _filtered(self, mq: MessageQueue, messages: list[MessageExt]) -> list[MessageExt]:
        context = FilterMessageContext(self._group, list(messages), mq, unit_mode=self._unit_mode)
        return self._hooks.filter(context)
