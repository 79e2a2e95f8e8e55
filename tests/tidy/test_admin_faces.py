"""Every operation of ``Admin`` is in its asyncio face, with its signature and docstring."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from rocketstream.admin import Admin, aio
from rocketstream.admin.service import Operation
from tests.tidy.source import of_each

ASKED = Admin("127.0.0.1:1")
SERVICES = sorted(name for name in dir(Admin) if not name.startswith("_") and name != "close")
OPERATIONS = [
    (noun, name)
    for noun in SERVICES
    for name in dir(type(getattr(ASKED, noun)))
    if not name.startswith("_")
]


def _declared(service: type, name: str) -> Any:
    return next(vars(each)[name] for each in service.__mro__ if name in vars(each))


@of_each([f"{noun}.{name}" for noun, name in OPERATIONS])
def test_an_operation_can_be_awaited_too(operation: str) -> None:
    noun, name = operation.split(".")
    service = type(getattr(ASKED, noun))
    assert isinstance(_declared(service, name), Operation), (
        f"mark {operation} as @question, or as @change if it changes something at brokers"
    )
    mine, awaited = getattr(service, name), getattr(getattr(aio, service.__name__), name)
    assert inspect.iscoroutinefunction(awaited)
    assert inspect.signature(awaited) == inspect.signature(mine)
    assert inspect.getdoc(awaited) == inspect.getdoc(mine) is not None


def test_both_have_the_same_services() -> None:
    """The face adds no operation of its own."""

    async def services() -> list[str]:
        async with aio.Admin("127.0.0.1:1") as admin:
            return sorted(name for name in dir(admin) if not name.startswith("_"))

    assert asyncio.run(services()) == sorted([*SERVICES, "close"])


def test_both_are_made_alike() -> None:
    assert inspect.signature(aio.Admin.__init__) == inspect.signature(Admin.__init__)
