"""Every operation of ``Admin`` is in its asyncio face, with its signature and docstring."""

from __future__ import annotations

import inspect

from rocketstream.admin import Admin, aio
from tests.tidy.source import of_each

OPERATIONS = sorted(name for name in dir(Admin) if not name.startswith("_"))


@of_each(OPERATIONS)
def test_an_operation_can_be_awaited_too(name: str) -> None:
    there = getattr(aio.Admin, name, None)
    assert there is not None, (
        f"add one line to src/rocketstream/admin/aio.py: {name} = _asks(_Admin.{name}), or "
        f"_changes(_Admin.{name}) if it changes something at brokers"
    )
    assert inspect.iscoroutinefunction(inspect.unwrap(there, stop=inspect.iscoroutinefunction))
    if name != "close":
        assert inspect.signature(there) == inspect.signature(getattr(Admin, name))
        assert inspect.getdoc(there) == inspect.getdoc(getattr(Admin, name))


def test_nothing_else_can_be_awaited() -> None:
    """The face adds no operation of its own."""
    assert sorted(name for name in dir(aio.Admin) if not name.startswith("_")) == OPERATIONS


def test_both_are_made_alike() -> None:
    assert inspect.signature(aio.Admin.__init__) == inspect.signature(Admin.__init__)
