"""Which lines of an area's modules each test reaches, and what it takes.

Law: what is kept on disk is found again only for the same texts of modules and test.
"""

from __future__ import annotations

import ast
import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.mutation.areas import ROOT
from tests.mutation.swapping import Functions, give_code

KEPT = ROOT / ".mutation"
PROBE = "__reached__"


@dataclass(frozen=True)
class Reach:
    """What a test reached: lines by file, and the processor's seconds it took.

    ``ok`` is False where it failed without any change.
    """

    ok: bool
    seconds: float
    lines: dict[str, frozenset[int]]


class Probes:
    """Notes the statements that run in the functions of some files, in every thread.

    A probe stands before each statement: a trace function, which is told of every call of every
    module, makes a random schedule ten times as long.
    """

    def __init__(self, files: Sequence[str]) -> None:
        self._lines: dict[str, set[int]] = {file: set() for file in files}

    def begin(self) -> None:
        """Forget what was noted."""
        for lines in self._lines.values():
            lines.clear()

    def install(self, functions: Functions) -> None:
        """Note from now on."""
        for file, lines in self._lines.items():
            tree = _probed(Path(file).read_text(encoding="utf-8"))
            for function in give_code(tree, Path(file), functions):
                function.__globals__[PROBE] = lines.add

    def noted(self) -> dict[str, list[int]]:
        """Return the lines of each file whose statement ran."""
        return {file: sorted(lines) for file, lines in self._lines.items() if lines}


def _probed(source: str) -> ast.Module:
    """Return a module's tree with a probe before every statement of its functions."""
    tree = ast.parse(source)
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    functions = [node for node in ast.walk(tree) if isinstance(node, kinds)]
    for node in {inner for function in functions for inner in ast.walk(function)}:
        _put_probes(node)
    return tree


def _put_probes(node: ast.AST) -> None:
    for field, value in ast.iter_fields(node):
        if not isinstance(value, list) or not value or not isinstance(value[0], ast.stmt):
            continue
        probed: list[ast.stmt] = []
        for statement in value:
            if not isinstance(statement, ast.Nonlocal | ast.Global):
                probed.append(_probe(statement.lineno))
            probed.append(statement)
        setattr(node, field, probed)


def _probe(line: int) -> ast.stmt:
    (made,) = ast.parse(f"{PROBE}({line})").body
    for node in ast.walk(made):
        if isinstance(node, ast.expr | ast.stmt):
            node.lineno = node.end_lineno = line
    return made


def record(
    items: Sequence[pytest.Item], files: Sequence[str], functions: Functions, failed: set[str]
) -> str:
    """Run tests and return what each reached, as JSON; ``failed`` gets the names that failed."""
    probes = Probes(files)
    probes.install(functions)
    told = {}
    for index, item in enumerate(items):
        following = items[index + 1] if index + 1 < len(items) else None
        probes.begin()
        # Not by the clock on the wall: on a busy machine fewer tests would be near a change.
        began = time.process_time()
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        took = round(time.process_time() - began, 3)
        told[item.nodeid] = [item.nodeid not in failed, took, probes.noted()]
    return json.dumps(told)


def read(text: str) -> dict[str, Reach]:
    """Return what ``record`` returned as values."""
    return {
        name: Reach(ok, seconds, {file: frozenset(lines) for file, lines in noted.items()})
        for name, (ok, seconds, noted) in json.loads(text).items()
    }


class Kept:
    """What was reached in an earlier run, by test file; an empty directory knows nothing."""

    def __init__(self, files: Sequence[str], directory: Path = KEPT) -> None:
        self._directory = directory
        self._modules = hashlib.sha256()
        for file in files:
            self._modules.update(Path(file).read_bytes())

    def find(self, test_file: Path) -> str | None:
        """Return what ``keep`` was given for this text of the test and of the modules."""
        place = self._place(test_file)
        return place.read_text(encoding="utf-8") if place.exists() else None

    def keep(self, test_file: Path, text: str) -> None:
        """Keep it."""
        self._directory.mkdir(exist_ok=True)
        self._place(test_file).write_text(text, encoding="utf-8")

    def _place(self, test_file: Path) -> Path:
        digest = self._modules.copy()
        digest.update(test_file.read_bytes())
        return self._directory / f"{test_file.stem}-{digest.hexdigest()[:24]}.json"
