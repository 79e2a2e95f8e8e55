"""Servers that many test files share: started when first asked for, ended with the worker.

Law: knows pytest, nothing of the project. A session fixture with parameters is ended whenever
another parameter's turn comes, which is twice a file; starting Apache's servers costs ten seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Final, TypeVar

T = TypeVar("T")

_open: Final = ExitStack()
_kept: Final[dict[Hashable, Any]] = {}
_failed: Final[set[Hashable]] = set()


def kept(key: Hashable, make: Callable[[], AbstractContextManager[T]]) -> T:
    """Return what ``make`` gave for this key first, entered then and left at the worker's end.

    What could not be started is not tried again: each test that needs it fails at once.
    """
    if key in _failed:
        raise RuntimeError(f"{key} did not start when it was first asked for")
    if key not in _kept:
        _failed.add(key)  # whatever ends the try, a time-out of the test too
        _kept[key] = _open.enter_context(make())
        _failed.remove(key)
    found: T = _kept[key]
    return found


def pytest_sessionfinish() -> None:
    """Leave everything, the newest first."""
    _kept.clear()
    _open.close()
