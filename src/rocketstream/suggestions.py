"""Names that a wrong one may have meant: those that contain it, and those spelled alike.

Pure: two small tables have the names that resemble none of ours, as users of Kafka and of other
clients of RocketMQ know them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping

NAMES_MAX = 3
_LIKENESS_MIN = 0.75
_UNITS = frozenset({"ms", "milli", "minute", "second", "sec"})

_CALLED: tuple[tuple[str, str], ...] = (
    ("group", "group_id group_name consumer_group producer_group consumer_group_id"),
    (
        "namesrv_addr namesrv_addrs",
        "namesrv name_server nameserver name_server_address nameserver_address namesrv_address "
        "bootstrap bootstrap_server server broker endpoint address",
    ),
    (
        "listener transaction_listener",
        "listener message_listener register_message_listener on_message callback handler "
        "message_handler",
    ),
    (
        "subscription bind_topic register_topics topics auto_create_topics lite_topics",
        "topic topic_name subscribe tag selector filter sub_expression",
    ),
    (
        "max_reconsume_times retry_times_when_send_failed retry_times_when_send_async_failed",
        "retry retry_time max_retry retry_max retry_number max_retry_time attempt max_attempt",
    ),
    (
        "consume_thread_max consume_thread_min pull_thread_nums check_thread_pool_max_size "
        "workers client_callback_executor_threads",
        "thread thread_num thread_number thread_pool thread_pool_size max_thread pool_size worker "
        "max_worker concurrency max_concurrency parallelism",
    ),
    (
        "send_msg_timeout_ms consume_timeout_minutes poll_timeout_ms consumer_pull_timeout_ms "
        "api_timeout_ms connect_timeout_ms",
        "timeout request_timeout",
    ),
    ("use_tls ssl_context tls options", "tls ssl use_ssl enable_tls enable_ssl tls_enable"),
    ("access_key secret_key options", "user user_name password credential secret acl sasl"),
    ("consume_from_where", "auto_offset_reset offset_reset start_from starting_offset"),
    ("batch_max_bytes", "batch_size"),
    ("batch_max_delay_ms", "linger"),
    ("pull_batch_size", "max_poll_record"),
    ("broker_port namesrv_port", "port"),
    ("instance_name", "client_id"),
)
"""Our names, the likeliest first, and their names in other clients, in the singular."""


_HOOK = "the keywords access_key= and secret_key= of every client"
_CLASSES = {
    "DefaultMQProducer": "Producer",
    "MQProducer": "Producer",
    "TransactionMQProducer": "TransactionProducer",
    "TransactionCheckListener": "TransactionListener",
    "DefaultMQPushConsumer": "PushConsumer",
    "MQPushConsumer": "PushConsumer",
    "MQConsumer": "PushConsumer",
    "DefaultLitePullConsumer": "LitePullConsumer",
    "SimpleConsumer": "LitePullConsumer",
    "DefaultMQPullConsumer": "PullConsumer",
    "MQPullConsumer": "PullConsumer",
    "DefaultMQAdminExt": "rocketstream.admin.Admin",
    "MQAdmin": "rocketstream.admin.Admin",
    "ClientConfiguration": "ClientConfig",
    "ConsumeStatus": "ConsumeConcurrentlyStatus",
    "MessageListener": "a function, or MessageListenerConcurrently and MessageListenerOrderly",
    "MessageQueueSelector": "a function of queues, message and arg, as send(..., selector=pick)",
    "TopicMessageQueueChangeListener": "MessageQueueListener",
    "RemoteBrokerOffsetStore": "PushConsumer.offset_store, which every consumer in clustering has",
    "SendCallback": "send_async(message, callback=done), or the future it returns",
    "RequestCallback": "request_async(message, callback=done), or the future it returns",
    "MessageUtil": "create_reply_message",
    "ExpressionType": "MessageSelector",
    "AclClientRPCHook": _HOOK,
    "SessionCredentials": _HOOK,
    "MQClientException": "RocketMQError",
    "MQBrokerException": "rocketstream.errors.BrokerError",
    "RemotingException": "rocketstream.errors.TransportError",
    "RemotingConnectException": "rocketstream.errors.ConnectError",
    "RemotingTimeoutException": "rocketstream.errors.RequestTimeoutError",
    "RemotingTooMuchRequestException": "rocketstream.errors.TooManyRequestsError",
    "RequestTimeoutException": "ReplyTimeoutError",
}
"""Classes of other clients, Java's above all, and their substitutes here."""


def class_hint(name: str) -> str | None:
    """Return our substitute for another client's class; None for an unknown class."""
    return _CLASSES.get(name)


def member_hint(name: str, members: Collection[str], spellings: Mapping[str, str]) -> str:
    """Return the hint behind "has no attribute" of a client; empty for an unknown name.

    Args:
        name: a method of Java's, such as ``setNamesrvAddr``.
        members: methods and attributes of ours.
        spellings: as for ``likely_names``: of the client's settings.
    """
    ours = _snake(name)
    if ours in members:
        return f"; use {ours}"
    found = re.fullmatch(r"(set|get|is)([A-Z]\w*)", name)
    if found is None:
        return ""
    verb, rest = found[1], _snake(found[2])
    if verb != "set" and rest in members:
        return f"; use {rest}"
    likely = likely_names(found[2], spellings)
    if not likely:
        return ""
    if verb == "set":
        return f"; give {likely[0]}= when the client is made"
    return f"; use {likely[0]}" if likely[0] in members else f"; it is the setting {likely[0]}"


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def likely_names(guess: str, spellings: Mapping[str, str]) -> list[str]:
    """Return the names that may have been meant, the likeliest first; at most ``NAMES_MAX``.

    Args:
        guess: the given name, in upper or lower case.
        spellings: every way to spell a name (ours, Java's) with the name; of equally likely ones
            the first counts.
    """
    words = _words(guess)
    folded, known = "".join(words), {each: _words(each) for each in spellings}
    by_folded = {"".join(known[each]): spellings[each] for each in reversed(known)}
    if not words or folded in by_folded:
        return [by_folded[folded]] if words else []
    for ours, theirs in _CALLED:
        meant = [each for each in ours.split() if each in by_folded.values()]
        if meant and folded in {"".join(_words(each)) for each in theirs.split()}:
            return meant[:NAMES_MAX]
    alike = {
        each: sum(bool(difflib.get_close_matches(word, theirs, 1, _LIKENESS_MIN)) for word in words)
        for each, theirs in known.items()
    }
    most = max(alike.values(), default=0)
    if 2 * most > len(words):
        best = [each for each in known if alike[each] == most]
        found = [spellings[each] for each in sorted(best, key=lambda each: len(known[each]))]
    else:
        close = difflib.get_close_matches(folded, by_folded, NAMES_MAX, _LIKENESS_MIN)
        found = [by_folded[each] for each in close]
    return list(dict.fromkeys(found))[:NAMES_MAX]


def like(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'a', 'b'?``, or an empty text when no known name is similar."""
    # Ignore case first: an upper-case topic is the commonest slip.
    by_folded: dict[str, str] = {}
    for each in known:
        by_folded.setdefault(each.casefold(), each)
    folded = name.casefold()
    close = difflib.get_close_matches(folded, by_folded, n=NAMES_MAX, cutoff=0.6)
    if folded:
        # A name cut short, or with an extra part, may share too few letters to count as close.
        close += sorted(each for each in by_folded if folded in each or each in folded)
    close = list(dict.fromkeys(close))[:NAMES_MAX]
    if not close:
        return ""
    return "; did you mean " + " or ".join(repr(by_folded[each]) for each in close) + "?"


def _words(name: str) -> list[str]:
    """Return the words of a name in snake or camel case: in the singular, without units."""
    words = [re.sub("ies$", "y", each) for each in _snake(name).split("_")]
    singular = [re.sub(r"(?<=..[^s])s$", "", each) for each in words]
    return [each for each in singular if each and each not in _UNITS]
