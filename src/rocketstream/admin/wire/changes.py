"""The requests that change a cluster: one method per request code, and those a broker needs before.

Law: used by ``admin.safety`` only, so that looking cannot change anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rocketstream.admin.wire.looking import Wire
from rocketstream.admin.wire.questions import CLIENT_TIMEOUT_MS
from rocketstream.client.instance.questions import Question
from rocketstream.errors import BrokerError
from rocketstream.model import MessageQueue
from rocketstream.protocol import fastjson
from rocketstream.protocol.bodies import (
    ConsumeMessageDirectlyResult,
    ResetOffsetBody,
    SubscriptionGroupConfig,
)
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    CreateTopicRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    DeleteTopicRequestHeader,
    Header,
    ResetOffsetRequestHeader,
)

TO_END_MS = -1
DEFAULT_TOPIC = "TBW102"
"""Upstream names the topic that new ones are copied from; brokers ignore it in this request."""


class ChangingWire(Wire):
    """Changes one cluster; blocking, and as thread safe as its client."""

    def _change(
        self,
        address: str,
        code: RequestCode,
        header: Header | None = None,
        body: bytes = b"",
        *,
        timeout_ms: int | None = None,
    ) -> bytes:
        question = Question(code, header, lambda answer: bytes(answer.body), body=body)
        return self.ask(address, question, timeout_ms=timeout_ms)

    # --- offsets ---------------------------------------------------------------------------------

    def store_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """UPDATE_CONSUMER_OFFSET (15) at the queue's master."""
        self._client.update_consumer_offset(group, queue, offset)

    def store_offset_making_group(self, group: str, queue: MessageQueue, offset: int) -> None:
        """``store_offset`` for a group that may have no settings yet.

        Since 5.x a broker stores nothing for a group it does not know, so the group is made there.
        """
        try:
            self.store_offset(group, queue, offset)
        except BrokerError as error:
            if error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                raise
            self.make_group(queue.broker_name, group)
            self.store_offset(group, queue, offset)

    def tell_stored(self, address: str, group: str, topic: str) -> dict[MessageQueue, int]:
        """INVOKE_BROKER_TO_RESET_OFFSET (222): send members to the stored offsets; returns these.

        Asks to skip to the end, but without force: a broker then tells members (220) the stored
        offsets.

        Raises:
            ConsumerNotOnlineError: nobody is connected there.
        """
        header = ResetOffsetRequestHeader(
            topic=topic, group=group, timestamp=TO_END_MS, is_force=False
        )
        return self._reset(address, header)

    def send_to(
        self, address: str, group: str, queue: MessageQueue, offset: int
    ) -> dict[MessageQueue, int]:
        """INVOKE_BROKER_TO_RESET_OFFSET (222) of one queue, at brokers that reset themselves."""
        header = ResetOffsetRequestHeader(
            topic=queue.topic,
            group=group,
            timestamp=TO_END_MS,
            is_force=False,
            queue_id=queue.queue_id,
            offset=offset,
        )
        return self._reset(address, header)

    def _reset(self, address: str, header: ResetOffsetRequestHeader) -> dict[MessageQueue, int]:
        body = self._change(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
        return ResetOffsetBody.decode(body).offset_table

    # --- topics ----------------------------------------------------------------------------------

    def put_topic(
        self, address: str, topic: str, settings: Mapping[str, Any], attributes: str | None = None
    ) -> None:
        """UPDATE_AND_CREATE_TOPIC (17) on one broker: settings by upstream's names.

        ``attributes`` is the change of the attributes, which brokers of 4.x ignore.
        """
        header = CreateTopicRequestHeader(
            topic=topic,
            default_topic=DEFAULT_TOPIC,
            read_queue_nums=settings["readQueueNums"],
            write_queue_nums=settings["writeQueueNums"],
            perm=settings["perm"],
            topic_filter_type=settings["topicFilterType"],
            topic_sys_flag=settings["topicSysFlag"],
            order=settings["order"],
            attributes=attributes,
        )
        self._change(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    def delete_topic(self, address: str, topic: str) -> None:
        """DELETE_TOPIC_IN_BROKER (215) on one broker."""
        self._change(
            address, RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic=topic)
        )

    def delete_route(self, name_server: str, topic: str, cluster: str | None = None) -> None:
        """DELETE_TOPIC_IN_NAMESRV (216) on one name server."""
        header = DeleteTopicFromNamesrvRequestHeader(topic=topic, cluster_name=cluster)
        self._change(name_server, RequestCode.DELETE_TOPIC_IN_NAMESRV, header)

    # --- groups ----------------------------------------------------------------------------------

    def put_group(self, address: str, config: Mapping[str, Any]) -> None:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200): the whole settings, by upstream's names."""
        body = fastjson.dumps(dict(config), standard=True).encode()
        self._change(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)

    def make_group(self, broker_name: str, group: str) -> None:
        """``put_group`` with upstream's defaults, at a broker's master."""
        config = SubscriptionGroupConfig(group_name=group).to_json()
        self.put_group(self._client.master(broker_name), config)

    def delete_group(self, address: str, group: str, *, offsets: bool) -> None:
        """DELETE_SUBSCRIPTIONGROUP (207), with the group's offsets if wanted."""
        # 4.9 calls it removeOffset, 5.x cleanOffset.
        header = DeleteSubscriptionGroupRequestHeader(
            group_name=group, remove_offset=offsets, clean_offset=offsets
        )
        self._change(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)

    # --- members ---------------------------------------------------------------------------------

    def consume_directly(
        self, address: str, group: str, client_id: str, offset_msg_id: str
    ) -> ConsumeMessageDirectlyResult:
        """CONSUME_MESSAGE_DIRECTLY (309) on the broker that stores the message."""
        header = ConsumeMessageDirectlyResultRequestHeader(
            consumer_group=group, client_id=client_id, msg_id=offset_msg_id
        )
        code = RequestCode.CONSUME_MESSAGE_DIRECTLY
        body = self._change(address, code, header, timeout_ms=CLIENT_TIMEOUT_MS)
        return ConsumeMessageDirectlyResult.decode(body)
