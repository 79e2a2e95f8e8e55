"""The options of a simulated run.

Law: equal options and an equal seed give the same run.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

FAULT_KINDS = (
    "delay",
    "stall",
    "reset",
    "cut in mid-frame",
    "silence",
    "partition",
    "one-sided partition",
    "broker killed",
    "broker power loss",
    "name server killed",
    "client killed",
    "client power loss",
    "broker paused",
    "client paused",
    "clock jump",
    "short writes",
    "short reads",
    "EIO on write",
    "EIO on read",
    "EIO on sync",
    "disk full",
    "bit flip",
    "broker stopped",
    "queue added",
    "broker killed at a write",
    "broker power loss at a write",
)
"""The kinds of fault a run can have."""

SLOW_DISK = "slow disk"
"""A further kind, in some of the seeds: a sync that outlasts the broker's patience."""
STATE_FILE = "state file damaged"
"""A further kind, in some of the seeds: a bit of a broker's state flips while it is down."""
FLIP_AT_WORK = "bit flip at work"
"""A further kind, in some of the seeds: a bit of a store flips while its broker runs."""
IN_HANDSHAKE = "handshake struck"
"""A further kind where there is TLS: a connection is cut or goes silent before it is usable, or a
server of HTTP answers on it."""


@dataclass(frozen=True)
class Options:
    """The options of one run; times are virtual milliseconds.

    Attributes:
        seed: where all chance comes from.
        scenario: name of the workload.
        brokers: number of brokers; each has every topic.
        name_servers: number of name servers.
        flush: flush mode of the broker.
        queues: number of queues of each topic at a broker.
        messages: how many the workload sends.
        members: number of members of each group.
        body_bytes_max: greatest body of a message.
        delay_levels: delay levels of the broker.
        other_delay_levels: those it has after every other start; empty for the same.
        fault_ms: how long faults happen.
        fault_interval_ms: mean time between them.
        heal_ms: how long recovery may take afterwards.
        faults: which kinds happen.
        apart_ms: how far apart servers are ended at least, so that one of them is always there and
            known; 0 means that all may be down at once.
        latency_ms: longest time a segment takes.
        slow_share: share of segments that take longer.
        split_share: share of writes that arrive in two pieces.
        commit_log_file_bytes: size of a commit log file.
        consume_queue_units: entries of one consume queue file.
        flush_interval_ms: how often the store flushes.
        keep_interval_ms: how often the store runs its upkeep.
        persist_interval_ms: how often the broker writes offsets.
        register_interval_ms: how often the broker registers.
        heartbeat_ms: how often clients send heartbeats.
        rebalance_ms: how often clients rebalance.
        client_persist_ms: how often clients send offsets.
        pull_batch: messages asked for at once.
        consume_batch: messages a listener is given at once.
        accounts: whether the brokers serve those alone who have one.
        tls: a directory with ``cert.pem``, whose key is RSA, and ``key.pem``, by which servers and
            clients speak TLS; empty for plain connections.
        like_apache: whether the brokers have the ways of Apache's, see ``apache_broker``.
        explains: whether members send failed messages back with the cause.
        lite_parent: the topic that has lite topics, see ``lite_broker``; empty for none.
        retention_ms: how long messages are kept; 0 means for ever.
        strange: whether servers answer nonsense now and then, see ``strange_servers``.
        request_timeout_ms: timeout of the clients' requests.
    """

    seed: int
    scenario: str = ""
    brokers: int = 1
    name_servers: int = 1
    flush: Literal["sync", "async"] = "sync"
    queues: int = 2
    messages: int = 60
    members: int = 2
    body_bytes_max: int = 200
    delay_levels: str = "1s 2s 3s 4s"
    other_delay_levels: str = ""
    fault_ms: int = 8_000
    fault_interval_ms: int = 1_000
    heal_ms: int = 180_000
    faults: tuple[str, ...] = ()
    apart_ms: int = 0
    latency_ms: float = 1.0
    slow_share: float = 0.01
    split_share: float = 0.02
    commit_log_file_bytes: int = 32 * 1024
    consume_queue_units: int = 64
    flush_interval_ms: int = 500
    keep_interval_ms: int = 1_000
    persist_interval_ms: int = 5_000
    register_interval_ms: int = 30_000
    heartbeat_ms: int = 30_000
    rebalance_ms: int = 20_000
    client_persist_ms: int = 5_000
    pull_batch: int = 32
    consume_batch: int = 1
    accounts: bool = False
    tls: str = ""
    like_apache: bool = False
    explains: bool = False
    lite_parent: str = ""
    retention_ms: int = 0
    strange: bool = False
    request_timeout_ms: int = 3_000

    def __str__(self) -> str:
        """Return the options that differ from their defaults."""
        shown = [
            f"{each.name}={getattr(self, each.name)!r}"
            for each in fields(self)
            if each.name == "seed" or getattr(self, each.name) != each.default
        ]
        return f"Options({', '.join(shown)})"
