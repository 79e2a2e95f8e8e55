"""The broker's settings, under upstream's names: codes 25 and 26."""

from __future__ import annotations

import logging

from rocketstream.errors import StoreError
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import GetBrokerConfigResponseHeader
from rocketstream.server.broker.config import BrokerConfig
from rocketstream.server.broker.controller import BrokerController
from rocketstream.server.broker.core.topics import AUTO_CREATE_TOPIC, auto_create_topic
from rocketstream.server.broker.editing import Edits, edited, shown
from rocketstream.server.dispatch import Handler, ok
from rocketstream.server.editing import parse_properties
from rocketstream.transport.connection import Connection
from rocketstream.transport.sharing import AnswerSteps

logger: logging.Logger = logging.getLogger("rocketstream.server")


class InfoHandlers:
    """Requests about the broker's settings."""

    def __init__(self, controller: BrokerController) -> None:
        self._controller = controller

    def table(self) -> dict[int, Handler]:
        """The codes of this module."""
        return {
            RequestCode.GET_BROKER_CONFIG: self.config,
            RequestCode.UPDATE_BROKER_CONFIG: self.update_config,
        }

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
            "defaultTopicQueueNums": str(config.default_topic_queue_nums),
            "messageDelayLevel": config.delay_levels,
            "mappedFileSizeCommitLog": str(config.store.commit_log_file_bytes),
            "maxMessageSize": str(config.message_body_bytes_max),
            "storePathRootDir": str(controller.store.root),
            "traceTopicEnable": str(config.trace_topic).lower(),
            "msgTraceTopicName": config.trace_topic_name,
            "longPollingEnable": "true",
            "flushConsumerOffsetInterval": str(config.offset_persist_interval_ms),
        }
        lines |= shown(config)
        body = "".join(f"{key}={value}\n" for key, value in lines.items()).encode()
        version = controller.topics.data_version.encode().decode()
        return ok(GetBrokerConfigResponseHeader(version=version), body)

    def update_config(self, connection: Connection, request: RemotingCommand) -> AnswerSteps:
        """Code 25: allowed changes take effect at once; answered once they are persisted."""
        given = parse_properties(bytes(request.body).decode(errors="replace"))
        controller = self._controller
        before, edits = controller.config, controller.edits
        after = edited(before, given)
        if not given:
            return ok()
        self._take(after, Edits({**edits.values, **given}))
        try:
            saved = controller.saver.edits_saved()
            yield saved
            saved.result()
        except StoreError:
            self._take(before, edits)
            raise
        if after.auto_create_topics and controller.topics.get(AUTO_CREATE_TOPIC) is None:
            made = controller.make_topic(auto_create_topic(after.default_topic_queue_nums))
            yield made
            made.result()
        logger.warning("%s changed settings: %s", connection.peer, given)
        return ok()

    def _take(self, config: BrokerConfig, edits: Edits) -> None:
        controller = self._controller
        controller.reconfigure(config)
        controller.edits = edits
        controller.edits_generation += 1
