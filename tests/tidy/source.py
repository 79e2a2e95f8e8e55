"""Reading the source tree for the rules: modules, their imports, their functions."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src"


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

    def imports(self) -> Iterator[tuple[int, str, bool]]:
        """Yield (line, absolute module name, only for type checking) of every import."""
        guarded = _type_checking_lines(self.tree)
        for node in ast.walk(self.tree):
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

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        """Yield every function of the module, nested ones too."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node


def _type_checking_lines(tree: ast.Module) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(tree):
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
