"""Making one change in this process: where its functions are imported already, or before.

Law: the files are left alone.
"""

from __future__ import annotations

import ast
import gc
import json
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FunctionType

from tests.mutants.plant import plant_changes
from tests.mutation.changes import Change, changed

VARIABLE = "ROCKETSTREAM_MUTANT"

Key = tuple[str, int, int | None]
Functions = dict[str, dict[Key, list[FunctionType]]]


def functions_of(files: Sequence[Path]) -> Functions:
    """Return every living function of some files, by file and place."""
    wanted = {str(file) for file in files}
    found: Functions = {name: defaultdict(list) for name in wanted}
    gc.unfreeze()  # what was collected is frozen (tests.plugins.collected), and not told of then
    for each in gc.get_objects():
        if isinstance(each, FunctionType) and each.__code__.co_filename in wanted:
            found[each.__code__.co_filename][_key(each.__code__)].append(each)
    gc.freeze()
    return found


def swap(change: Change, file: Path, functions: Functions) -> bool:
    """Give the living functions of a file the code of the change; False when none has changed."""
    tree = changed(file.read_text(encoding="utf-8"), change.number)
    return bool(give_code(tree, file, functions))


def give_code(tree: ast.Module, file: Path, functions: Functions) -> list[FunctionType]:
    """Give the living functions of a file the code of another tree; return those that changed."""
    given = []
    for code in _codes(compile(tree, str(file), "exec", dont_inherit=True)):
        for function in functions[str(file)].get(_key(code), ()):
            fits = len(code.co_freevars) == len(function.__code__.co_freevars)
            if fits and function.__code__ != code:
                function.__code__ = code
                given.append(function)
    return given


def _codes(code: CodeType) -> list[CodeType]:
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return inner + [each for child in inner for each in _codes(child)]


def _key(code: CodeType) -> Key:
    # Two lambdas may stand on one line, with one name: the column tells them apart.
    column = min((at[2] for at in code.co_positions() if at[2] is not None), default=None)
    return code.co_qualname, code.co_firstlineno, column if "<" in code.co_name else None


def plant(module: str, number: int) -> None:
    """Have every import from now on see the change.

    Raises:
        RuntimeError: the module was imported before.
    """
    plant_changes(
        {module: lambda source: changed(source, number)}, late="was imported before it was changed"
    )


def pytest_load_initial_conftests() -> None:
    """Nothing: pytest takes this module for a plugin (`-p`) for what its import does."""


if VARIABLE in os.environ:
    plant(*json.loads(os.environ.pop(VARIABLE)))
