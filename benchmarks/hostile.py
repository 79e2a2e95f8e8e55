"""What each attack costs the others: the longest stall of the server's loop, and a neighbour's p99.

Law: starts the server, the healthy client and the attack, and reads their figures.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.attacks import NAMED, Attack, Target, every_code, prepare
from benchmarks.harness import ROOT, Figure
from benchmarks.setting import Settings


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
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
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


def hostile(settings: Settings) -> Iterator[Figure]:
    """Every attack against the embedded server, a healthy client sending meanwhile."""
    yield from _run(settings, NAMED.items(), with_codes=False)


def hostile_codes(settings: Settings) -> Iterator[Figure]:
    """Size bombs for every request code of the broker."""
    yield from _run(settings, (), with_codes=True)


def _run(
    settings: Settings, attacks: Iterable[tuple[str, Attack]], *, with_codes: bool
) -> Iterator[Figure]:
    with ExitStack() as stack:
        server = stack.enter_context(
            child("hostile_server", "--store", str(settings.place("hostile")))
        )
        where = server.read()
        target = Target(where["broker"], where["namesrv"], where["codes"])
        prepare(target)
        probe = stack.enter_context(child("hostile_probe", target.namesrv))
        calm, rss = _calm(server, probe)
        yield Figure("hostile: calm", "ms", [calm], notes={"rss_mib": rss})
        chosen = every_code(target) if with_codes else attacks
        for name, attack in chosen:
            with ExitStack() as open_wires:
                target.stack = open_wires
                try:
                    attack(target)
                    failure = {}
                except OSError as error:
                    failure = {"failure": str(error)}
                stall, neighbour = server.take(), probe.take()
            notes = {
                **failure, "busy_ms": stall["busy_ms"], "rss_mib": stall["rss_mib"],
                "rss_more_mib": round(stall["rss_mib"] - rss, 1),
                "neighbour": neighbour, "calm_p99_ms": calm,
            }  # fmt: skip
            yield Figure(f"hostile: {name}", "ms stall", [stall["gap_ms"]], notes=notes)


def _calm(server: Child, probe: Child) -> tuple[float, float]:
    """Return the neighbour's p99 without any attack, and the server's memory."""
    time.sleep(1)
    probe.take()
    time.sleep(3)
    figures = probe.take()
    return float(figures.get("p99_ms", 0)), float(server.take()["rss_mib"])


def main() -> None:
    """Run the attacks whose names hold one of the words given, and print a line for each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hostile")
    parser.add_argument("words", nargs="*", help="parts of names; all attacks when left out")
    parser.add_argument("--codes", action="store_true", help="size bombs for every request code")
    options = parser.parse_args()
    words = options.words or [""]
    chosen = [(name, attack) for name, attack in NAMED.items() if any(w in name for w in words)]
    with tempfile.TemporaryDirectory(prefix="rocketstream-bench-") as folder:
        settings = Settings(Path(folder), 1, 1.0, with_peer=False)
        for figure in _run(settings, chosen, with_codes=options.codes):
            line = figure.line()
            neighbour = line.get("neighbour", {})
            sys.stdout.write(
                f"{figure.benchmark:44} stall {line['ours']['median']:8.1f} ms"
                f"  busy {line.get('busy_ms', 0):8.1f} ms  p99 {neighbour.get('p99_ms', 0):8.1f} ms"
                f"  RSS {line['rss_mib']:6.0f} MiB {line.get('failure', '')}\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
