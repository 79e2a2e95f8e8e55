"""``python -m tests.outside --seed 7 --seconds 60``: rounds by hand, kept where one finds."""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from tests.outside import edn, kafka_rules, shim
from tests.outside.faults import DISK, KINDS
from tests.outside.history import History, read
from tests.outside.installed import unpack
from tests.outside.recording import lines
from tests.outside.round import ALL, PATIENCE_S, SMALL, Round, Setting
from tests.outside.rules import check, copies

SHOWN = 5
"""Texts of one rule that are printed; the history has them all."""


def main() -> int:
    """Run rounds, print what each had and what was found; 1 where anything was."""
    parser = argparse.ArgumentParser(prog="python -m tests.outside", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long faults go on")
    parser.add_argument("--rounds", type=int, default=1, help="how many; 0 for ever")
    parser.add_argument("--flush", choices=("sync", "async"), default="sync")
    parser.add_argument("--small", action="store_true", help="fewer workers")
    parser.add_argument(
        "--patience", type=float, default=PATIENCE_S, help="seconds after the last fault"
    )
    parser.add_argument("--disk", action="store_true", help="slow disks and a clock that jumps too")
    parser.add_argument("--judge", type=Path, help="a kept round: judge its history once more")
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()) / "outside")
    given = parser.parse_args()
    if given.judge:
        return _told(read(lines(given.judge / "history")), str(given.judge))
    given.keep.mkdir(parents=True, exist_ok=True)
    found = 0
    seeds = itertools.count(given.seed)
    with tempfile.TemporaryDirectory() as wheels:
        package = unpack(Path(wheels))
        for seed in itertools.islice(seeds, given.rounds or None):
            found += _one(given, seed, package)
    return 1 if found else 0


def _one(given: argparse.Namespace, seed: int, package: Path) -> int:
    folder = given.keep / f"seed-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    library = shim.compiled(given.keep) if given.disk else None
    variables = shim.Control(folder / "shim").variables(library) if library else {}
    setting = Setting(
        folder, package, seed, given.seconds, SMALL if given.small else ALL,
        (*KINDS, *DISK) if library else KINDS, given.flush, given.patience, variables=variables,
    )  # fmt: skip
    began = time.monotonic()
    history = Round(setting).run()
    (folder / "history.edn").write_text(edn.text(history))
    if _told(history, f"seed {seed}: {time.monotonic() - began:.0f} s"):
        return 1
    shutil.rmtree(folder)
    return 0


def _told(history: History, name: str) -> int:
    """Print what a history had and what breaks a rule; 1 where anything does."""
    anomalies = check(history)
    verdict = kafka_rules.judge(edn.operations(history), edn.may_repeat(history))
    print(f"{name}, {json.dumps(copies(history))}, {verdict.summary}", flush=True)
    found: dict[str, list[str]] = defaultdict(list)
    for anomaly in anomalies:
        found[anomaly.rule].append(anomaly.text)
    for case, told in verdict.cases.items():
        found[f"Kafka workload, {case}"] += told
    for rule, texts in found.items():
        for text in texts[:SHOWN]:
            print(f"  {rule}: {text}", flush=True)
        if len(texts) > SHOWN:
            print(f"  {rule}: and {len(texts) - SHOWN} more", flush=True)
    return 1 if anomalies or verdict.texts else 0


if __name__ == "__main__":
    sys.exit(main())
