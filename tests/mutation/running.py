"""One area: its tests collected once, then run in a fork for every change; told as JSON.

`python -m tests.mutation.running AREA --sample 100 --seed 1 --out FILE`. Law: a change is noticed
when a test fails, hangs or dies under it; what no test noticed in a fork is tried once more in a
process that imports everything anew, since values made at import do not change in a fork.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.mutation import forks, reached
from tests.mutation.areas import AREAS, ROOT, Area
from tests.mutation.changes import Change, changes_of
from tests.mutation.swapping import VARIABLE, Functions, functions_of, swap

MARKS = "not interop and not long and not versions and not slow and not spark and not wheel"
PLAIN = ("-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "tests.mutation.calm")
# Tests for one change: the quickest that reach it, of so many seconds together.
CHOSEN_SECONDS_MAX = 6.0
RECORDING_SECONDS_MAX = 280.0
SURVIVED, UNREACHED, NOT_RUN = "survived", "not reached", "not run"
# A test that fails by itself notices nothing: it counts as if the change had survived.
UNSURE = "fails without it too"


class Runner:
    """The pytest plugin that runs tests against changes instead of running them once."""

    def __init__(self, area: Area, words: argparse.Namespace) -> None:
        self._area, self._words = area, words
        self._files = dict(area.files())
        self._tables = {f"tests/{place}" for place in area.tables}
        self._failed: set[str] = set()
        self._on_failure: Callable[[str], None] | None = None
        self.told: dict[str, object] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure; under a change it is the answer."""
        if report.failed:
            self._failed.add(report.nodeid)
            if self._on_failure is not None:
                self._on_failure(f"failed {report.nodeid}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Record what tests reach, then run the chosen changes against them."""
        items = {item.nodeid: item for item in session.items}
        # Before their functions are looked for: some are imported when they are first used.
        for module in self._files:
            importlib.import_module(module)
        functions = functions_of(list(self._files.values()))
        reach = self._reach(session.items, functions)
        unfit = sorted(name for name, each in reach.items() if not each.ok)
        chosen = self._changes()
        tests = [
            _nearest(change, self._files[change.module], reach, self._tables) for change in chosen
        ]
        answers = self._answers(chosen, tests, items, reach, functions)
        self.told = {
            "area": self._area.name,
            "unfit": unfit,
            "changes": [
                {**vars(change), "answer": answer, "tests": len(names)}
                for change, names, answer in sorted(
                    zip(chosen, tests, answers, strict=True),
                    key=lambda each: (each[0].module, each[0].number),
                )
                if answer != NOT_RUN
            ],
        }
        return True

    def _changes(self) -> list[Change]:
        every = [
            change
            for module, file in self._files.items()
            for change in changes_of(module, file.read_text(encoding="utf-8"))
            if self._words.only in f"{change.module}:{change.line}"
        ]
        count = min(self._words.sample or len(every), len(every))
        # In no order: what is left undone when the time is over must be a sample too.
        return random.Random(self._words.seed).sample(every, count)

    def _reach(
        self, items: Sequence[pytest.Item], functions: Functions
    ) -> dict[str, reached.Reach]:
        files = sorted(str(file) for file in self._files.values())
        kept = reached.Kept(files)
        by_file: dict[Path, list[pytest.Item]] = {}
        for item in items:
            by_file.setdefault(item.path, []).append(item)
        missing = [path for path in by_file if kept.find(path) is None]

        def job(path: Path) -> forks.Job:
            return forks.Job(
                lambda answer: reached.record(by_file[path], files, functions, self._failed),
                RECORDING_SECONDS_MAX,
            )

        for index, text in forks.run([job(path) for path in missing], self._words.processes):
            if text in (forks.TIMED_OUT, forks.DIED):
                raise RuntimeError(f"{missing[index]}: {text} while its reach was recorded")
            kept.keep(missing[index], text)
        found: dict[str, reached.Reach] = {}
        for path in by_file:
            found |= reached.read(kept.find(path) or "{}")
        return {item.nodeid: found[item.nodeid] for item in items if item.nodeid in found}

    def _answers(
        self,
        chosen: Sequence[Change],
        tests: Sequence[Sequence[str]],
        items: dict[str, pytest.Item],
        reach: dict[str, reached.Reach],
        functions: Functions,
    ) -> list[str]:
        answers = [NOT_RUN if names else UNREACHED for names in tests]

        def job(index: int) -> forks.Job:
            change, names = chosen[index], tests[index]
            limit = 30 + 5 * sum(reach[name].seconds for name in names)
            file = self._files[change.module]
            run = [items[name] for name in names]

            def work(answer: Callable[[str], None]) -> str:
                if not change.at_import:
                    self._run(change, file, functions, run, answer)
                return _run_anew(change, names, limit)

            return forks.Job(work, 3 * limit + 10)

        wanted = [at for at, names in enumerate(tests) if names]
        until = time.monotonic() + 60 * self._words.minutes if self._words.minutes else math.inf
        for index, answer in forks.run([job(at) for at in wanted], self._words.processes, until):
            answers[wanted[index]] = answer
            if answer == SURVIVED:
                change = chosen[wanted[index]]
                # The table comes at the end, which may be an hour away.
                sys.stderr.write(f"{change.module}:{change.line} {change.old} -> {change.new}\n")
        blind = self._blind(
            {answer for answer in answers if answer.startswith("failed tests/")}, items
        )
        return [UNSURE if answer in blind else answer for answer in answers]

    def _blind(self, answers: set[str], items: dict[str, pytest.Item]) -> set[str]:
        """Return those of some answers whose test fails here without any change."""

        def job(name: str) -> forks.Job:
            def work(answer: Callable[[str], None]) -> str:
                self._on_failure = answer
                item = items[name]
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
                return SURVIVED

            return forks.Job(work, 60)

        failing = sorted(answers)
        jobs = [job(answer.removeprefix("failed ")) for answer in failing]
        ended = forks.run(jobs, self._words.processes)
        return {failing[index] for index, answer in ended if answer != SURVIVED}

    def _run(
        self,
        change: Change,
        file: Path,
        functions: Functions,
        items: Sequence[pytest.Item],
        answer: Callable[[str], None],
    ) -> None:
        """Run tests here; a failure is answered, which ends the process."""
        if not swap(change, file, functions):
            return
        self._on_failure = answer
        for index, item in enumerate(items):
            item.add_marker(pytest.mark.timeout(20))
            following = items[index + 1] if index + 1 < len(items) else None
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)


def _run_anew(change: Change, names: Sequence[str], limit: float) -> str:
    """Run tests in a process that imports the changed module; a failure must be the change's."""
    changed = {VARIABLE: json.dumps([change.module, change.number])}
    try:
        failing = _failing(names, changed, limit)
    except subprocess.TimeoutExpired:
        return forks.TIMED_OUT
    if not failing:
        return SURVIVED
    try:
        # That one alone: all of them may take longer than there is time, on a busy machine.
        return UNSURE if _failing(failing, {}, limit) else "failed, imported anew"
    except subprocess.TimeoutExpired:
        return UNSURE


def _failing(names: Sequence[str], variables: dict[str, str], limit: float) -> Sequence[str]:
    """Run tests in a new process until one fails; return it, or all if it does not say which."""
    words = ["-x", *PLAIN, "-rfE", "-p", "tests.mutation.swapping", *names]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=ROOT,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
        timeout=limit,
        check=False,
    )
    return failing_of(names, done.stdout) or names if done.returncode else []


def failing_of(names: Sequence[str], told: str) -> list[str]:
    """Return those of some tests that pytest's summary names as failed."""
    lines = told.splitlines()
    return [
        name
        for name in names
        if any(f"{line} ".startswith((f"FAILED {name} ", f"ERROR {name} ")) for line in lines)
    ]


def _nearest(
    change: Change, file: Path, reach: dict[str, reached.Reach], tables: set[str]
) -> list[str]:
    """Return the tests for a change, by test file: quick ones that reach it."""
    first, last = change.lines
    wanted = range(first, last + 1)
    able = [
        name
        for name, each in reach.items()
        if each.ok and not each.lines.get(str(file), frozenset()).isdisjoint(wanted)
    ]
    reaching = frozenset(able)
    if able and not change.at_import:
        able.sort(key=lambda name: reach[name].seconds)
    else:
        # A test of constants runs no statement of their module, nor of a function that makes them:
        # such a function runs when it is imported, and a lambda it makes has no statement.
        able = [name for name, each in reach.items() if each.ok]
        text = "\n".join(file.read_text(encoding="utf-8").splitlines()[first - 1 : last])
        words = {word for word in re.findall(r"\w{3,}", text) if not word.isdigit()}
        able.sort(
            key=lambda name: (
                name not in reaching,
                name.split("::")[0] not in tables,
                -_mentions(name, words),
                str(file) not in reach[name].lines,
                reach[name].seconds,
            )
        )
    names: list[str] = []
    seconds = 0.0
    for name in able:
        if names and seconds + reach[name].seconds > CHOSEN_SECONDS_MAX:
            break
        names.append(name)
        seconds += reach[name].seconds
    rank = {name.split("::")[0]: at for at, name in reversed(list(enumerate(names)))}
    return sorted(names, key=lambda name: rank[name.split("::")[0]])


_TEXTS: dict[str, frozenset[str]] = {}


def _mentions(name: str, words: set[str]) -> int:
    """Return how many of some words the file of a test has."""
    file = name.split("::")[0]
    if file not in _TEXTS:
        text = (ROOT / file).read_text(encoding="utf-8")
        _TEXTS[file] = frozenset(re.findall(r"\w+", text))
    return len(words & _TEXTS[file])


def main() -> int:
    """Run one area and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("area")
    parser.add_argument("--sample", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--out", type=Path, required=True)
    words = parser.parse_args()
    area = next(area for area in AREAS if area.name == words.area)
    runner = Runner(area, words)
    places = [f"tests/{place}" for place in area.tests]
    code = pytest.main([*PLAIN, "-m", MARKS, *places], plugins=[runner])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) or not runner.told:
        return int(code) or 1
    words.out.write_text(json.dumps(runner.told), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
