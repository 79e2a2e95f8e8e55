"""The options of a run, drawn from its seed; some scenarios have some of their own.

Law: equal seeds and scenarios give equal options.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from rocketstream.testing.sim.options import (
    FAULT_KINDS,
    FLIP_AT_WORK,
    IN_HANDSHAKE,
    SLOW_DISK,
    STATE_FILE,
    Options,
)

SLOW_DISK_SHARE, STATE_FILE_SHARE, FLIP_SHARE = 0.15, 0.2, 0.15
LIKE_APACHE_SHARE = 0.2
TLS_SHARE = 0.15
STRUCK_SHARE = 0.7
"""How many of the seeds with TLS have handshakes that fail."""
CERTIFICATE = str(Path(__file__).parents[1] / "kits" / "tls")
EXPLAINS_SHARE = 0.25

ADMINISTERING, DELAYED = "administering", "delayed"
FAILOVER, OPERATING, RETENTION = "failover", "operating", "retention"
LITE_TOPICS, NAMING, REMADE, SELECTING = "lite topics", "naming", "remade", "selecting"
STRANGE, TRACED = "strange", "traced"
"""The scenarios whose options are not drawn as those of others are; in failover one broker and one
name server are always there."""
ORDERED, SENDING = "ordered", "sending"
LITE_PARENT = "Lite"
"""The topic that has lite topics."""
TOLD = ("client killed", "clock jump", "name server killed", "queue added")
"""The faults where a topic is made anew: each member is told that it is gone."""
ONE_GOES = ("broker killed", "broker stopped", "client killed", "name server killed")
"""The faults of failover: those that clients are told of at once."""
APART_MS = 20_000
"""By then a server is back, and every client has asked for routes since."""


def draw_options(seed: int, scenario: str) -> Options:
    """Return the options of a seed."""
    chance = random.Random(f"options {seed} {scenario}")
    servers = random.Random(f"servers {seed} {scenario}")
    drawn = _usual(seed, scenario, chance, servers)
    own = _OWN.get(scenario)
    return own(drawn, chance, servers) if own is not None else drawn


def _usual(seed: int, scenario: str, chance: random.Random, servers: random.Random) -> Options:
    """Draw what every scenario has."""
    pick = chance.choice
    kinds = chance.sample(FAULT_KINDS, chance.randint(2, 7))
    tls = random.Random(f"TLS {seed} {scenario}")
    has_tls = tls.random() < TLS_SHARE

    def happens(what: str, share: float) -> bool:
        return random.Random(f"{what} {seed} {scenario}").random() < share

    kinds += [SLOW_DISK] * happens("slow disk", SLOW_DISK_SHARE)
    kinds += [STATE_FILE] * happens("state file", STATE_FILE_SHARE)
    kinds += [FLIP_AT_WORK] * happens("flip at work", FLIP_SHARE)
    kinds += [IN_HANDSHAKE] * (has_tls and tls.random() < STRUCK_SHARE)
    long = chance.random() < 0.15
    return Options(
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
        tls=CERTIFICATE if has_tls else "",
        like_apache=happens("like Apache", LIKE_APACHE_SHARE),
        explains=happens("explains", EXPLAINS_SHARE),
    )


def _failover(drawn: Options, _chance: random.Random, servers: random.Random) -> Options:
    return replace(
        drawn, brokers=2, name_servers=2, fault_ms=servers.choice((25_000, 45_000)),
        fault_interval_ms=2_000, faults=ONE_GOES, apart_ms=APART_MS,
        commit_log_file_bytes=64 * 1024,  # no batch is refused for its size
        like_apache=False,
    )  # fmt: skip


def _retention(drawn: Options, _chance: random.Random, servers: random.Random) -> Options:
    return replace(
        drawn, messages=100, body_bytes_max=2_000, commit_log_file_bytes=8 * 1024,
        consume_queue_units=8, retention_ms=servers.choice((500, 2_000, 6_000)),
    )  # fmt: skip


def _operating(drawn: Options, _chance: random.Random, servers: random.Random) -> Options:
    """A reset tells little where much else happens."""
    return replace(
        drawn, fault_ms=servers.choice((10_000, 20_000)),
        fault_interval_ms=servers.choice((1_000, 20_000, 20_000)),
        queues=servers.choice((1, 2, 3)),
    )  # fmt: skip


def _delayed(drawn: Options, _chance: random.Random, servers: random.Random) -> Options:
    others = servers.choice(("15s 3s", "1s 1s 1s 1s 2s 20s"))
    if servers.random() < 0.2:
        return drawn
    return replace(
        drawn, other_delay_levels=others, fault_ms=servers.choice((10_000, 20_000)),
        fault_interval_ms=min(drawn.fault_interval_ms, 1_000),
        faults=tuple(sorted({*drawn.faults, "broker stopped", "clock jump"})),
    )  # fmt: skip


def _naming(drawn: Options, _chance: random.Random, servers: random.Random) -> Options:
    kinds = [kind for kind in drawn.faults if "flip" not in kind]
    return replace(
        drawn, faults=tuple(sorted({*kinds, "name server killed"})),
        fault_ms=servers.choice((5_000, 10_000)), fault_interval_ms=1_000, messages=20,
    )  # fmt: skip


def _selecting(drawn: Options, _chance: random.Random, servers: random.Random) -> Options:
    return replace(
        drawn, faults=tuple(sorted({*drawn.faults, "broker stopped"})),
        fault_ms=servers.choice((10_000, 20_000)), fault_interval_ms=1_000,
    )  # fmt: skip


def _lite_topics(drawn: Options, _chance: random.Random, _servers: random.Random) -> Options:
    """Lite topics are a model: it takes what it reads for whole, as no client does."""
    kept = tuple(kind for kind in drawn.faults if "flip" not in kind)
    return replace(
        drawn, lite_parent=LITE_PARENT, flush="sync", faults=kept, accounts=False,
        like_apache=False,
    )  # fmt: skip


def _strange(drawn: Options, chance: random.Random, _servers: random.Random) -> Options:
    return replace(
        drawn,
        strange=True,
        like_apache=False,
        accounts=False,
        queues=max(2, drawn.queues),
        messages=100,
        pull_batch=chance.choice((1, 4)),
    )


def _ordered(drawn: Options, _chance: random.Random, _servers: random.Random) -> Options:
    """Queues wait for one another."""
    return replace(drawn, queues=max(2, drawn.queues), messages=100)


def _sending(drawn: Options, _chance: random.Random, servers: random.Random) -> Options:
    slow = servers.random() < 0.5  # messages are stored, and not flushed in time
    faults = (*drawn.faults, SLOW_DISK) if slow else drawn.faults
    return replace(drawn, messages=100, flush="sync" if slow else drawn.flush, faults=faults)


def _traced(drawn: Options, _chance: random.Random, _servers: random.Random) -> Options:
    """A span of one message names it."""
    return replace(drawn, consume_batch=1)


def _remade(drawn: Options, _chance: random.Random, _servers: random.Random) -> Options:
    return replace(drawn, faults=TOLD)


def _administering(drawn: Options, _chance: random.Random, servers: random.Random) -> Options:
    return replace(
        drawn, accounts=servers.random() < 0.85, fault_ms=servers.choice((10_000, 20_000)),
    )  # fmt: skip


_OWN: Final[dict[str, Callable[[Options, random.Random, random.Random], Options]]] = {
    FAILOVER: _failover,
    RETENTION: _retention,
    OPERATING: _operating,
    DELAYED: _delayed,
    NAMING: _naming,
    SELECTING: _selecting,
    LITE_TOPICS: _lite_topics,
    STRANGE: _strange,
    ORDERED: _ordered,
    SENDING: _sending,
    TRACED: _traced,
    REMADE: _remade,
    ADMINISTERING: _administering,
}
"""What a scenario draws, or sets, after and in place of the usual."""
