"""The rights each request needs: to topics and groups, or those of an admin.

Law: a request in, rights out. Upstream: PlainAccessValidator.parse and Permission.ADMIN_CODE of
4.9.7, and rights for requests upstream leaves open although a signature alone must not be enough
(docs/security.md).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from rocketstream.protocol import names
from rocketstream.protocol.bodies import (
    HeartbeatData,
    LockBatchRequestBody,
    UnlockBatchRequestBody,
)
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.server.broker.core.acl.accounts import PUB, SUB

Rights = dict[str, int]
"""PUB or SUB by topic; a group appears as its retry topic."""

UPSTREAM_ADMIN_CODES: Final = frozenset({
    RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.UPDATE_BROKER_CONFIG,
    RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
})  # fmt: skip
ADMIN_CODES: Final = UPSTREAM_ADMIN_CODES | {
    # With these requests any account of upstream's can make itself an admin, or read all secrets.
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, RequestCode.DELETE_ACL_CONFIG,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG,
    # Nothing that produces or consumes sends these; they change the data of others.
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, RequestCode.CLEAN_UNUSED_TOPIC,
    RequestCode.DELETE_EXPIRED_COMMITLOG, RequestCode.RESUME_CHECK_HALF_MESSAGE,
}  # fmt: skip


def rights_of(request: RemotingCommand) -> Rights:
    """Return the rights a request needs in addition to a valid signature.

    Raises:
        RemoteProtocolError: the body of the request cannot be read.
    """
    rule = _RULES.get(request.code)
    return {} if rule is None else rule(request)


def _of_group(group: str | None) -> Rights:
    return {} if group is None else {names.RETRY_PREFIX + group: SUB}


def _of_topic(topic: str | None, perm: int) -> Rights:
    return {} if topic is None else {topic: perm}


def _get(request: RemotingCommand, name: str) -> str | None:
    return (request.ext_fields or {}).get(name)


def _sends(topic_name: str, request: RemotingCommand) -> Rights:
    """Return the rights of a send; one to a retry topic is a consumer's.

    Upstream checks the sender's group instead, which the user never named, and nothing with code
    10.
    """
    topic = _get(request, topic_name)
    if topic is not None and topic.startswith(names.RETRY_PREFIX):
        return {topic: SUB}
    return _of_topic(topic, PUB)


def _replies(topic_name: str, request: RemotingCommand) -> Rights:
    """Return the rights of a reply: its topic needs none, as everywhere upstream."""
    topic = _get(request, topic_name)
    if topic is None or topic.endswith(names.REPLY_TOPIC_SUFFIX):
        return {}
    return _of_topic(topic, PUB)


def _consumes(group_name: str, request: RemotingCommand) -> Rights:
    return _reads(request) | _group(group_name, request)


def _reads(request: RemotingCommand) -> Rights:
    return _of_topic(_get(request, "topic"), SUB)


def _recalls(request: RemotingCommand) -> Rights:
    return _of_topic(_get(request, "topic"), PUB)


def _group(group_name: str, request: RemotingCommand) -> Rights:
    return _of_group(_get(request, group_name))


def _heartbeat(request: RemotingCommand) -> Rights:
    rights: Rights = {}
    for group in HeartbeatData.decode(bytes(request.body)).consumer_data_set:
        rights |= _of_group(group.group_name)
        for subscription in group.subscription_data_set:
            rights |= _of_topic(subscription.topic, SUB)
    return rights


def _locks(request: RemotingCommand) -> Rights:
    return _of_group(LockBatchRequestBody.decode(bytes(request.body)).consumer_group)


def _unlocks(request: RemotingCommand) -> Rights:
    return _of_group(UnlockBatchRequestBody.decode(bytes(request.body)).consumer_group)


_UPSTREAM_RULES: Final[dict[int, Callable[[RemotingCommand], Rights]]] = {
    RequestCode.SEND_MESSAGE: partial(_sends, "topic"),
    RequestCode.SEND_MESSAGE_V2: partial(_sends, "b"),
    RequestCode.CONSUMER_SEND_MSG_BACK: partial(_group, "group"),
    RequestCode.PULL_MESSAGE: partial(_consumes, "consumerGroup"),
    RequestCode.QUERY_MESSAGE: _reads,
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.UNREGISTER_CLIENT: partial(_group, "consumerGroup"),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: partial(_group, "consumerGroup"),
    RequestCode.UPDATE_CONSUMER_OFFSET: partial(_consumes, "consumerGroup"),
}
_OUR_RULES: Final[dict[int, Callable[[RemotingCommand], Rights]]] = {
    RequestCode.SEND_BATCH_MESSAGE: partial(_sends, "b"),
    RequestCode.SEND_REPLY_MESSAGE: partial(_replies, "topic"),
    RequestCode.SEND_REPLY_MESSAGE_V2: partial(_replies, "b"),
    RequestCode.LITE_PULL_MESSAGE: partial(_consumes, "consumerGroup"),
    RequestCode.LOCK_BATCH_MQ: _locks,
    RequestCode.UNLOCK_BATCH_MQ: _unlocks,
    # Another way to do what code 15 does.
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: partial(_consumes, "group"),
    RequestCode.CLONE_GROUP_OFFSET: partial(_consumes, "destGroup"),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: partial(_group, "consumerGroup"),
    RequestCode.RECALL_MESSAGE: _recalls,
}
_RULES: Final = _UPSTREAM_RULES | _OUR_RULES
