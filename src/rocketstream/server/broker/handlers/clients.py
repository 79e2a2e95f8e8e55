"""Clients: heartbeats, leaving, member lists, queue locks (codes 34, 35, 38, 41, 42, 46, 203, 204).

``core.members`` and ``core.locks`` decide (C-336 to C-356).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from rocketstream.errors import BrokerError, ConfigurationError, SubscriptionError
from rocketstream.limits import GROUP_CHARS_MAX, LOCK_SAVE_WAIT_MS, SUBSCRIPTIONS_BYTES_MAX
from rocketstream.model import MessageQueue
from rocketstream.protocol import names
from rocketstream.protocol.bodies import (
    CheckClientRequestBody,
    ConsumerConnection,
    ConsumerData,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    ProducerConnection,
    UnlockBatchRequestBody,
)
from rocketstream.protocol.bodies import Connection as ConnectionBody
from rocketstream.protocol.bodies.client import SHARED_ID_FIELD
from rocketstream.protocol.codes import LanguageCode, RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    GetConsumerConnectionListRequestHeader,
    GetConsumerListByGroupRequestHeader,
    GetProducerConnectionListRequestHeader,
    UnregisterClientRequestHeader,
)
from rocketstream.protocol.signing import ACCESS_KEY
from rocketstream.server.broker.controller import BrokerController
from rocketstream.server.broker.core.consumer_filters import compiled_of, is_tag_type
from rocketstream.server.broker.core.members import Member
from rocketstream.server.broker.filtering import unsupported
from rocketstream.server.dispatch import Handler, ok, ok_in_parts, refusal
from rocketstream.transport.connection import Connection
from rocketstream.transport.sharing import AnswerSteps, Steps

logger: logging.Logger = logging.getLogger("rocketstream.server")


class ClientHandlers:
    """Requests about connected clients and queue locks."""

    def __init__(self, controller: BrokerController) -> None:
        self._controller = controller

    def table(self) -> dict[int, Handler]:
        """The codes of this module."""
        return {
            RequestCode.HEART_BEAT: self.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.consumer_ids,
            RequestCode.CHECK_CLIENT_CONFIG: self.check_client,
            RequestCode.LOCK_BATCH_MQ: self.lock,
            RequestCode.UNLOCK_BATCH_MQ: self.unlock,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.consumer_connections,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.producer_connections,
        }

    # --- coming and going ------------------------------------------------------------------------

    def heartbeat(self, connection: Connection, request: RemotingCommand) -> Steps:
        """Code 34; others are served between its groups.

        A group that is refused takes nothing from the others: a client that is there must not
        expire in them. The first refusal is the answer.
        """
        data = HeartbeatData.decode_request(_body(request))
        shared_with = ""
        # Answers, since errors would hold this frame, and that all of the heartbeat.
        refused: list[RemotingCommand] = []
        for consumer in data.consumer_data_set:
            yield
            try:
                member = self._member(connection, request, data.client_id)
                yield from self._register_consumer(consumer, member)
                shared_with = self._twin(consumer.group_name, member) or shared_with
            except BrokerError as error:
                refused.append(RemotingCommand.response(error.code, error.remark))
        for producer in data.producer_data_set:
            try:
                member = self._member(connection, request, data.client_id)
                self._register_producer(producer.group_name, member)
            except BrokerError as error:
                refused.append(RemotingCommand.response(error.code, error.remark))
            yield
        answer = _first(refused) if refused else ok()
        if shared_with:
            answer.ext_fields = {SHARED_ID_FIELD: shared_with}
        return answer

    def _register_producer(self, group: str, member: Member) -> None:
        if len(group) > GROUP_CHARS_MAX:
            text = f"a producer group has {GROUP_CHARS_MAX} characters at most"
            raise refusal(ResponseCode.SYSTEM_ERROR, text)
        self._controller.producers.register(group, member)

    def _twin(self, group: str, member: Member) -> str:
        """Return where another process has the id of a member, and say so once; else nothing."""
        twin = self._controller.consumers.twin(group, member)
        if twin is None or not isinstance(twin.channel, Connection):
            return ""
        if not member.is_twin_told:
            member.is_twin_told = True
            logger.warning(
                "group %s: two processes have the client id %s, behind %s and %s; give each an "
                "instance_name of its own",
                group, member.client_id, getattr(member.channel, "peer", "?"), twin.channel.peer,
            )  # fmt: skip
        return twin.channel.peer

    def _member(self, connection: Connection, request: RemotingCommand, client_id: str) -> Member:
        controller = self._controller
        return Member(
            connection,
            client_id,
            request.language,
            request.version,
            controller.now_ms(),
            controller.monotonic_ms(),
            (request.ext_fields or {}).get(ACCESS_KEY),
        )

    def _register_consumer(self, data: ConsumerData, member: Member) -> Steps:
        controller = self._controller
        try:
            names.check_consumer_group(data.group_name)
        except ConfigurationError as error:
            raise refusal(ResponseCode.SYSTEM_ERROR, error.message) from None
        settings = controller.find_group(data.group_name)
        notify = True
        if settings is not None:
            notify = settings.notify_consumer_ids_changed_enable
            controller.ensure_retry_topic(settings, unit=data.unit_mode)
        done = controller.consumers.register(data, member)
        now_ms = controller.now_ms()
        subscriptions = data.subscription_data_set
        found_wrong = yield from controller.filters.registering(
            data.group_name, subscriptions, now_ms
        )
        for wrong in found_wrong:
            logger.warning("group %s: %s", data.group_name, wrong.message)
        group = controller.consumers.group(data.group_name)
        if done.is_changed and notify and group is not None:
            controller.notify_members(data.group_name, group.channels())
        if done.left_out:
            raise refusal(
                ResponseCode.SYSTEM_ERROR,
                "the subscriptions of all consumers together are over the maximum of "
                f"{SUBSCRIPTIONS_BYTES_MAX} bytes; that of group {data.group_name} for topic "
                f"{done.left_out[0]} is not taken",
            )

    def unregister(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Code 35."""
        header = request.header(UnregisterClientRequestHeader)
        controller = self._controller
        if header.producer_group:
            controller.producers.unregister(header.producer_group, connection)
        if header.consumer_group:
            left = controller.consumers.unregister(header.consumer_group, connection)
            settings = controller.groups.get(header.consumer_group)
            notify = settings is None or settings.notify_consumer_ids_changed_enable
            controller.member_left(header.consumer_group, left, notify=notify)
        return ok()

    def check_client(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Code 46: checks that the broker can filter by a consumer's subscription (C-389)."""
        body = CheckClientRequestBody.decode_request(_body(request))
        subscription = body.subscription_data
        if subscription is None or is_tag_type(subscription.expression_type):
            return ok()
        if not self._controller.config.enable_property_filter:
            raise refusal(ResponseCode.SYSTEM_ERROR, unsupported(subscription.expression_type))
        try:
            compiled_of(subscription.sub_string, subscription.expression_type)
        except SubscriptionError as error:
            raise refusal(ResponseCode.SUBSCRIPTION_PARSE_FAILED, error.message) from None
        return ok()

    # --- questions -------------------------------------------------------------------------------

    def consumer_ids(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Code 38."""
        header = request.header(GetConsumerListByGroupRequestHeader)
        group = self._controller.consumers.group(header.consumer_group)
        if group is None:
            text = f"no consumer for this group, {header.consumer_group}"
            raise refusal(ResponseCode.SYSTEM_ERROR, text)
        return ok(body=GetConsumerListByGroupResponseBody(group.client_ids()).encode())

    def consumer_connections(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Code 203."""
        header = request.header(GetConsumerConnectionListRequestHeader)
        group = self._controller.consumers.group(header.consumer_group)
        if group is None:
            text = f"the consumer group[{header.consumer_group}] not online"
            raise refusal(ResponseCode.CONSUMER_NOT_ONLINE, text)
        body = ConsumerConnection(
            connection_set=_connections(group.members.values()),
            subscription_table=dict(group.subscriptions),
            consume_type=group.consume_type,
            message_model=group.message_model,
            consume_from_where=group.consume_from_where,
        )
        return ok(body=body.encode())

    def producer_connections(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Code 204."""
        header = request.header(GetProducerConnectionListRequestHeader)
        members = self._controller.producers.members(header.producer_group)
        if not members:
            text = f"the producer group[{header.producer_group}] not exist"
            raise refusal(ResponseCode.SYSTEM_ERROR, text)
        return ok(body=ProducerConnection(_connections(members)).encode())

    # --- locks -----------------------------------------------------------------------------------

    def lock(self, connection: Connection, request: RemotingCommand) -> AnswerSteps:
        """Code 41: new locks are persisted first, so that a restart knows their holders."""
        body = LockBatchRequestBody.decode_request(_body(request))
        yield None
        controller, locks = self._controller, self._controller.locks
        group = body.consumer_group
        got = locks.lock(group, body.client_id, body.mq_set, controller.monotonic_ms())
        since = {queue: locks.since(group, queue) for queue in got}
        known = self._known(since)
        if len(known) == len(since):
            return ok_in_parts((yield from LockBatchResponseBody(known).encoding()))
        controller.spawn(self._answer_written(connection, request, since))
        return None

    async def _answer_written(
        self, connection: Connection, request: RemotingCommand, since: dict[MessageQueue, int]
    ) -> None:
        """Answer with the locks a restart will know; the client gets the others next time."""
        written = self._controller.saver.locks_written()
        await asyncio.wait([written], timeout=LOCK_SAVE_WAIT_MS / 1000)
        connection.reply(request, _locked(self._known(since)))

    def _known(self, since: dict[MessageQueue, int]) -> set[MessageQueue]:
        is_known = self._controller.saver.locks_known
        return {queue for queue, generation in since.items() if is_known(generation)}

    def unlock(self, _: Connection, request: RemotingCommand) -> AnswerSteps:
        """Code 42."""
        body = UnlockBatchRequestBody.decode_request(_body(request))
        yield None
        self._controller.locks.unlock(body.consumer_group, body.client_id, body.mq_set)
        return ok()


def _locked(queues: set[MessageQueue]) -> RemotingCommand:
    return ok(body=LockBatchResponseBody(queues).encode())


def _first(refused: list[RemotingCommand]) -> RemotingCommand:
    """Return the answer to a heartbeat of which some groups were not taken."""
    first, more = refused[0], len(refused) - 1
    if more:
        first.remark = f"{first.remark}; {more} more of the client's groups are refused"
    return first


def _body(request: RemotingCommand) -> bytes:
    if not request.body:
        text = f"request {request.code} has no body; send its JSON body"
        raise refusal(ResponseCode.SYSTEM_ERROR, text)
    return bytes(request.body)


def _connections(members: Iterable[Member]) -> list[ConnectionBody]:
    return [
        ConnectionBody(
            client_id=member.client_id,
            client_addr=getattr(member.channel, "peer", ""),
            language=language_name(member.language),
            version=member.version,
        )
        for member in members
    ]


def language_name(code: int) -> str:
    """Return the name of a language code, OTHER for an undefined one."""
    try:
        return LanguageCode(code).name
    except ValueError:
        return LanguageCode.OTHER.name
