"""The command line next to mqadmin: wall time from start to finish, each pair in turn.

Law: processes as a user starts them, asking one Apache broker; nothing is warmed but files.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from benchmarks.harness import Figure, embedded_server, launched_in_turn, spread
from benchmarks.setting import Settings

if TYPE_CHECKING:
    from benchmarks.java import JavaPeer

MESSAGES = 2_000
GROUP, KEY = "bench-cli-group", "bench-key"
TIMEOUT_S = 120

_serial = itertools.count()


@dataclass(frozen=True)
class Pair:
    """One command of ours and mqadmin's for the same; ``{}`` is made fresh for each run."""

    ours: str
    theirs: str

    @property
    def name(self) -> str:
        """The commands without their arguments."""
        words = itertools.takewhile(lambda word: word.islower() and word.isalpha(), self.words(0))
        return " ".join(words)

    def words(self, number: int, text: str | None = None) -> list[str]:
        """The words of one run."""
        return [word.replace("{}", str(number)) for word in (text or self.ours).split()]


def pairs(topic: str, broker: str, broker_name: str, key: str) -> list[Pair]:
    """What is compared: reading of every kind, and what changes something."""
    return [
        Pair("cluster list", "clusterList"),
        Pair(f"broker status {broker_name}", f"brokerStatus -b {broker}"),
        Pair(f"broker config {broker_name}", f"getBrokerConfig -b {broker}"),
        Pair("topic list", "topicList"),
        Pair(f"topic route {topic}", f"topicRoute -t {topic}"),
        Pair(f"topic status {topic}", f"topicStatus -t {topic}"),
        Pair("group list", "consumerProgress"),
        Pair(f"group lag {GROUP}", f"consumerProgress -g {GROUP}"),
        Pair(f"message query {topic} {KEY}", f"queryMsgByKey -t {topic} -k {KEY}"),
        Pair(f"message view {topic} {key}", f"queryMsgByUniqueKey -t {topic} -i {key}"),
        Pair(f"send {topic} hello", f"sendMessage -t {topic} -p hello"),
        Pair("topic create cli-ours-{}", f"updateTopic -b {broker} -t cli-theirs-{{}}"),
        Pair(
            f"group reset {GROUP} {topic} --to-earliest --yes",
            f"resetOffsetByTime -g {GROUP} -t {topic} -s 0",
        ),
    ]


def admin_cli(settings: Settings) -> Iterator[Figure]:
    """Every pair on one Apache broker; without the peer ours alone on an embedded one."""
    java = settings.peer()
    if java is None:
        with embedded_server(settings.place("store")) as server:
            yield from _measure(settings, server.namesrv_addr, server.broker_addr, None)
        return
    cluster = java.cluster
    yield from _measure(settings, cluster.namesrv_addr, cluster.broker_addr, java)


def _measure(
    settings: Settings, namesrv: str, broker: str, java: JavaPeer | None
) -> Iterator[Figure]:
    topic = f"bench-cli-{next(_serial)}"
    folder = settings.place("cli")
    env = {**os.environ, "NAMESRV_ADDR": namesrv, "XDG_STATE_HOME": str(folder)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled once
    unique_key, broker_name = _prepare(topic, env)
    for pair in pairs(topic, broker, broker_name, unique_key):
        mqadmin = None if java is None else _mqadmin(java, pair, folder, namesrv)
        cpu: dict[str, list[float]] = {"ours": [], "mqadmin": []}
        peer = None if mqadmin is None else _with_cpu(mqadmin, cpu["mqadmin"])
        mine, other = launched_in_turn(settings.runs, _with_cpu(_own(pair, env), cpu["ours"]), peer)
        # On a machine that does other things as well this says more than the time on the wall.
        notes = {"cpu_s": {side: spread(found) for side, found in cpu.items() if found}}
        name = f"command {pair.name}"
        yield Figure(name, "s", mine, f"mqadmin {pair.theirs.split()[0]}", other, notes)


def _with_cpu(once: Callable[[], float], found: list[float]) -> Callable[[], float]:
    def measured() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        wall = once()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        return wall

    return measured


def _prepare(topic: str, env: Mapping[str, str]) -> tuple[str, str]:
    """Make a topic with messages and a group that is behind; return a message's id, the broker."""
    _run(_command("topic create", topic, "--queues", "8"), env)
    _run(_command("send", topic, "x" * 100, "--count", str(MESSAGES), "--keys", KEY), env)
    words = ("--group", GROUP, "--from", "earliest", "--max", str(MESSAGES // 4), "--json")
    told = _run(_command("consume", topic, *words), env)
    message = json.loads(told.splitlines()[0])
    return message["msgId"], message["brokerName"]


def _own(pair: Pair, env: Mapping[str, str]) -> Callable[[], float]:
    return lambda: _timed(_command(*pair.words(next(_serial))), env)


def _mqadmin(java: JavaPeer, pair: Pair, folder: Path, namesrv: str) -> Callable[[], float]:
    from tests.kits.apache.referee import JAVA_OPENS

    home = folder / "mqadmin"
    (home / "conf").mkdir(parents=True, exist_ok=True)
    (home / "conf" / "logback_tools.xml").write_text("<configuration/>")
    start = ["java", *JAVA_OPENS, f"-Duser.home={home}", *java.referee.servers]
    start.append("org.apache.rocketmq.tools.command.MQAdminStartup")
    env = {**os.environ, "ROCKETMQ_HOME": str(home)}

    def once() -> float:
        words = pair.words(next(_serial), pair.theirs)
        return _timed([*start, *words, "-n", namesrv], env)

    return once


def _command(*words: str) -> list[str]:
    return [sys.executable, "-m", "rocketstream", *" ".join(words).split()]


def _timed(command: Sequence[str], env: Mapping[str, str]) -> float:
    began = perf_counter()
    _run(command, env)
    return perf_counter() - began


def _run(command: Sequence[str], env: Mapping[str, str]) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, env=env, timeout=TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[-6:])} exited {done.returncode}: {done.stderr}")
    return done.stdout
