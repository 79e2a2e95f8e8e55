"""Planting a defect in this process, before the product is imported.

Law: the files are left alone; what is imported differs from them in the texts of one mutant.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType

from tests.mutants.catalogue import Edit, Mutant


class _EditedLoader(importlib.machinery.SourceFileLoader):
    """Compiles a module's source with its edits; never reads or writes byte code."""

    edits: Sequence[Edit] = ()

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        text = edited(Path(path).read_text(encoding="utf-8"), self.edits)
        return compile(text, path, "exec", dont_inherit=True)


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


class _Finder:
    """Finds the modules of one mutant before anybody else does."""

    def __init__(self, mutant: Mutant) -> None:
        self._modules = {edit.module for edit in mutant.edits}
        self._mutant = mutant

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return how an edited module is loaded; None for every other."""
        if name not in self._modules:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.origin is None:
            return None
        loader = _EditedLoader(name, spec.origin)
        loader.edits = [edit for edit in self._mutant.edits if edit.module == name]
        return importlib.util.spec_from_file_location(name, spec.origin, loader=loader)


def plant(mutant: Mutant) -> None:
    """Have every import from now on see the defect.

    Raises:
        RuntimeError: a module of it was imported before.
    """
    early = [edit.module for edit in mutant.edits if edit.module in sys.modules]
    if early:
        raise RuntimeError(f"{', '.join(early)} imported before the defect was planted")
    sys.meta_path.insert(0, _Finder(mutant))


def source_of(module: str) -> str:
    """Return a module's source without importing it."""
    root = Path(__file__).resolve().parents[2] / "src"
    return (root / (module.replace(".", "/") + ".py")).read_text(encoding="utf-8")
