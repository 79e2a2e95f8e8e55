"""The broker's figures: codes 28 and 315.

Law: all figures that Apache's 4.9.7 has are here under upstream's names, since its readers fail
where one is missing; an unknown figure has the value upstream begins with, never an invented one.
"""

from __future__ import annotations

import math

from rocketstream.protocol import names
from rocketstream.protocol.bodies import KVTable
from rocketstream.protocol.codes import VERSION, RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import ViewBrokerStatsDataRequestHeader
from rocketstream.server.broker.controller import BrokerController
from rocketstream.server.broker.core.schedule import queue_of_level
from rocketstream.server.broker.core.topics import SCHEDULE_TOPIC
from rocketstream.server.broker.statistics import topic_of
from rocketstream.server.dispatch import Handler, ok, refusal
from rocketstream.transport.connection import Connection

VERSION_TEXT = "V4_9_8"
"""Name of the announced protocol version; tools print it."""
CAPACITIES = {
    "sendThreadPoolQueueCapacity": 10_000,
    "pullThreadPoolQueueCapacity": 100_000,
    "queryThreadPoolQueueCapacity": 20_000,
    "EndTransactionThreadPoolQueueCapacity": 100_000,
}
"""Capacities of upstream's queues; requests are answered as they are read here, without a queue."""
BUFFERS_WITHOUT_POOL = 2**31 - 1
"""Upstream's value for buffers where there is no pool of them."""


class RuntimeHandlers:
    """Requests for figures of the whole broker, and statistics of its topics and groups."""

    def __init__(self, controller: BrokerController) -> None:
        self._controller = controller

    def table(self) -> dict[int, Handler]:
        """The codes of this module."""
        return {
            RequestCode.GET_BROKER_RUNTIME_INFO: self.runtime,
            RequestCode.VIEW_BROKER_STATS_DATA: self.statistics,
        }

    def runtime(self, _: Connection, __: RemotingCommand) -> RemotingCommand:
        """Code 28."""
        table = self._identity() | self._rates() | self._days() | self._puts() | self._store()
        table |= self._delays()
        for pool in ("send", "pull", "query"):
            table[f"{pool}ThreadPoolQueueSize"] = "0"
            table[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = "0"
        table["EndTransactionQueueSize"] = "0"
        table |= {name: str(capacity) for name, capacity in CAPACITIES.items()}
        parked = names.UNDELIVERED_TOPIC
        store = self._controller.store
        count = store.max_offset(parked, 0) - store.min_offset(parked, 0)
        if count:
            table["delayedMessagesUndelivered"] = str(count)
        return ok(body=KVTable(table).encode())

    def statistics(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Code 315."""
        header = request.header(ViewBrokerStatsDataRequestHeader)
        controller = self._controller
        name, key = header.stats_name, header.stats_key
        topic = controller.topics.get(topic_of(name, key))
        queues = max(topic.read_queue_nums, topic.write_queue_nums) if topic is not None else 0
        found = controller.statistics.view(name, key, controller.config.cluster_name, queues)
        if found is None:
            raise refusal(ResponseCode.SYSTEM_ERROR, f"The stats <{name}> <{key}> not exist")
        return ok(body=found.encode())

    # --- parts of code 28 ------------------------------------------------------------------------

    def _identity(self) -> dict[str, str]:
        controller = self._controller
        seconds = int(controller.monotonic_ms() - controller.started_monotonic_ms) // 1000
        minutes, second = divmod(seconds, 60)
        hours, minute = divmod(minutes, 60)
        days, hour = divmod(hours, 24)
        # Java's MessageFormat groups digits.
        runtime = f"[ {days:,} days, {hour} hours, {minute} minutes, {second} seconds ]"
        return {
            "brokerVersion": str(VERSION),
            "brokerVersionDesc": VERSION_TEXT,
            "bootTimestamp": str(controller.started_ms),
            "startAcceptSendRequestTimeStamp": "0",
            "runtime": runtime,
        }

    def _rates(self) -> dict[str, str]:
        counted, now_ms = self._controller.statistics, self._controller.monotonic_ms()
        transferred = counted.gets.text(now_ms)
        both = zip(counted.found.rates(now_ms), counted.missed.rates(now_ms), strict=True)
        return {
            "putTps": counted.puts.text(now_ms),
            "getFoundTps": counted.found.text(now_ms),
            "getMissTps": counted.missed.text(now_ms),
            "getTotalTps": " ".join(str(found + missed) for found, missed in both),
            "getTransferedTps": transferred,
            "getTransferredTps": transferred,
        }

    def _days(self) -> dict[str, str]:
        statistics = self._controller.statistics
        statistics.count_days()
        days = statistics.days
        return {
            "msgPutTotalYesterdayMorning": str(days.put_mornings.yesterday),
            "msgPutTotalTodayMorning": str(days.put_mornings.today),
            "msgPutTotalTodayNow": str(days.puts),
            "msgGetTotalYesterdayMorning": str(days.get_mornings.yesterday),
            "msgGetTotalTodayMorning": str(days.get_mornings.today),
            "msgGetTotalTodayNow": str(days.gets),
            "msgTotalSinceTimestamp": str(days.since_ms),
        }

    def _puts(self) -> dict[str, str]:
        statistics, store = self._controller.statistics, self._controller.store
        puts = size = 0
        for _, _, (count, count_bytes, _) in store.counted():
            puts += count
            size += count_bytes
        times = store.put_times
        return {
            "putMessageTimesTotal": str(puts),
            "putMessageFailedTimes": str(store.failed_puts),
            "putMessageSizeTotal": str(size),
            "putMessageAverageSize": str(size / puts if puts else 0.0),
            "putMessageEntireTimeMax": str(times.longest_ms),
            "putMessageDistributeTime": times.distribution(),
            "putLatency99": f"{times.percentile_ms(0.99):.2f}",
            "putLatency999": f"{times.percentile_ms(0.999):.2f}",
            "getMessageEntireTimeMax": str(int(statistics.longest_get_ms)),
        }

    def _store(self) -> dict[str, str]:
        store = self._controller.store
        disk = store.disk_usage()
        ratio = str(_percent(disk.used, disk.used + disk.free))
        return {
            "commitLogMinOffset": str(store.physical_min_offset),
            "commitLogMaxOffset": str(store.physical_max_offset),
            "commitLogDiskRatio": ratio,
            f"commitLogDiskRatio_{store.root / 'commitlog'}": ratio,
            "consumeQueueDiskRatio": ratio,
            "commitLogDirCapacity": f"Total : {_size(disk.total)}, Free : {_size(disk.free)}.",
            "remainHowManyDataToFlush": _size(store.physical_max_offset - store.flushed_offset),
            "remainTransientStoreBufferNumbs": str(BUFFERS_WITHOUT_POOL),
            "dispatchBehindBytes": str(store.dispatch_behind_bytes),
            "dispatchMaxBuffer": "0",
            "pageCacheLockTimeMills": "0",
            "earliestMessageTimeStamp": str(store.first_timestamp),
        }

    def _delays(self) -> dict[str, str]:
        controller, store = self._controller, self._controller.store
        table = {}
        for level in controller.schedule.levels:
            high = store.max_offset(SCHEDULE_TOPIC, queue_of_level(level))
            if high:
                text = f"{controller.schedule.offset(level)},{high}"
                table[f"scheduleMessageOffset_{level}"] = text
        return table


def _percent(part: int, whole: int) -> float:
    """Return a ratio as text with two digits, rounded up as upstream does."""
    return math.ceil(part * 100 / whole) / 100 if whole else -1.0


def _size(count: int) -> str:
    """Return a number of bytes as upstream writes it: ``12.8 KiB``."""
    if count < 1024:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, 6)
    return f"{count / 1024**power:.1f} {'KMGTPE'[power - 1]}iB"
