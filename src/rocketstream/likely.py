"""Which names a wrong one may have meant: whole words count before letters.

Law: pure; knows words and no settings. What shares no word with our names, as Kafka's users or
those of other clients call things, stands in one small table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

NAMES_MAX = 3
BEGINNING_MIN = 5
_LIKENESS_MIN = 0.75

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_UNITS = frozenset({"ms", "milli", "mill", "minute", "second", "sec"})
_SAME = {
    "addr": "address",
    "compression": "compress",
    "consumer": "consume",
    "count": "number",
    "maximum": "max",
    "minimum": "min",
    "msg": "message",
    "num": "number",
}
_SAID_OF_MANY = frozenset(
    {"delay", "enable", "for", "interval", "max", "min", "name", "number", "of", "size", "time"}
    | {"type", "when"}
)
"""Words that alone do not show which setting is meant."""

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
        "thread thread_number thread_pool thread_pool_size max_thread pool_size worker max_worker "
        "concurrency max_concurrency parallelism",
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
"""Our names, the likeliest first, and what users of others call them, in the singular."""


def likely_names(guess: str, spellings: Mapping[str, str]) -> list[str]:
    """Return the names that may have been meant, the likeliest first; at most ``NAMES_MAX``.

    Args:
        guess: what was given, in whatever case.
        spellings: every way to spell a name (ours, Java's) with the name; of equally likely ones
            the first counts.
    """
    by_folded = {_folded(spelling): name for spelling, name in spellings.items()}
    folded = _folded(guess)
    if folded in by_folded:
        return [by_folded[folded]]
    words = _words(guess)
    found = (
        _called("".join(words), frozenset(spellings.values()))
        or _by_words(words, spellings, len(words))
        or _by_letters(folded, by_folded)
        or _by_words(words, spellings, max(1, (len(words) + 1) // 2))
    )
    return list(dict.fromkeys(found))[:NAMES_MAX]


def _called(guess: str, names: frozenset[str]) -> list[str]:
    for ours, theirs in _CALLED:
        if guess in {"".join(_words(each)) for each in theirs.split()}:
            return [each for each in ours.split() if each in names]
    return []


def _by_words(words: tuple[str, ...], spellings: Mapping[str, str], least: int) -> list[str]:
    """Return the names with at least so many of the words; those with the fewest others first."""
    wanted = frozenset(words)
    ranked = []
    for spelling, name in spellings.items():
        those = frozenset(_words(spelling))
        shared = those & wanted
        is_told = shared == wanted or bool(shared - _SAID_OF_MANY)
        if shared and len(shared) >= least and is_told:
            ranked.append((-len(shared), len(those - wanted), name))
    ranked.sort(key=lambda each: each[:2])
    if ranked and least == len(words) and not ranked[0][1]:
        return [name for _, others, name in ranked if not others]
    return [name for _, _, name in ranked]


def _by_letters(folded: str, by_folded: Mapping[str, str]) -> list[str]:
    import difflib  # needed only where a name is wrong

    def likeness(other: str) -> float:
        return difflib.SequenceMatcher(None, folded, other).ratio()

    close = difflib.get_close_matches(folded, by_folded, NAMES_MAX, cutoff=_LIKENESS_MIN)
    if not close and len(folded) >= BEGINNING_MIN:  # the beginning of a long name, as retry_timez
        begin = {each: likeness(each[: len(folded)]) for each in by_folded}
        close = [
            each
            for each in sorted(begin, key=lambda each: -begin[each])
            if len(each) > len(folded) and begin[each] >= _LIKENESS_MIN
        ]
    return [by_folded[each] for each in close]


def _words(name: str) -> tuple[str, ...]:
    """Return the words of a name in snake or camel case: in the singular, without units."""
    return tuple(dict.fromkeys(_each_word(name)))


def _each_word(name: str) -> Iterator[str]:
    for found in _WORD.findall(name):
        word = found.lower()
        if word.endswith("ies"):
            word = word[:-3] + "y"
        elif len(word) > 3 and word.endswith("s") and not word.endswith("ss"):
            word = word[:-1]
        if word not in _UNITS:
            yield _SAME.get(word, word)


def _folded(name: str) -> str:
    return name.replace("_", "").lower()
