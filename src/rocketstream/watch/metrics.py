"""The findings of a sweep as metrics: rocketmq-exporter's names, a 5.x broker's, and ours.

Law: an unknown figure is absent, and is counted in a metric of its own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector as MetricCollector

from rocketstream.admin.state import (
    BrokerState,
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
from rocketstream.watch.model import Update

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
_MODELS: Final = {"BROADCASTING": "0", "CLUSTERING": "1"}
_MODES: Final = {"CONSUME_ACTIVELY": "pull", "CONSUME_PASSIVELY": "push", "CONSUME_POP": "pop"}


class Family(NamedTuple):
    """The declaration of a metric.

    Attributes:
        kind: ``gauge`` or ``counter``.
        text: its help text.
        labels: the names of its labels, in the order their values are passed.
    """

    kind: str
    text: str
    labels: tuple[str, ...] = ()


Gauge: Final = partial(Family, "gauge")


# --- every metric -------------------------------------------------------------------------------

_DIFF: Final = ("group", "topic", "countOfOnlineConsumers", "msgModel")
_TOPIC: Final = ("cluster", "broker", "topic")
_GROUP_AT: Final = ("cluster", "broker", "topic", "group")
_BROKER: Final = ("cluster", "brokerIP", "broker")
_RUNTIME: Final = ("cluster", "brokerIP", "brokerHost", "des", "boottime", "broker_version")
_NODE: Final = ("cluster", "node_type", "node_id")
_LAG: Final = (*_NODE, "consumer_group", "topic", "is_retry", "is_system")
QUEUE_LABEL: Final = "queue_id"

# Of rocketmq-exporter.
EXPORTER: Final[dict[str, Family]] = {
    "rocketmq_group_diff": Gauge(
        "Messages of a topic the group has not consumed; unknown queues left out.", _DIFF
    ),
    "rocketmq_group_retrydiff": Gauge(
        "Messages of the group's retry topic that are due and not consumed.", _DIFF
    ),
    "rocketmq_group_dlqdiff": Gauge("Messages in the group's dead-letter topic.", _DIFF),
    "rocketmq_group_count": Gauge(
        "Connected members of the group.", ("caddr", "localaddr", "group")
    ),
    "rocketmq_producer_offset": Gauge("Sum of the ends of a topic's queues at a broker.", _TOPIC),
    "rocketmq_topic_retry_offset": Gauge(
        "Sum of the ends of a retry topic's queues at a broker.", _TOPIC
    ),
    "rocketmq_topic_dlq_offset": Gauge(
        "Sum of the ends of a group's dead-letter queues at a broker.",
        ("cluster", "broker", "group"),
    ),
    "rocketmq_producer_tps": Gauge(
        "Messages a second that arrived in a topic between two sweeps.", _TOPIC
    ),
    "rocketmq_consumer_offset": Gauge(
        "Sum of the offsets a group has committed in a topic at a broker.", _GROUP_AT
    ),
    "rocketmq_consumer_tps": Gauge(
        "Messages a second a group committed between two sweeps.", _GROUP_AT
    ),
    "rocketmq_group_get_latency_by_storetime": Gauge(
        "Milliseconds the oldest waiting message of a topic has been stored.", _GROUP_AT
    ),
    "rocketmq_broker_tps": Gauge("Messages a second stored, over a minute.", _BROKER),
    "rocketmq_broker_qps": Gauge("Messages a second handed out, over a minute.", _BROKER),
}
# Of rocketmq-exporter too: figures a broker reports about itself, under the broker's own names. A
# number in brackets is the position in the broker's list of averages over 10, 60 and 600 s.
FACTS: Final[dict[str, str]] = {
    "msg_put_total_today_now": "msgPutTotalTodayNow",
    "msg_gettotal_today_now": "msgGetTotalTodayNow",
    "msg_puttotal_todaymorning": "msgPutTotalTodayMorning",
    "msg_gettotal_todaymorning": "msgGetTotalTodayMorning",
    "msg_puttotal_yesterdaymorning": "msgPutTotalYesterdayMorning",
    "msg_gettotal_yesterdaymorning": "msgGetTotalYesterdayMorning",
    "dispatch_behind_bytes": "dispatchBehindBytes",
    "dispatch_maxbuffer": "dispatchMaxBuffer",
    "put_message_size_total": "putMessageSizeTotal",
    "put_message_average_size": "putMessageAverageSize",
    "putmessage_times_total": "putMessageTimesTotal",
    "putmessage_entire_time_max": "putMessageEntireTimeMax",
    "getmessage_entire_time_max": "getMessageEntireTimeMax",
    "earliest_message_timestamp": "earliestMessageTimeStamp",
    "start_accept_sendrequest_time": "startAcceptSendRequestTimeStamp",
    "remain_transientstore_buffer_numbs": "remainTransientStoreBufferNumbs",
    "remain_howmanydata_toflush": "remainHowManyDataToFlush",
    "pagecache_lock_time_mills": "pageCacheLockTimeMills",
    "commitlog_disk_ratio": "commitLogDiskRatio",
    "consumequeue_disk_ratio": "consumeQueueDiskRatio",
    "commitlog_maxoffset": "commitLogMaxOffset",
    "commitlog_minoffset": "commitLogMinOffset",
    "send_threadpool_queue_size": "sendThreadPoolQueueSize",
    "send_threadpoolqueue_capacity": "sendThreadPoolQueueCapacity",
    "send_threadpoolqueue_headwait_timemills": "sendThreadPoolQueueHeadWaitTimeMills",
    "pull_threadpoolqueue_size": "pullThreadPoolQueueSize",
    "pull_threadpoolqueue_capacity": "pullThreadPoolQueueCapacity",
    "pull_threadpoolqueue_headwait_timemills": "pullThreadPoolQueueHeadWaitTimeMills",
    "query_threadpoolqueue_size": "queryThreadPoolQueueSize",
    "query_threadpool_queue_capacity": "queryThreadPoolQueueCapacity",
    "query_threadpoolqueue_headwait_timemills": "queryThreadPoolQueueHeadWaitTimeMills",
    **{
        f"{metric}_tps{seconds}": f"{fact}[{place}]"
        for metric, fact in (
            ("put", "putTps"),
            ("getfound", "getFoundTps"),
            ("getmiss", "getMissTps"),
            ("gettotal", "getTotalTps"),
            ("gettransfered", "getTransferredTps"),
        )
        for place, seconds in enumerate((10, 60, 600))
    },
}
RUNTIME: Final[dict[str, Family]] = {
    f"rocketmq_brokeruntime_{name}": Gauge(f"What the broker tells as {fact}.", _RUNTIME)
    for name, fact in FACTS.items()
}


def _lag(queues: bool) -> tuple[str, ...]:
    return (*_LAG, QUEUE_LABEL) if queues else _LAG


def _of_5x(queues: bool) -> dict[str, Family]:
    """Return the metrics of a 5.x broker; ``queues`` adds the queue to each metric that has one."""
    return {
        "rocketmq_consumer_lag_messages": Gauge("Messages a group has not consumed.", _lag(queues)),
        "rocketmq_consumer_lag_latency": Gauge(
            "Milliseconds the oldest waiting message has been stored.", _lag(queues)
        ),
        "rocketmq_consumer_connections": Gauge(
            "Connected members of a group.",
            ("cluster", "consumer_group", "language", "version", "consume_mode", "is_system"),
        ),
        "rocketmq_topic_number": Gauge("Topics.", ()),
        "rocketmq_consumer_group_number": Gauge("Consumer groups.", ()),
    }


OURS: Final[dict[str, Family]] = {
    "rocketstream_up": Gauge("1 when the last sweep over the cluster was answered, else 0."),
    "rocketstream_outage_since_seconds": Gauge(
        "Since when nothing answers, seconds since 1970; absent when the cluster answers."
    ),
    "rocketstream_sweep_timestamp_seconds": Gauge(
        "When the sweep these figures are of began, seconds since 1970."
    ),
    "rocketstream_sweep_duration_seconds": Gauge("How long the last sweep took."),
    "rocketstream_sweep_interval_seconds": Gauge(
        "From the beginning of one sweep to the next, as it is now."
    ),
    "rocketstream_sweep_requests": Gauge("Requests of the last sweep."),
    "rocketstream_requests_per_second": Gauge("Requests the collection makes a second."),
    "rocketstream_sweeps_total": Family("counter", "Sweeps since the start."),
    "rocketstream_sweeps_failed_total": Family("counter", "Sweeps nothing answered."),
    "rocketstream_broker_up": Gauge(
        "1 when the broker answered the last sweep, else 0.", ("cluster", "broker")
    ),
    "rocketstream_group_verdict": Gauge(
        "1 for the verdict a group has; the other verdicts are absent.", ("group", "verdict")
    ),
    "rocketstream_group_verdict_since_seconds": Gauge(
        "Since when the group has its verdict, seconds since 1970.", ("group",)
    ),
    "rocketstream_group_lag_messages": Gauge(
        "Messages that wait in all topics and the retry topic of a group.", ("group",)
    ),
    "rocketstream_group_lag_seconds": Gauge("How long the oldest of them has waited.", ("group",)),
    "rocketstream_group_eta_seconds": Gauge(
        "How long until a group that catches up has done so.", ("group",)
    ),
    "rocketstream_group_consume_rate": Gauge("Messages a second consumed.", ("group",)),
    "rocketstream_group_arrival_rate": Gauge("Messages a second that arrive.", ("group",)),
    "rocketstream_group_members": Gauge("Connected members.", ("group",)),
    "rocketstream_group_retrying_messages": Gauge(
        "Failed messages that are due for another try.", ("group",)
    ),
    "rocketstream_group_dead_letters": Gauge("Messages given up and kept.", ("group",)),
    "rocketstream_group_dead_letters_total": Family(
        "counter", "Messages given up, kept or not; grows only.", ("group",)
    ),
    "rocketstream_group_expired_messages": Gauge(
        "Messages retention deleted before the group consumed them.", ("group",)
    ),
    "rocketstream_group_unknown_queues": Gauge(
        "Queues whose lag is not known; the group's lag leaves them out.", ("group",)
    ),
    "rocketstream_group_errors": Gauge("Questions about the group nobody answered.", ("group",)),
}


def families(*, queues: bool) -> dict[str, Family]:
    """Return every metric by name, in the order they are rendered."""
    return {**OURS, **_of_5x(queues), **EXPORTER, **RUNTIME}


# --- their figures ------------------------------------------------------------------------------


def scrape(collector: Collector, *, queues: bool = True) -> str:
    """Return the metrics of a collector's last findings; no broker is asked.

    Args:
        queues: report lag per queue; False sums it per topic and broker, as a 5.x broker does.
    """
    return render(collector.update(), collector.cost(), queues=queues)


def render(update: Update, cost: Cost | None = None, *, queues: bool = True) -> str:
    """Return metrics in Prometheus' text format; see ``ClusterMetrics``."""
    return generate_latest(ClusterMetrics(update, cost, queues=queues)).decode()


class ClusterMetrics(MetricCollector):
    """The metrics of what is known of a cluster, for ``prometheus_client``.

    Args:
        update: while its outage lasts only the outage and the cost are reported, because older
            figures would look like present ones; without ``before`` rates are absent.
        cost: the cost of the collection.
        queues: report lag per queue instead of per topic and broker.
    """

    def __init__(self, update: Update, cost: Cost | None = None, *, queues: bool = True) -> None:
        self._update = update
        self._cost = cost
        self._queues = queues

    def collect(self) -> Iterator[Metric]:
        """Yield all families that have samples, in the order of the table of families."""
        out = _Samples(families(queues=self._queues))
        _add_collection(out, self._update, self._cost)
        if self._update.state is not None and self._update.outage is None:
            _add_cluster(out, self._update, queues=self._queues)
        yield from out.metrics()


class _Samples:
    """Samples by family; the last one of the same labels counts."""

    def __init__(self, families: Mapping[str, Family]) -> None:
        self._families = families
        self._samples: dict[str, dict[tuple[str, ...], int | float]] = {}

    def add(self, name: str, value: int | float | None, *labels: str) -> None:
        """Add a sample; None adds nothing."""
        if value is not None:
            # A scraper that meets bytes that are not UTF-8 discards the whole answer.
            whole = tuple(label.encode("utf-8", "replace").decode() for label in labels)
            self._samples.setdefault(name, {})[whole] = value

    def metrics(self) -> Iterator[Metric]:
        for name, family in self._families.items():
            if name in self._samples:
                base = name.removesuffix("_total") if family.kind == "counter" else name
                metric = Metric(base, family.text, family.kind)
                for labels, value in self._samples[name].items():
                    metric.add_sample(name, dict(zip(family.labels, labels, strict=True)), value)
                yield metric


def _add_collection(out: _Samples, update: Update, cost: Cost | None) -> None:
    state, outage = update.state, update.outage
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


def _add_cluster(out: _Samples, update: Update, *, queues: bool) -> None:
    state, before = update.state, update.before
    assert state is not None
    clusters = {broker.broker_name: broker.cluster for broker in state.brokers}
    for broker in state.brokers:
        _add_broker(out, broker)
    out.add("rocketmq_topic_number", len(state.topics))
    out.add("rocketmq_consumer_group_number", len(state.groups))
    for topic in state.topics.values():
        _add_topic(out, topic, None if before is None else before.topics.get(topic.topic), clusters)
    for group in state.groups.values():
        former = None if before is None else before.groups.get(group.group)
        _add_group(out, group, update.verdicts.get(group.group))
        _add_group_at_brokers(out, group, former, clusters)
        _add_lag(out, group, clusters, queues)
        _add_members(out, group, clusters)


def _add_broker(out: _Samples, broker: BrokerState) -> None:
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
    out: _Samples,
    topic: TopicState,
    before: TopicState | None,
    clusters: Mapping[str, str],
) -> None:
    if topic.errors:
        return  # the sum over only some of its queues would look as if messages had gone away
    ends = _ends(topic)
    was = {} if before is None or before.errors else _ends(before)
    seconds = _seconds_between(before, topic)
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
    for queue in topic.queues:
        ends[queue.broker_name] += queue.max_offset
    return ends


def _seconds_between(
    before: TopicState | GroupState | None, after: TopicState | GroupState
) -> float:
    return 0.0 if before is None else (after.taken_ms - before.taken_ms) / 1000


def _rate(before: int | None, after: int | None, seconds: float) -> float | None:
    if before is None or after is None or after < before or seconds <= 0:
        return None
    return (after - before) / seconds


def _add_group(out: _Samples, state: GroupState, verdict: GroupVerdict | None) -> None:
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
    out.add("rocketstream_group_members", state.member_count, group)
    if verdict is not None:
        out.add("rocketstream_group_verdict", 1, group, verdict.verdict.value)
        since = _seconds(verdict.since_ms)
        out.add("rocketstream_group_verdict_since_seconds", since, group)
        out.add("rocketstream_group_eta_seconds", _seconds(verdict.eta_ms), group)
        out.add("rocketstream_group_consume_rate", verdict.consume_rate, group)
        out.add("rocketstream_group_arrival_rate", verdict.arrival_rate, group)
    _add_diffs(out, state)


def _add_diffs(out: _Samples, state: GroupState) -> None:
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
    out: _Samples,
    state: GroupState,
    before: GroupState | None,
    clusters: Mapping[str, str],
) -> None:
    was = {} if before is None else _by_place(before.queues)
    seconds = _seconds_between(before, state)
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


def _add_lag(out: _Samples, state: GroupState, clusters: Mapping[str, str], by_queue: bool) -> None:
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


def _add_members(out: _Samples, state: GroupState, clusters: Mapping[str, str]) -> None:
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
