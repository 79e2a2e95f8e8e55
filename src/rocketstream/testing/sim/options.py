"""The options of a simulated run, drawn from the seed.

Law: equal options and an equal seed give the same run.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, fields, replace
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
SLOW_DISK_SHARE = 0.15
LIKE_APACHE_SHARE = 0.2

COUNTED = (
    *FAULT_KINDS[:15],
    *FAULT_KINDS[22:],
    SLOW_DISK,
    "short write",
    "short read",
    "EIO on write",
    "EIO on read",
    "EIO on sync",
    "ENOSPC",
    "bit flipped",
    "page lost",
    "page torn",
    "names lost",
)
"""The kinds of fault that must have happened in every 1,000 seeds for a campaign to count."""

ADMINISTERING = "administering"
FAILOVER, OPERATING, RETENTION = "failover", "operating", "retention"
REMADE = "remade"
"""The scenarios whose options are not drawn as those of others are; in failover one broker and one
name server are always there."""
TOLD = ("client killed", "clock jump", "name server killed", "queue added")
"""The faults where a topic is made anew: each member is told that it is gone."""
ONE_GOES = ("broker killed", "broker stopped", "client killed", "name server killed")
"""The faults of failover: those that clients are told of at once."""
APART_MS = 20_000
"""By then a server is back, and every client has asked for routes since."""


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
        like_apache: whether the brokers have the ways of Apache's, see ``apache_broker``.
        retention_ms: how long messages are kept; 0 means for ever.
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
    like_apache: bool = False
    retention_ms: int = 0
    request_timeout_ms: int = 3_000

    def __str__(self) -> str:
        """Return the options that differ from their defaults."""
        shown = [
            f"{each.name}={getattr(self, each.name)!r}"
            for each in fields(self)
            if each.name == "seed" or getattr(self, each.name) != each.default
        ]
        return f"Options({', '.join(shown)})"


def draw_options(seed: int, scenario: str) -> Options:
    """Return the options of a seed."""
    chance = random.Random(f"options {seed} {scenario}")
    pick = chance.choice
    kinds = chance.sample(FAULT_KINDS, chance.randint(2, 7))
    if random.Random(f"slow disk {seed} {scenario}").random() < SLOW_DISK_SHARE:
        kinds.append(SLOW_DISK)
    long = chance.random() < 0.15
    servers = random.Random(f"servers {seed} {scenario}")
    drawn = Options(
        seed=seed,
        scenario=scenario,
        brokers=servers.choice((1, 1, 1, 2)),
        name_servers=servers.choice((1, 1, 1, 2)),
        flush=pick(("sync", "sync", "async")),
        queues=pick((1, 1, 2, 3)),
        messages=pick((20, 40, 60, 100)),
        members=pick((1, 2, 2, 3)),
        body_bytes_max=pick((20, 200, 2_000)),
        delay_levels=pick(("1s 2s 3s 4s", "1s 1s 1s 1s", "1s 5s 10s 30s")),
        fault_ms=pick((60_000, 90_000)) if long else pick((2_000, 5_000, 10_000, 20_000)),
        fault_interval_ms=pick((300, 1_000, 3_000)) * (5 if long else 1),
        faults=tuple(sorted(kinds)),
        latency_ms=pick((0.5, 1.0, 20.0)),
        slow_share=pick((0.0, 0.01, 0.05)),
        split_share=pick((0.0, 0.02, 0.3)),
        commit_log_file_bytes=pick((8, 16, 64, 256)) * 1024,
        consume_queue_units=pick((8, 32, 256)),
        flush_interval_ms=pick((100, 500)),
        keep_interval_ms=pick((200, 1_000)),
        persist_interval_ms=pick((500, 5_000)),
        register_interval_ms=pick((10_000, 30_000)),
        heartbeat_ms=pick((1_000, 5_000, 30_000)),
        rebalance_ms=pick((1_000, 5_000, 20_000)),
        client_persist_ms=pick((200, 1_000, 5_000)),
        pull_batch=pick((1, 4, 32)),
        consume_batch=pick((1, 1, 2, 5)),
        request_timeout_ms=pick((500, 3_000)),
        accounts=servers.random() < 0.15,
        like_apache=random.Random(f"like Apache {seed} {scenario}").random() < LIKE_APACHE_SHARE,
    )
    if scenario == FAILOVER:
        return replace(
            drawn, brokers=2, name_servers=2, fault_ms=servers.choice((25_000, 45_000)),
            fault_interval_ms=2_000, faults=ONE_GOES, apart_ms=APART_MS,
            commit_log_file_bytes=64 * 1024,  # no batch is refused for its size
            like_apache=False,
        )  # fmt: skip
    if scenario == RETENTION:
        return replace(
            drawn, messages=100, body_bytes_max=2_000, commit_log_file_bytes=8 * 1024,
            consume_queue_units=8, retention_ms=servers.choice((500, 2_000, 6_000)),
        )  # fmt: skip
    if scenario == OPERATING:  # a reset tells little where much else happens
        return replace(
            drawn, fault_ms=servers.choice((10_000, 20_000)),
            fault_interval_ms=servers.choice((1_000, 20_000, 20_000)),
            queues=servers.choice((1, 2, 3)),
        )  # fmt: skip
    if scenario == REMADE:
        return replace(drawn, faults=TOLD)
    if scenario == ADMINISTERING:
        return replace(
            drawn, accounts=servers.random() < 0.85, fault_ms=servers.choice((10_000, 20_000)),
        )  # fmt: skip
    return drawn
