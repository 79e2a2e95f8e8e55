"""Every metric: name, kind, help and labels.

Pure: a table. Names that begin with ``rocketmq_`` are taken from rocketmq-exporter or a 5.x broker,
with their meaning there; names that begin with ``rocketstream_`` are ours.
"""

from __future__ import annotations

from typing import Final

from rocketstream.watch.core.exposition import Family

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
    "rocketmq_group_diff": Family(
        "gauge", "Messages of a topic the group has not consumed; unknown queues left out.", _DIFF
    ),
    "rocketmq_group_retrydiff": Family(
        "gauge", "Messages of the group's retry topic that are due and not consumed.", _DIFF
    ),
    "rocketmq_group_dlqdiff": Family("gauge", "Messages in the group's dead-letter topic.", _DIFF),
    "rocketmq_group_count": Family(
        "gauge", "Connected members of the group.", ("caddr", "localaddr", "group")
    ),
    "rocketmq_producer_offset": Family(
        "gauge", "Sum of the ends of a topic's queues at a broker.", _TOPIC
    ),
    "rocketmq_topic_retry_offset": Family(
        "gauge", "Sum of the ends of a retry topic's queues at a broker.", _TOPIC
    ),
    "rocketmq_topic_dlq_offset": Family(
        "gauge",
        "Sum of the ends of a group's dead-letter queues at a broker.",
        ("cluster", "broker", "group"),
    ),
    "rocketmq_producer_tps": Family(
        "gauge", "Messages a second that arrived in a topic between two sweeps.", _TOPIC
    ),
    "rocketmq_consumer_offset": Family(
        "gauge", "Sum of the offsets a group has committed in a topic at a broker.", _GROUP_AT
    ),
    "rocketmq_consumer_tps": Family(
        "gauge", "Messages a second a group committed between two sweeps.", _GROUP_AT
    ),
    "rocketmq_group_get_latency_by_storetime": Family(
        "gauge", "Milliseconds the oldest waiting message of a topic has been stored.", _GROUP_AT
    ),
    "rocketmq_broker_tps": Family("gauge", "Messages a second stored, over a minute.", _BROKER),
    "rocketmq_broker_qps": Family("gauge", "Messages a second handed out, over a minute.", _BROKER),
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
    f"rocketmq_brokeruntime_{name}": Family("gauge", f"What the broker tells as {fact}.", _RUNTIME)
    for name, fact in FACTS.items()
}


def _lag(queues: bool) -> tuple[str, ...]:
    return (*_LAG, QUEUE_LABEL) if queues else _LAG


def _of_5x(queues: bool) -> dict[str, Family]:
    """Return the metrics of a 5.x broker; ``queues`` adds the queue to each metric that has one."""
    return {
        "rocketmq_consumer_lag_messages": Family(
            "gauge", "Messages a group has not consumed.", _lag(queues)
        ),
        "rocketmq_consumer_lag_latency": Family(
            "gauge", "Milliseconds the oldest waiting message has been stored.", _lag(queues)
        ),
        "rocketmq_consumer_connections": Family(
            "gauge",
            "Connected members of a group.",
            ("cluster", "consumer_group", "language", "version", "consume_mode", "is_system"),
        ),
        "rocketmq_topic_number": Family("gauge", "Topics.", ()),
        "rocketmq_consumer_group_number": Family("gauge", "Consumer groups.", ()),
    }


OURS: Final[dict[str, Family]] = {
    "rocketstream_up": Family(
        "gauge", "1 when the last sweep over the cluster was answered, else 0."
    ),
    "rocketstream_outage_since_seconds": Family(
        "gauge", "Since when nothing answers, seconds since 1970; absent when the cluster answers."
    ),
    "rocketstream_sweep_timestamp_seconds": Family(
        "gauge", "When the sweep these figures are of began, seconds since 1970."
    ),
    "rocketstream_sweep_duration_seconds": Family("gauge", "How long the last sweep took."),
    "rocketstream_sweep_interval_seconds": Family(
        "gauge", "From the beginning of one sweep to the next, as it is now."
    ),
    "rocketstream_sweep_requests": Family("gauge", "Requests of the last sweep."),
    "rocketstream_requests_per_second": Family("gauge", "Requests the collection makes a second."),
    "rocketstream_sweeps_total": Family("counter", "Sweeps since the start."),
    "rocketstream_sweeps_failed_total": Family("counter", "Sweeps nothing answered."),
    "rocketstream_broker_up": Family(
        "gauge", "1 when the broker answered the last sweep, else 0.", ("cluster", "broker")
    ),
    "rocketstream_group_verdict": Family(
        "gauge",
        "1 for the verdict a group has; the other verdicts are absent.",
        ("group", "verdict"),
    ),
    "rocketstream_group_verdict_since_seconds": Family(
        "gauge", "Since when the group has its verdict, seconds since 1970.", ("group",)
    ),
    "rocketstream_group_lag_messages": Family(
        "gauge", "Messages that wait in all topics and the retry topic of a group.", ("group",)
    ),
    "rocketstream_group_lag_seconds": Family(
        "gauge", "How long the oldest of them has waited.", ("group",)
    ),
    "rocketstream_group_eta_seconds": Family(
        "gauge", "How long until a group that catches up has done so.", ("group",)
    ),
    "rocketstream_group_consume_rate": Family("gauge", "Messages a second consumed.", ("group",)),
    "rocketstream_group_arrival_rate": Family(
        "gauge", "Messages a second that arrive.", ("group",)
    ),
    "rocketstream_group_members": Family("gauge", "Connected members.", ("group",)),
    "rocketstream_group_retrying_messages": Family(
        "gauge", "Failed messages that are due for another try.", ("group",)
    ),
    "rocketstream_group_dead_letters": Family("gauge", "Messages given up and kept.", ("group",)),
    "rocketstream_group_dead_letters_total": Family(
        "counter", "Messages given up, kept or not; grows only.", ("group",)
    ),
    "rocketstream_group_expired_messages": Family(
        "gauge", "Messages retention deleted before the group consumed them.", ("group",)
    ),
    "rocketstream_group_unknown_queues": Family(
        "gauge", "Queues whose lag is not known; the group's lag leaves them out.", ("group",)
    ),
    "rocketstream_group_errors": Family(
        "gauge", "Questions about the group nobody answered.", ("group",)
    ),
}


def families(*, queues: bool) -> dict[str, Family]:
    """Return every metric by name, in the order they are rendered."""
    return {**OURS, **_of_5x(queues), **EXPORTER, **RUNTIME}
