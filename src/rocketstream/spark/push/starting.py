"""The start of a group without a checkpoint: its offsets, otherwise the given position.

The cluster's answer becomes an option of the source; once there is a checkpoint, the checkpoint
decides.
"""

from __future__ import annotations

import json
import logging

from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.client.consumer.allocate import StartAt, start_at
from rocketstream.client.consumer.settings import PushConsumerSettings
from rocketstream.model import MessageQueue
from rocketstream.protocol.names import RETRY_PREFIX

logger = logging.getLogger("rocketstream.spark")


def starting_offsets(
    admin: BlockingAdminClient, settings: PushConsumerSettings, topics: list[str]
) -> str:
    """Return option ``startingOffsets`` for some topics (C-189).

    A queue begins at the offset members of the group committed. Without one, a retry topic begins
    at its oldest message and other topics where ``consume_from_where`` says. An offset the queue no
    longer holds becomes the nearest one it holds, with a warning.

    Raises:
        RouteNotFoundError: a topic does not exist.
        TransportError, BrokerError: a broker does not say.
    """
    table: dict[str, dict[str, dict[str, int]]] = {}
    for topic in topics:
        queues = admin.subscribe_queues(topic, refresh=True)
        lows, highs = admin.min_offsets(queues), admin.max_offsets(queues)
        for queue in queues:
            offset = _start(admin, settings, queue, lows[queue], highs[queue])
            brokers = table.setdefault(topic, {})
            brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = offset
    return json.dumps(table, sort_keys=True)


def _start(
    admin: BlockingAdminClient,
    settings: PushConsumerSettings,
    queue: MessageQueue,
    low: int,
    high: int,
) -> int:
    group = settings.consumer_group
    committed = admin.query_consumer_offset(group, queue)
    if committed is not None and committed >= 0:
        offset = min(max(committed, low), high)
        if offset != committed:
            logger.warning(
                "group %s committed offset %d of %s, which holds %d to %d: it goes on at %d",
                group, committed, queue, low, high - 1, offset,
            )  # fmt: skip
        return offset
    where = start_at(settings.consume_from_where, is_retry=queue.topic.startswith(RETRY_PREFIX))
    if where is StartAt.ZERO:
        return low
    if where is StartAt.TIMESTAMP:
        return admin.search_offset(queue, settings.consume_timestamp_ms())
    return high
