"""The rights each request needs: to topics and groups, those of an admin, or a signature alone.

Pure: a request in, rights out.

Law: one table has the rule of every code, and a code without one needs an admin. Upstream:
PlainAccessValidator.parse and Permission.ADMIN_CODE of 4.9.7, and rights for requests upstream
leaves open although a signature alone must not be enough (docs/security.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from rocketstream.protocol.properties import PROPERTY_REAL_TOPIC, PROPERTY_RETRY_TOPIC
from rocketstream.server.broker.core.acl.accounts import PUB, SUB

Rights = dict[str, int]
"""PUB or SUB by topic; a group appears as its retry topic."""
ADMIN: Final = None
"""Instead of rights or of a rule for them: the request needs an admin."""
Rule = Callable[[RemotingCommand], Rights | None]

OWN_TOPICS: Final = frozenset({
    names.SCHEDULE_TOPIC, names.TRANS_HALF_TOPIC, names.TRANS_OP_HALF_TOPIC,
    names.TRANS_CHECK_MAX_TIME_TOPIC, names.UNDELIVERED_TOPIC,
})  # fmt: skip
"""Topics where the broker keeps messages of all others: for admins only, even if an entry names
them."""


def rights_of(request: RemotingCommand, reply_topic: str = "") -> Rights | None:
    """Return the rights a request needs in addition to a valid signature; None for an admin's.

    Args:
        request: as received, with its body.
        reply_topic: the cluster's own topic of replies, which a reply needs no right to.

    Raises:
        RemoteProtocolError: the body of the request cannot be read.
    """
    rule = RULES.get(request.code)
    if rule is None:
        return ADMIN
    rights = rule(request)
    if rights is not ADMIN and request.code in _REPLIES:
        rights.pop(reply_topic, None)
    return rights


def rights_to_stored(topic: str, properties: Mapping[str, str], wanted: int) -> Rights:
    """Return the rights to a stored message: to the topic it was sent to, wherever it waits now.

    Args:
        topic: where it is stored.
        properties: the message's.
        wanted: PUB, SUB, or both where either is enough.
    """
    if topic in OWN_TOPICS:
        topic = properties.get(PROPERTY_REAL_TOPIC, topic)
    rights = to_topic(topic, wanted)
    if topic.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX)):
        first = properties.get(PROPERTY_RETRY_TOPIC)
        if first is not None:
            rights[first] = wanted
    return rights


def to_topic(topic: str, wanted: int) -> Rights:
    """Return the right to a topic; a retry topic is its group's, and its writers are consumers."""
    return {topic: SUB if topic.startswith(names.RETRY_PREFIX) else wanted}


def _of_group(group: str | None) -> Rights:
    return {} if group is None else {names.RETRY_PREFIX + group: SUB}


def _of_topic(topic: str | None, perm: int) -> Rights:
    return {} if topic is None else {topic: perm}


def _get(request: RemotingCommand, name: str) -> str | None:
    return (request.ext_fields or {}).get(name)


def _signed(_: RemotingCommand) -> Rights:
    """A signature is enough: settings, names, members and offsets, no message and no change."""
    return {}


def _of_stored(_: RemotingCommand) -> Rights:
    """The handler checks the right once it has read the message (``AccessGuard.check_stored``)."""
    return {}


def _sends(topic_name: str, request: RemotingCommand) -> Rights:
    """Return the rights of a send.

    Upstream checks the sender's group instead, which the user never named, and nothing with code
    10.
    """
    topic = _get(request, topic_name)
    return {} if topic is None else to_topic(topic, PUB)


def _consumes(group_name: str, request: RemotingCommand) -> Rights:
    return _reads(request) | _group(group_name, request)


def _clones(request: RemotingCommand) -> Rights | None:
    """Return the rights of a copy of offsets, which without a topic is one of all topics."""
    if not (_get(request, "topic") or "").strip():
        return ADMIN
    return _consumes("destGroup", request)


def _reads(request: RemotingCommand) -> Rights:
    return _of_topic(_get(request, "topic"), SUB)


def _group(group_name: str, request: RemotingCommand) -> Rights:
    return _of_group(_get(request, group_name))


def _heartbeat(request: RemotingCommand) -> Rights:
    rights: Rights = {}
    for group in HeartbeatData.decode_request(bytes(request.body)).consumer_data_set:
        rights |= _of_group(group.group_name)
        for subscription in group.subscription_data_set:
            rights |= _of_topic(subscription.topic, SUB)
    return rights


def _locks(
    kind: type[LockBatchRequestBody] | type[UnlockBatchRequestBody], request: RemotingCommand
) -> Rights:
    body = kind.decode_request(bytes(request.body))
    return _of_group(body.consumer_group) | {queue.topic: SUB for queue in body.mq_set}


_REPLIES: Final = frozenset({RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2})
RULES: Final[Mapping[int, Rule | None]] = {
    # --- messages
    RequestCode.SEND_MESSAGE: partial(_sends, "topic"),
    RequestCode.SEND_MESSAGE_V2: partial(_sends, "b"),
    RequestCode.SEND_BATCH_MESSAGE: partial(_sends, "b"),
    RequestCode.SEND_REPLY_MESSAGE: partial(_sends, "topic"),
    RequestCode.SEND_REPLY_MESSAGE_V2: partial(_sends, "b"),
    RequestCode.PULL_MESSAGE: partial(_consumes, "consumerGroup"),
    RequestCode.LITE_PULL_MESSAGE: partial(_consumes, "consumerGroup"),
    RequestCode.CONSUMER_SEND_MSG_BACK: partial(_group, "group"),  # and the message's topic
    RequestCode.CONSUME_MESSAGE_DIRECTLY: partial(_group, "consumerGroup"),  # as above
    RequestCode.END_TRANSACTION: _of_stored,
    RequestCode.VIEW_MESSAGE_BY_ID: _of_stored,
    RequestCode.QUERY_MESSAGE: _reads,
    RequestCode.QUERY_CONSUME_QUEUE: _reads,
    # --- groups
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.UNREGISTER_CLIENT: partial(_group, "consumerGroup"),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: partial(_group, "consumerGroup"),
    RequestCode.UPDATE_CONSUMER_OFFSET: partial(_consumes, "consumerGroup"),
    RequestCode.LOCK_BATCH_MQ: partial(_locks, LockBatchRequestBody),
    RequestCode.UNLOCK_BATCH_MQ: partial(_locks, UnlockBatchRequestBody),
    # Other ways to do what code 15 does.
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: partial(_consumes, "group"),
    RequestCode.CLONE_GROUP_OFFSET: _clones,
    # Members have to work for the answers.
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: partial(_consumes, "group"),
    RequestCode.GET_CONSUMER_RUNNING_INFO: partial(_group, "consumerGroup"),
    # --- looking around
    RequestCode.QUERY_CONSUMER_OFFSET: _signed,
    RequestCode.GET_ALL_TOPIC_CONFIG: _signed,
    RequestCode.GET_BROKER_CONFIG: _signed,
    RequestCode.GET_BROKER_RUNTIME_INFO: _signed,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _signed,
    RequestCode.GET_MAX_OFFSET: _signed,
    RequestCode.GET_MIN_OFFSET: _signed,
    RequestCode.GET_EARLIEST_MSG_STORETIME: _signed,
    RequestCode.GET_ALL_CONSUMER_OFFSET: _signed,
    RequestCode.GET_ALL_DELAY_OFFSET: _signed,
    RequestCode.CHECK_CLIENT_CONFIG: _signed,
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO: _signed,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _signed,
    RequestCode.GET_TOPIC_STATS_INFO: _signed,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: _signed,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: _signed,
    RequestCode.GET_CONSUME_STATS: _signed,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _signed,
    RequestCode.QUERY_CONSUME_TIME_SPAN: _signed,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _signed,
    RequestCode.QUERY_CORRECTION_OFFSET: _signed,
    RequestCode.VIEW_BROKER_STATS_DATA: _signed,
    RequestCode.GET_BROKER_CONSUME_STATS: _signed,
    RequestCode.GET_ALL_PRODUCER_INFO: _signed,
    RequestCode.GET_TOPIC_CONFIG: _signed,
    # --- operators: upstream's, ...
    RequestCode.UPDATE_AND_CREATE_TOPIC: ADMIN,
    RequestCode.UPDATE_BROKER_CONFIG: ADMIN,
    RequestCode.DELETE_TOPIC_IN_BROKER: ADMIN,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: ADMIN,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: ADMIN,
    # ... those with which any account of upstream's can make itself an admin, or read all secrets,
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: ADMIN,
    RequestCode.DELETE_ACL_CONFIG: ADMIN,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: ADMIN,
    RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: ADMIN,
    # ... and those that no producer or consumer sends: they change the data of others.
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: ADMIN,
    RequestCode.CLEAN_UNUSED_TOPIC: ADMIN,
    RequestCode.DELETE_EXPIRED_COMMITLOG: ADMIN,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: ADMIN,
}

OPEN_NAME_SERVER_CODES: Final = frozenset({
    RequestCode.GET_KV_CONFIG, RequestCode.GET_ROUTEINFO_BY_TOPIC,
    RequestCode.GET_BROKER_CLUSTER_INFO, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    RequestCode.GET_KVLIST_BY_NAMESPACE, RequestCode.GET_TOPICS_BY_CLUSTER,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, RequestCode.GET_UNIT_TOPIC_LIST,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
    RequestCode.GET_NAMESRV_CONFIG,
})  # fmt: skip
"""Requests a name server answers without an account; every other one needs an admin."""
