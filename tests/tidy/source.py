"""Reading the source tree for the rules: modules, their imports, their functions."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src"

T = TypeVar("T")


@dataclass(frozen=True)
class Module:
    """One parsed Python file."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def place(self) -> str:
        """Path relative to the repository, for messages."""
        return str(self.path.relative_to(ROOT))

    @functools.cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node, those around others first: each rule looks through them, so they are kept."""
        return tuple(ast.walk(self.tree))

    @functools.cached_property
    def imports(self) -> tuple[tuple[int, str, bool], ...]:
        """Every import: its line, the absolute name, and whether only type checkers see it."""
        return tuple(self._imports())

    def _imports(self) -> Iterator[tuple[int, str, bool]]:
        guarded = _type_checking_lines(self.nodes)
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield node.lineno, alias.name, node.lineno in guarded
            elif isinstance(node, ast.ImportFrom):
                base = self._absolute(node)
                yield node.lineno, base, node.lineno in guarded
                for alias in node.names:
                    yield node.lineno, f"{base}.{alias.name}", node.lineno in guarded

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        if self.path.name != "__init__.py":
            parts = parts[:-1]
        parts = parts[: len(parts) - node.level + 1]
        return ".".join([*parts, node.module] if node.module else parts)


def _type_checking_lines(nodes: tuple[ast.AST, ...]) -> set[int]:
    lines: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for child in ast.walk(node):
                if hasattr(child, "lineno"):
                    lines.add(child.lineno)
    return lines


def _module_name(path: Path) -> str:
    parts = list(path.relative_to(SRC).with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts)


@functools.cache
def modules() -> tuple[Module, ...]:
    """Return every module of the shipped packages."""
    found = []
    for path in sorted(SRC.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        found.append(Module(_module_name(path), path, text, ast.parse(text)))
    return tuple(found)


@functools.cache
def python_files() -> tuple[Path, ...]:
    """Return every Python file we keep: shipped code, tests, benchmarks, examples, demo."""
    folders = ("src", "tests", "benchmarks", "examples", "demo", "scripts")
    return tuple(sorted(p for f in folders for p in (ROOT / f).rglob("*.py")))


def of_each(found: Sequence[T]) -> Callable[[Callable[[T], None]], Callable[[], None]]:
    """Make one test of a check of one thing: it checks each of them, and tells of all that fail.

    A test of its own for each module would be thousands, which cost more to run than to check.
    """

    def test_of(check: Callable[[T], None]) -> Callable[[], None]:
        def run() -> None:
            wrong = []
            for each in found:
                try:
                    check(each)
                except AssertionError as failure:
                    wrong.append(
                        f"{getattr(each, '__name__', getattr(each, 'name', each))}: {failure}"
                    )
            assert found, "nothing to check was found"
            assert not wrong, "\n".join(wrong)

        run.__name__, run.__doc__, run.__module__ = check.__name__, check.__doc__, check.__module__
        return run

    return test_of
