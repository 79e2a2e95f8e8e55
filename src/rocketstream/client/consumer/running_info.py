"""Settings and queues of a consumer, for a broker that asks for an operator (307; C-540)."""

from __future__ import annotations

import enum
from dataclasses import fields
from typing import Any

from rocketstream._util.clock import Clock
from rocketstream.client.config import ClientConfig
from rocketstream.client.consumer.consume.orderly_queue import OrderlyProcessQueue
from rocketstream.client.consumer.queue import AssignedQueue
from rocketstream.protocol.bodies import ProcessQueueInfo
from rocketstream.settings import camel_case, java_name

START_TIMESTAMP = "PROP_CONSUMER_START_TIMESTAMP"
_MIB = 1024 * 1024
_SECRETS = frozenset({"access_key", "secret_key", "security_token"})
_OBJECTS = frozenset({"ssl_context", "rpc_hook", "offset_store", "message_queue_listener"})
"""Their text says nothing."""


def properties_of(settings: Any) -> dict[str, str]:
    """Return settings by the names Java's consumers tell them by; secrets are left out."""
    return {
        java_name(each) or camel_case(each.name): _java_text(
            each.name, getattr(settings, each.name), settings
        )
        for each in fields(settings)
        if each.name not in _SECRETS | _OBJECTS
    }


def _java_text(name: str, value: Any, settings: Any) -> str:
    if name == "namesrv_addr" and isinstance(settings, ClientConfig):
        return ";".join(settings.name_servers())
    if name == "consume_thread_min":
        value = min(value, settings.consume_thread_max)  # the usual minimum bounds nothing here
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, list | tuple | set | frozenset):
        return f"[{', '.join(sorted(map(str, value)))}]"
    return str(value) if isinstance(value, str | int | float) else type(value).__name__


def queue_info(queue: AssignedQueue, offset: int, clock: Clock) -> ProcessQueueInfo:
    """Return what is told of a queue whose offset to commit is ``offset``."""
    began_ms = clock.now_ms() - clock.monotonic_ms()  # when the monotonic clock stood at 0
    with queue.lock:
        held = queue.process_queue
        info = ProcessQueueInfo(
            commit_offset=offset,
            cached_msg_count=held.message_count,
            cached_msg_size_in_mib=held.body_bytes // _MIB,
            droped=held.dropped,
            last_pull_timestamp=int(began_ms + held.last_pull_ms),
            last_consume_timestamp=int(began_ms + held.last_consume_ms),
        )
        if held.message_count:
            info.cached_msg_min_offset = held.min_offset
            info.cached_msg_max_offset = held.min_offset + held.max_span
        if isinstance(held, OrderlyProcessQueue):
            _add_orderly(info, held, began_ms)
    return info


def _add_orderly(info: ProcessQueueInfo, held: OrderlyProcessQueue, began_ms: float) -> None:
    taken = held.taken_offsets
    info.transaction_msg_count = len(taken)
    if taken:
        info.transaction_msg_min_offset, info.transaction_msg_max_offset = taken[0], taken[-1]
    if held.message_count:
        info.cached_msg_max_offset = held.queue_offset_max
    if held.lease is not None:
        info.locked = held.lease.locked
        info.last_lock_timestamp = int(began_ms + held.lease.locked_ms)
