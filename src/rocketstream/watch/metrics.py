"""The findings of a sweep as metrics: rocketmq-exporter's names, a 5.x broker's, and ours.

Law: an unknown figure is absent, and is counted in a metric of its own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from rocketstream.admin.state import (
    BrokerState,
    ClusterState,
    GroupState,
    GroupVerdict,
    QueueKind,
    QueueState,
    TopicState,
    sum_of,
    total,
)
from rocketstream.protocol.codes import version_text
from rocketstream.protocol.names import DLQ_PREFIX, is_system_group
from rocketstream.watch.collector import Collector, Cost
from rocketstream.watch.core.exposition import CONTENT_TYPE, Exposition
from rocketstream.watch.core.families import FACTS, families
from rocketstream.watch.model import Outage

__all__ = ["CONTENT_TYPE", "render", "scrape"]

_MODELS: Final = {"BROADCASTING": "0", "CLUSTERING": "1"}
_MODES: Final = {"CONSUME_ACTIVELY": "pull", "CONSUME_PASSIVELY": "push", "CONSUME_POP": "pop"}


def scrape(collector: Collector, *, queues: bool = True) -> str:
    """Return the metrics of a collector's last findings; no broker is asked.

    Args:
        queues: report lag per queue; False sums it per topic and broker, as a 5.x broker does.
    """
    update = collector.update()
    return render(
        update.state,
        update.verdicts,
        before=update.before,
        outage=update.outage,
        cost=collector.cost(),
        queues=queues,
    )


def render(
    state: ClusterState | None,
    verdicts: Mapping[str, GroupVerdict],
    *,
    before: ClusterState | None = None,
    outage: Outage | None = None,
    cost: Cost | None = None,
    queues: bool = True,
) -> str:
    """Return metrics in Prometheus' text format.

    Args:
        state: the state the last answered sweep found; None before the first.
        verdicts: the verdicts of the groups.
        before: the state the previous sweep found; without it rates are absent.
        outage: while it lasts only the outage itself and the cost are reported, because older
            figures would look like present ones.
        cost: the cost of the collection.
        queues: report lag per queue instead of per topic and broker.
    """
    out = Exposition(families(queues=queues))
    _add_collection(out, state, outage, cost)
    if state is None or outage is not None:
        return out.text()
    clusters = {broker.broker_name: broker.cluster for broker in state.brokers}
    for broker in state.brokers:
        _add_broker(out, broker)
    out.add("rocketmq_topic_number", len(state.topics))
    out.add("rocketmq_consumer_group_number", len(state.groups))
    seconds = 0.0 if before is None else (state.taken_ms - before.taken_ms) / 1000
    for topic in state.topics.values():
        was = None if before is None else before.topics.get(topic.topic)
        _add_topic(out, topic, was, seconds, clusters)
    for group in state.groups.values():
        former = None if before is None else before.groups.get(group.group)
        _add_group(out, group, verdicts.get(group.group))
        _add_group_at_brokers(out, group, former, seconds, clusters)
        _add_lag(out, group, clusters, queues)
        _add_members(out, group, clusters)
    return out.text()


def _add_collection(
    out: Exposition, state: ClusterState | None, outage: Outage | None, cost: Cost | None
) -> None:
    if state is not None or outage is not None:
        out.add("rocketstream_up", 1 if outage is None else 0)
    if outage is not None:
        out.add("rocketstream_outage_since_seconds", outage.since_ms / 1000)
    if state is not None:
        out.add("rocketstream_sweep_timestamp_seconds", state.taken_ms / 1000)
    if cost is None:
        return
    out.add("rocketstream_sweep_duration_seconds", _seconds(cost.sweep_ms))
    out.add("rocketstream_sweep_interval_seconds", cost.interval_s)
    out.add("rocketstream_sweep_requests", cost.requests)
    out.add("rocketstream_requests_per_second", cost.requests_per_s)
    out.add("rocketstream_sweeps_total", cost.sweeps)
    out.add("rocketstream_sweeps_failed_total", cost.failed_sweeps)


def _add_broker(out: Exposition, broker: BrokerState) -> None:
    out.add(
        "rocketstream_broker_up",
        1 if broker.error is None else 0,
        broker.cluster,
        broker.broker_name,
    )
    if not broker.facts:
        return
    address = broker.addresses.get(0, "")
    facts = broker.facts
    who = (broker.cluster, address, broker.broker_name)
    out.add("rocketmq_broker_tps", _figure(facts, "putTps[1]"), *who)
    out.add("rocketmq_broker_qps", _figure(facts, "getTransferredTps[1]"), *who)
    labels = (
        broker.cluster,
        address,
        broker.broker_name,
        facts.get("brokerVersionDesc", ""),
        facts.get("bootTimestamp", ""),
        facts.get("brokerVersion", ""),
    )
    for name, fact in FACTS.items():
        out.add(f"rocketmq_brokeruntime_{name}", _figure(facts, fact), *labels)


def _figure(facts: Mapping[str, str], name: str) -> float | None:
    """Return a figure a broker reported, or None; ``name[1]`` is the second of a list."""
    fact, _, place = name.partition("[")
    words = facts.get(fact, "").split()
    index = int(place.rstrip("]")) if place else 0
    if index >= len(words):
        return None
    word = words[index]
    try:
        return int(word) if word.lstrip("-").isdecimal() else float(word)
    except ValueError:
        return None


def _add_topic(
    out: Exposition,
    topic: TopicState,
    before: TopicState | None,
    seconds: float,
    clusters: Mapping[str, str],
) -> None:
    if topic.errors:
        return  # the sum over only some of its queues would look as if messages had gone away
    ends = _ends(topic)
    was = {} if before is None or before.errors else _ends(before)
    for broker, end in ends.items():
        where = (clusters.get(broker, ""), broker)
        if topic.kind == "dead letter":
            out.add("rocketmq_topic_dlq_offset", end, *where, topic.topic.removeprefix(DLQ_PREFIX))
        elif topic.kind == "retry":
            out.add("rocketmq_topic_retry_offset", end, *where, topic.topic)
        else:
            out.add("rocketmq_producer_offset", end, *where, topic.topic)
            rate = _rate(was.get(broker), end, seconds)
            out.add("rocketmq_producer_tps", rate, *where, topic.topic)


def _ends(topic: TopicState) -> Counter[str]:
    ends: Counter[str] = Counter()
    for broker, _, _, high, _ in topic.queues:
        ends[broker] += high
    return ends


def _rate(before: int | None, after: int | None, seconds: float) -> float | None:
    if before is None or after is None or after < before or seconds <= 0:
        return None
    return (after - before) / seconds


def _add_group(out: Exposition, state: GroupState, verdict: GroupVerdict | None) -> None:
    group = state.group
    out.add("rocketstream_group_lag_messages", state.lag, group)
    out.add("rocketstream_group_lag_seconds", _seconds(state.time_lag_ms), group)
    out.add("rocketstream_group_retrying_messages", state.retrying, group)
    out.add("rocketstream_group_dead_letters", state.dead_letters, group)
    letters = [queue.max_offset for queue in state.of_kind(QueueKind.DEAD_LETTER)]
    out.add("rocketstream_group_dead_letters_total", total(letters), group)
    out.add("rocketstream_group_expired_messages", state.expired, group)
    out.add("rocketstream_group_unknown_queues", state.queues_unknown, group)
    out.add("rocketstream_group_errors", len(state.errors), group)
    members = None if state.members is None else len(state.members)
    out.add("rocketstream_group_members", members, group)
    if verdict is not None:
        out.add("rocketstream_group_verdict", 1, group, verdict.verdict.value)
        since = _seconds(verdict.since_ms)
        out.add("rocketstream_group_verdict_since_seconds", since, group)
        out.add("rocketstream_group_eta_seconds", _seconds(verdict.eta_ms), group)
        out.add("rocketstream_group_consume_rate", verdict.consume_rate, group)
        out.add("rocketstream_group_arrival_rate", verdict.arrival_rate, group)
    _add_diffs(out, state)


def _add_diffs(out: Exposition, state: GroupState) -> None:
    """Add the figures rocketmq-exporter reports for a group: the sum over all brokers."""
    members = state.members
    if members is not None:
        addresses = ",".join(member.address for member in members)
        ids = ",".join(member.client_id for member in members)
        out.add("rocketmq_group_count", len(members), addresses, ids, state.group)
    if state.message_model == "BROADCASTING":
        return  # each member has its own progress, and the exporter reports none
    count = "" if members is None else str(len(members))
    model = _MODELS[state.message_model or "CLUSTERING"]
    for (topic, kind), queues in _by_topic(state.queues).items():
        labels = (state.group, topic, count, model)
        if kind is QueueKind.DEAD_LETTER:
            kept = [
                None if q.max_offset is None else q.max_offset - (q.min_offset or 0) for q in queues
            ]
            out.add("rocketmq_group_dlqdiff", total(kept), *labels)
            continue
        retry = kind is QueueKind.RETRY
        name = "rocketmq_group_retrydiff" if retry else "rocketmq_group_diff"
        out.add(name, sum_of(queues, [queue.lag for queue in queues]), *labels)


def _by_topic(
    queues: Iterable[QueueState],
) -> dict[tuple[str, QueueKind], list[QueueState]]:
    found: defaultdict[tuple[str, QueueKind], list[QueueState]] = defaultdict(list)
    for queue in queues:
        found[queue.topic, queue.kind].append(queue)
    return found


def _add_group_at_brokers(
    out: Exposition,
    state: GroupState,
    before: GroupState | None,
    seconds: float,
    clusters: Mapping[str, str],
) -> None:
    was = {} if before is None else _by_place(before.queues)
    for place, queues in _by_place(state.queues).items():
        broker, topic, kind = place
        if kind is QueueKind.DEAD_LETTER:
            continue
        labels = (clusters.get(broker, ""), broker, topic, state.group)
        # A queue in which nobody ever committed adds nothing; an unknown one makes the sum unknown.
        committed = _committed(queues)
        out.add("rocketmq_consumer_offset", committed, *labels)
        former = _committed(was.get(place, []))
        out.add("rocketmq_consumer_tps", _rate(former, committed, seconds), *labels)
        if state.message_model == "BROADCASTING":
            continue
        out.add("rocketmq_group_get_latency_by_storetime", _worst(queues, state.taken_ms), *labels)


_Place = tuple[str, str, QueueKind]


def _by_place(queues: Iterable[QueueState]) -> dict[_Place, list[QueueState]]:
    found: defaultdict[_Place, list[QueueState]] = defaultdict(list)
    for queue in queues:
        found[queue.broker_name, queue.topic, queue.kind].append(queue)
    return found


def _committed(queues: Iterable[QueueState]) -> int | None:
    if any(queue.error is not None and queue.committed_offset is None for queue in queues):
        return None
    known = [queue.committed_offset for queue in queues if queue.committed_offset is not None]
    return sum(known) if known else None


def _worst(queues: Iterable[QueueState], now_ms: int) -> int | None:
    """Return the greatest time lag; None where that of a queue is unknown and may be greater."""
    lags = [queue.time_lag_ms(now_ms) for queue in queues]
    known = [lag for lag in lags if lag is not None]
    return max(known) if known and len(known) == len(lags) else None


def _add_lag(
    out: Exposition, state: GroupState, clusters: Mapping[str, str], by_queue: bool
) -> None:
    """Add the figures a 5.x broker reports for a group, by queue where wanted."""
    system = _bool(is_system_group(state.group))
    for (broker, topic, kind), queues in _by_place(state.queues).items():
        if kind is QueueKind.DEAD_LETTER:
            continue
        labels = (
            clusters.get(broker, ""),
            "broker",
            broker,
            state.group,
            topic,
            _bool(kind is QueueKind.RETRY),
            system,
        )
        if not by_queue:
            out.add("rocketmq_consumer_lag_messages", total([q.lag for q in queues]), *labels)
            out.add("rocketmq_consumer_lag_latency", _worst(queues, state.taken_ms), *labels)
            continue
        for queue in queues:
            of_queue = (*labels, str(queue.queue_id))
            out.add("rocketmq_consumer_lag_messages", queue.lag, *of_queue)
            waited = queue.time_lag_ms(state.taken_ms)
            out.add("rocketmq_consumer_lag_latency", waited, *of_queue)


def _add_members(out: Exposition, state: GroupState, clusters: Mapping[str, str]) -> None:
    if state.members is None:
        return
    mode = _MODES.get(state.consume_type or "", (state.consume_type or "").lower())
    cluster = ",".join(sorted(set(clusters.values())))
    kinds = Counter(
        (member.language.lower(), version_text(member.version).lower()) for member in state.members
    )
    system = _bool(is_system_group(state.group))
    for (language, version), count in kinds.items():
        out.add(
            "rocketmq_consumer_connections",
            count,
            cluster,
            state.group,
            language,
            version,
            mode,
            system,
        )


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
