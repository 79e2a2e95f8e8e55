"""Planting a defect in this process, before the product is imported.

Law: the files are left alone; only what is imported differs from them.
"""

from __future__ import annotations

import ast
import functools
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import CodeType, ModuleType

from tests.mutants.mutant import Edit, Mutant

# From a module's source to what is compiled instead of it.
Rewrite = Callable[[str], str | ast.Module]


class _RewritingLoader(importlib.machinery.SourceFileLoader):
    """Compiles a module's source rewritten; never reads or writes byte code."""

    rewrite: Rewrite

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        source = self.rewrite(Path(path).read_text(encoding="utf-8"))
        return compile(source, path, "exec", dont_inherit=True)


class _Finder:
    """Finds the changed modules before anybody else does."""

    def __init__(self, changes: Mapping[str, Rewrite]) -> None:
        self._changes = changes

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return how a changed module is loaded; None for every other."""
        if name not in self._changes:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.origin is None:
            return None
        loader = _RewritingLoader(name, spec.origin)
        loader.rewrite = self._changes[name]
        return importlib.util.spec_from_file_location(name, spec.origin, loader=loader)


def plant_changes(
    changes: Mapping[str, Rewrite], late: str = "imported before the defect was planted"
) -> None:
    """Have every import from now on of the modules named see their source rewritten.

    Raises:
        RuntimeError: some were imported before; ``late`` says so after their names.
    """
    if early := [module for module in changes if module in sys.modules]:
        raise RuntimeError(f"{', '.join(early)} {late}")
    sys.meta_path.insert(0, _Finder(changes))


def edited(text: str, edits: Sequence[Edit]) -> str:
    """Return a source with its edits.

    Raises:
        ValueError: a text does not stand exactly once in it.
    """
    for edit in edits:
        if text.count(edit.old) != 1:
            raise ValueError(
                f"{edit.module} has {text.count(edit.old)} times {edit.old!r}; "
                "give the mutant a text that stands there once"
            )
        text = text.replace(edit.old, edit.new)
    return text


def plant(mutant: Mutant) -> None:
    """Have every import from now on see the defect.

    Raises:
        RuntimeError: a module of it was imported before.
    """
    by_module: dict[str, list[Edit]] = {}
    for edit in mutant.edits:
        by_module.setdefault(edit.module, []).append(edit)
    plant_changes(
        {name: functools.partial(edited, edits=edits) for name, edits in by_module.items()}
    )


def source_of(module: str) -> str:
    """Return a module's source without importing it."""
    root = Path(__file__).resolve().parents[2] / "src"
    return (root / (module.replace(".", "/") + ".py")).read_text(encoding="utf-8")
