"""The figures a broker reports about itself (code 28), as numbers.

Pure: a figure that is missing or not a number is None, never zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ThreadPool:
    """Requests waiting for a thread pool of a broker.

    Attributes:
        waiting: how many requests wait.
        head_wait_ms: how long the first of them has waited; None when not reported.
    """

    waiting: int
    head_wait_ms: int | None


@dataclass(frozen=True, slots=True)
class BrokerFigures:
    """A broker's own figures; None where it does not report one.

    Attributes:
        version: its version as it names it (``V4_9_7``).
        booted_ms: when it started, ms since 1970.
        put_tps: messages a second stored, over the last 10 s.
        get_tps: messages a second fetched, over the last 10 s.
        put_total: messages stored since it started.
        get_total: messages fetched since it started.
        disk_used: share of the fullest disk its commit log is on, 0 to 1.
        log_bytes: bytes kept in the commit log.
        earliest_ms: store time of the oldest message kept.
        active: whether it accepts messages; reported by 5.x brokers, else None.
        pools: the waiting requests, by pool (``send``, ``pull``, ``query`` …).
        page_cache_lock_ms: how long the store has been locked for the append under way.
    """

    version: str | None = None
    booted_ms: int | None = None
    put_tps: float | None = None
    get_tps: float | None = None
    put_total: int | None = None
    get_total: int | None = None
    disk_used: float | None = None
    log_bytes: int | None = None
    earliest_ms: int | None = None
    active: bool | None = None
    pools: Mapping[str, ThreadPool] = field(default_factory=dict)
    page_cache_lock_ms: int | None = None


def figures(facts: Mapping[str, str]) -> BrokerFigures:
    """Return the figures in a broker's answer, of any version from 4.0 on."""
    low, high = _integer(facts, "commitLogMinOffset"), _integer(facts, "commitLogMaxOffset")
    earliest_ms = _integer(facts, "earliestMessageTimeStamp")
    active = facts.get("brokerActive")
    return BrokerFigures(
        version=facts.get("brokerVersionDesc") or None,
        booted_ms=_integer(facts, "bootTimestamp"),
        put_tps=_latest(facts, "putTps"),
        get_tps=_latest(facts, "getTransferredTps", "getTransferedTps"),
        put_total=_integer(facts, "msgPutTotalTodayNow"),
        get_total=_integer(facts, "msgGetTotalTodayNow"),
        disk_used=_fullest(facts),
        log_bytes=high - low if low is not None and high is not None and high >= low else None,
        earliest_ms=earliest_ms if earliest_ms is not None and earliest_ms > 0 else None,
        active=active == "true" if active in ("true", "false") else None,
        pools=_pools(facts),
        page_cache_lock_ms=_integer(facts, "pageCacheLockTimeMills"),
    )


def _integer(facts: Mapping[str, str], name: str) -> int | None:
    try:
        return int(facts[name])
    except (KeyError, ValueError):
        return None


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _latest(facts: Mapping[str, str], *names: str) -> float | None:
    """Return the first of the rates over 10 s, 1 min and 10 min, which come as one text."""
    for name in names:
        words = facts.get(name, "").split()
        if words:
            return _number(words[0])
    return None


def _fullest(facts: Mapping[str, str]) -> float | None:
    """Return the fullest disk; there is a figure for each path (``commitLogDiskRatio_/data1``)."""
    told = [
        ratio
        for name, text in facts.items()
        if name == "commitLogDiskRatio" or name.startswith("commitLogDiskRatio_")
        if (ratio := _number(text)) is not None
    ]
    return max(told, default=None)


def _pools(facts: Mapping[str, str]) -> dict[str, ThreadPool]:
    ending = "ThreadPoolQueueSize"
    found = {}
    for name in facts:
        waiting = _integer(facts, name) if name.endswith(ending) else None
        if waiting is not None:
            pool = name.removesuffix(ending)
            head = _integer(facts, f"{pool}ThreadPoolQueueHeadWaitTimeMills")
            found[pool] = ThreadPool(waiting, head)
    return found
