"""The broker about itself: codes 25, 26, 28.

Law: figures as upstream names them; a figure that is not known is left out, never invented.
"""

from __future__ import annotations

from rocketstream.protocol import names
from rocketstream.protocol.bodies import KVTable
from rocketstream.protocol.codes import VERSION, RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import GetBrokerConfigResponseHeader
from rocketstream.protocol.record import read_head
from rocketstream.server.broker.controller import BrokerController
from rocketstream.server.broker.core.schedule import queue_of_level
from rocketstream.server.broker.core.topics import SCHEDULE_TOPIC
from rocketstream.server.dispatch import Handler, ok, refusal
from rocketstream.transport.aio import Connection

VERSION_TEXT = "V4_9_8"
"""What the announced protocol version is called; tools print it."""


class InfoHandlers:
    """Runtime figures and settings."""

    def __init__(self, controller: BrokerController) -> None:
        self._controller = controller

    def table(self) -> dict[int, Handler]:
        """The codes of this module."""
        return {
            RequestCode.GET_BROKER_RUNTIME_INFO: self.runtime,
            RequestCode.GET_BROKER_CONFIG: self.config,
            RequestCode.UPDATE_BROKER_CONFIG: self.update_config,
        }

    def runtime(self, _: Connection, __: RemotingCommand) -> RemotingCommand:
        """Code 28."""
        controller, store = self._controller, self._controller.store
        now_ms = controller.monotonic_ms()
        table = {
            "brokerVersion": str(VERSION),
            "brokerVersionDesc": VERSION_TEXT,
            "bootTimestamp": str(controller.started_ms),
            "runtime": f"[ {(now_ms - controller.started_monotonic_ms) / 1000:.0f} seconds ]",
            "putTps": controller.put_count.text(now_ms),
            "getTransferedTps": controller.get_count.text(now_ms),
            "getTransferredTps": controller.get_count.text(now_ms),
            "msgPutTotalYesterdayMorning": "0",
            "msgPutTotalTodayMorning": "0",
            "msgPutTotalTodayNow": str(controller.put_count.total),
            "msgGetTotalYesterdayMorning": "0",
            "msgGetTotalTodayMorning": "0",
            "msgGetTotalTodayNow": str(controller.get_count.total),
            # Requests are answered as they are read: nothing waits in a queue of a thread pool.
            "sendThreadPoolQueueSize": "0",
            "pullThreadPoolQueueSize": "0",
            "sendThreadPoolQueueHeadWaitTimeMills": "0",
            "pullThreadPoolQueueHeadWaitTimeMills": "0",
            "pageCacheLockTimeMills": "0",
            "commitLogMinOffset": str(store.physical_min_offset),
            "commitLogMaxOffset": str(store.physical_max_offset),
            "commitLogDiskRatio": f"{controller.store.disk_used_ratio():.4f}",
        }
        first = store.read(store.physical_min_offset)
        if first is not None:
            table["earliestMessageTimeStamp"] = str(read_head(first).store_timestamp)
        for level in controller.schedule.levels:
            high = store.max_offset(SCHEDULE_TOPIC, queue_of_level(level))
            if high:
                text = f"{controller.schedule.offset(level)},{high}"
                table[f"scheduleMessageOffset_{level}"] = text
        parked = names.UNDELIVERED_TOPIC
        count = store.max_offset(parked, 0) - store.min_offset(parked, 0)
        if count:
            table["delayedMessagesUndelivered"] = str(count)
        return ok(body=KVTable(table).encode())

    def config(self, _: Connection, __: RemotingCommand) -> RemotingCommand:
        """Code 26."""
        controller, config = self._controller, self._controller.config
        lines = {
            "brokerName": config.broker_name,
            "brokerClusterName": config.cluster_name,
            "brokerId": str(config.broker_id),
            "brokerIP1": controller.host,
            "listenPort": str(controller.port),
            "namesrvAddr": ";".join(config.namesrv_addrs),
            "brokerRole": "ASYNC_MASTER",
            "flushDiskType": "SYNC_FLUSH" if config.flush == "sync" else "ASYNC_FLUSH",
            "autoCreateTopicEnable": str(config.auto_create_topics).lower(),
            "autoCreateSubscriptionGroup": str(config.auto_create_groups).lower(),
            "defaultTopicQueueNums": str(config.default_topic_queue_nums),
            "messageDelayLevel": config.delay_levels,
            "mappedFileSizeCommitLog": str(config.store.commit_log_file_bytes),
            "transactionTimeOut": str(config.transaction_timeout_ms),
            "transactionCheckInterval": str(config.transaction_check_interval_ms),
            "transactionCheckMax": str(config.transaction_check_max),
            "rejectTransactionMessage": str(config.reject_transaction_message).lower(),
            "maxMessageSize": str(config.message_body_bytes_max),
            "storePathRootDir": str(controller.store.root),
            "enablePropertyFilter": str(config.enable_property_filter).lower(),
            "filterSupportRetry": str(config.filter_support_retry).lower(),
            "traceTopicEnable": str(config.trace_topic).lower(),
            "msgTraceTopicName": config.trace_topic_name,
            "longPollingEnable": "true",
        }
        body = "".join(f"{key}={value}\n" for key, value in lines.items()).encode()
        version = controller.topics.data_version.encode().decode()
        return ok(GetBrokerConfigResponseHeader(version=version), body)

    def update_config(self, _: Connection, __: RemotingCommand) -> RemotingCommand:
        """Code 25: no setting of this broker can be changed from outside."""
        text = "no setting of this broker can be changed over the network; restart it with others"
        raise refusal(ResponseCode.NO_PERMISSION, text)
