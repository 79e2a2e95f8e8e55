"""What each attack costs the others: the longest stall of the server's loop, and a neighbour's p99.

Law: starts the server, the healthy client and the attack, and reads their figures.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.attacks import ISSUE, NAMED, Attack, Target, prepare
from benchmarks.bombs import every_code
from benchmarks.harness import ROOT, Figure, spread, values
from benchmarks.setting import Settings

SAMPLES_MIN = 500
"""Messages a neighbour must have sent before its 99th percentile says anything."""
SAMPLES_CALM = 2_000
ROUNDS = 5
"""Of what is judged by its 99th percentile: calm, then attack, each on a server of its own."""
SAMPLES_WAIT_S = 60.0
GROWTH_MIB_MAX = 50.0
P99_RATIO_MAX = 3.0
BUSY_MS_MAX = 50.0
WORST_SHOWN = 10
ATTACKER_NICENESS = 10


class Child:
    """A process that answers each line on its input by one JSON line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def read(self) -> dict[str, Any]:
        """Return the next line of figures."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a process of the measurement ended")
        found: dict[str, Any] = json.loads(line)
        return found

    def take(self) -> dict[str, Any]:
        """Return the figures since the last call."""
        return self.ask("take")

    def ask(self, word: str) -> dict[str, Any]:
        """Return the answer to a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        return self.read()


@contextmanager
def child(module: str, *words: str) -> Iterator[Child]:
    """Run a module of this package until the context ends."""
    command = [sys.executable, "-m", f"benchmarks.{module}", *words]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        try:
            yield Child(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


@dataclass
class Phase:
    """What was measured while something went on.

    Attributes:
        neighbour: how many messages the healthy client sent, and how long they took.
        server: stalls of the server's loop, and the memory at the end.
    """

    neighbour: dict[str, Any]
    server: dict[str, Any]

    @property
    def p99_ms(self) -> float:
        """The neighbour's 99th percentile; 0 where it has too few samples to have one."""
        has_enough = self.neighbour["count"] >= SAMPLES_MIN
        return float(self.neighbour["p99_ms"]) if has_enough else 0.0


class Measurement:
    """A server, a healthy client beside it, and how both fare while it is calm."""

    def __init__(
        self, stack: ExitStack, settings: Settings, messages: int, samples: int = SAMPLES_MIN
    ) -> None:
        self._server = stack.enter_context(
            child("hostile_server", "--store", str(settings.place("hostile")))
        )
        where = self._server.read()
        names = ("broker", "namesrv", "codes", "namesrv_codes")
        self.target = Target(*(where[name] for name in names))
        prepare(self.target, messages)
        self._probe = stack.enter_context(child("hostile_probe", self.target.namesrv))
        self._wait_for_samples(SAMPLES_MIN)
        self.calm = self.during(lambda: self._wait_for_samples(samples))

    def _wait_for_samples(self, samples: int) -> None:
        """Wait until the healthy client has sent enough to have a 99th percentile."""
        deadline_s = time.monotonic() + SAMPLES_WAIT_S
        while (count := self._probe.ask("count")["count"]) < samples:
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"the healthy client sent {count} messages in a minute")
            time.sleep(0.1)

    def during(self, action: Callable[[], None]) -> Phase:
        """Return what was measured while ``action`` ran."""
        self._server.take()
        self._probe.take()
        action()
        neighbour = self._probe.take()
        return Phase(neighbour, self._server.take())

    def attacked(self, name: str, attack: Attack) -> Figure:
        """Return what an attack cost."""
        failure: dict[str, str] = {}

        def run() -> None:
            with ExitStack() as self.target.stack:
                try:
                    attack(self.target)
                except OSError as error:
                    failure["failure"] = str(error)

        before = self._server.take()
        phase = self.during(lambda: _from_elsewhere(run))
        notes = {
            **failure, "busy_ms": phase.server["busy_ms"], "rss_mib": phase.server["rss_mib"],
            "rss_more_mib": round(phase.server["rss_mib"] - before["rss_mib"], 1),
            "own_more_mib": round(phase.server["own_mib"] - before["own_mib"], 1),
            "neighbour": phase.neighbour, "calm": self.calm.neighbour,
            "p99_ratio": round(phase.p99_ms / self.calm.p99_ms, 2) if phase.p99_ms else None,
        }  # fmt: skip
        return Figure(f"hostile: {name}", "ms stall", [phase.server["gap_ms"]], notes=notes)


def _from_elsewhere(attack: Callable[[], None]) -> None:
    """Run an attack in a thread that works when nobody else on this machine wants to.

    An attacker elsewhere takes no processor time from the server and its neighbour.
    """

    def run() -> None:
        if hasattr(os, "SCHED_IDLE"):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        else:
            os.nice(ATTACKER_NICENESS)
        attack()

    with ThreadPoolExecutor(1, "attacker") as threads:
        threads.submit(run).result()


def hostile(settings: Settings) -> Iterator[Figure]:
    """Every attack against the embedded server, a healthy client sending meanwhile."""
    yield from _run(settings, NAMED.items())


def hostile_codes(settings: Settings) -> Iterator[Figure]:
    """Size bombs for every request code of the broker and the name server."""
    yield from _run(settings, None)


def hostile_together(settings: Settings) -> Iterator[Figure]:
    """Floods of bad frames, 2,000 connections and 200 stalled peers: each alone, then all."""
    for name, attack in ISSUE.items():
        yield _judged(settings, name, attack)


def _judged(settings: Settings, name: str, attack: Attack) -> Figure:
    """The neighbour's 99th percentile under an attack against that of the calm before it."""
    rounds: list[tuple[Phase, Figure]] = []
    for _ in range(settings.runs):
        with ExitStack() as stack:
            found = Measurement(stack, settings, messages=1_000, samples=SAMPLES_CALM)
            rounds.append((found.calm, found.attacked(name, attack)))
    calm, attacked = [one for one, _ in rounds], [one.notes for _, one in rounds]
    return Figure(
        f"hostile: {name}",
        "ms p99",
        [float(one["neighbour"]["p99_ms"]) for one in attacked],
        "calm",
        [one.p99_ms for one in calm],
        notes={
            "busy_ms": [one["busy_ms"] for one in attacked],
            "rss_more_mib": [
                round(one["rss_mib"] - before.server["rss_mib"], 1)
                for one, before in zip(attacked, calm, strict=True)
            ],
            "failures": [one["failure"] for one in attacked if "failure" in one],
        },
    )


def _run(settings: Settings, attacks: Iterable[tuple[str, Attack]] | None) -> Iterator[Figure]:
    """Run attacks, or size bombs for every code when there are none."""
    with ExitStack() as stack:
        found = Measurement(stack, settings, messages=1_000 if attacks is not None else 100)
        calm = found.calm
        notes = {"neighbour": calm.neighbour, "busy_ms": calm.server["busy_ms"],
                 "rss_mib": calm.server["rss_mib"]}  # fmt: skip
        yield Figure("hostile: calm", "ms stall", [calm.server["gap_ms"]], notes=notes)
        for name, attack in every_code(found.target) if attacks is None else attacks:
            yield found.attacked(name, attack)


def _text(figure: Figure) -> str:
    """Return one line for people."""
    notes = figure.notes
    neighbour, ratio = notes["neighbour"], notes.get("p99_ratio")
    return (
        f"{figure.benchmark:44} busy {notes['busy_ms']:6.1f} ms "
        f" wall {values(figure.ours)[0]:7.1f} ms"
        f"  p50 {neighbour.get('p50_ms', 0):6.2f}  p99 {neighbour.get('p99_ms', 0):6.2f} ms"
        f" of {neighbour['count']:5}{'' if ratio is None else f'  x{ratio}'}"
        f"  RSS {notes['rss_mib']:5.0f} MiB ({notes.get('rss_more_mib', 0):+.1f},"
        f" own {notes.get('own_more_mib', 0):+.1f}) {notes.get('failure', '')}\n"
    )


def _verdict(figure: Figure) -> str:
    """Return how an attack stands to the limits, in one line for people."""
    growth, ratio, notes = max(figure.notes["rss_more_mib"]), figure.ratio, figure.notes
    kept = growth <= GROWTH_MIB_MAX and ratio is not None and ratio <= P99_RATIO_MAX
    ours, calm = spread(figure.ours), spread(figure.peer)
    return (
        f"{figure.benchmark}: p99 {ours['median']:.2f} ms ({ours['min']:.2f} to {ours['max']:.2f}),"
        f" calm {calm['median']:.2f} ({calm['min']:.2f} to {calm['max']:.2f}): x{ratio or 0:.2f}"
        f" (limit {P99_RATIO_MAX:.0f}); busy at most {max(notes['busy_ms']):.1f} ms;"
        f" RSS at most {growth:+.1f} MiB (limit {GROWTH_MIB_MAX:.0f}):"
        f" {'kept' if kept else 'NOT KEPT'} {' '.join(notes['failures'])}\n"
    )


def main() -> None:
    """Run the attacks whose names hold one of the words given, and print a line for each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hostile")
    parser.add_argument("words", nargs="*", help="parts of names; all attacks when left out")
    parser.add_argument("--codes", action="store_true", help="size bombs for every request code")
    parser.add_argument(
        "--together",
        action="store_true",
        help="bad frames, connections, stalled peers; all at once",
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of --together; %(default)s")
    options = parser.parse_args()
    words = options.words or [""]
    with tempfile.TemporaryDirectory(prefix="rocketstream-bench-") as folder:
        settings = Settings(Path(folder), options.rounds, 1.0, with_peer=False)
        if options.codes:
            figures = hostile_codes(settings)
        elif options.together:
            figures = hostile_together(settings)
        else:
            chosen = {name: one for name, one in NAMED.items() if any(w in name for w in words)}
            figures = _run(settings, chosen.items())
        shown: list[Figure] = []
        for figure in figures:
            sys.stdout.write(_verdict(figure) if options.together else _text(figure))
            sys.stdout.flush()
            shown.append(figure)
    if options.codes:
        del shown[0]  # The calm.
        shown.sort(key=lambda one: -float(one.notes["busy_ms"]))
        sys.stdout.write(f"\nworst of {len(shown)} (limit {BUSY_MS_MAX:.0f} ms busy):\n")
        sys.stdout.write("".join(map(_text, shown[:WORST_SHOWN])))


if __name__ == "__main__":
    main()
