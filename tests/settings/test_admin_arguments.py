"""Every operation of both faces refuses arguments of another kind before it asks anything."""

from __future__ import annotations

import asyncio
import inspect
from operator import attrgetter
from typing import Any

import pytest

from rocketstream.admin import Admin, aio, cluster
from rocketstream.admin.changes.service import Changes
from rocketstream.admin.groups import Groups
from rocketstream.admin.letters.service import Letters
from rocketstream.admin.messages.service import Messages
from rocketstream.admin.topics import Topics
from rocketstream.checks import accepted, arguments_of, fits
from rocketstream.errors import ClientStateError, ConfigurationError

NAMESRV = "127.0.0.1:1"
SERVICES: dict[str, type] = {
    "brokers": cluster.Brokers,
    "changes": Changes,
    "cluster": cluster.Cluster,
    "groups": Groups,
    "letters": Letters,
    "messages": Messages,
    "producers": cluster.Producers,
    "topics": Topics,
}
OPERATIONS = sorted(
    f"{noun}.{name}"
    for noun, service in SERVICES.items()
    for name in dir(service)
    if not name.startswith("_")
)
WRONG: tuple[Any, ...] = (5, 5.5, True, "x", b"x", None, float("nan"), [5], {5: 5}, object(), int)
FITTING: tuple[Any, ...] = ("x", 5, {}, [])
SEVERAL = [
    ("cluster.state", {"groups": "billing"}),
    ("cluster.state", {"topics": "billing"}),
    ("groups.progress", {"groups": "billing"}),
    ("groups.progress", {"topics": "billing"}),
    ("changes.export", {"groups": "billing"}),
]


def method_of(operation: str) -> Any:
    noun, name = operation.split(".")
    return getattr(SERVICES[noun], name)


def arguments(operation: str) -> list[tuple[str, Any]]:
    """Every argument of an operation with each value that does not fit it."""
    kinds = arguments_of(method_of(operation))[0]
    return [
        (name, value)
        for name, kind in kinds.items()
        if name != "clock"
        for value in WRONG
        if not fits(value, kind)
    ]


def call_with(operation: str, name: str, value: Any) -> dict[str, Any]:
    """Arguments of which only one is wrong; the others fit."""
    given: dict[str, Any] = {}
    for each in inspect.signature(method_of(operation)).parameters.values():
        if each.default is each.empty and each.name not in ("self", name):
            kind = arguments_of(method_of(operation))[0][each.name]
            given[each.name] = next((one for one in FITTING if fits(one, kind)), None)
    return {**given, name: value}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_argument_of_another_kind_is_refused(operation: str) -> None:
    """With its name, in both faces, and nobody is asked."""
    looked_at = set()
    wrong = arguments(operation)
    with Admin(NAMESRV) as admin:
        for name, value in wrong:
            given = call_with(operation, name, value)
            if not _others_fit(operation, given, name):
                continue
            looked_at.add(name)
            with pytest.raises(ConfigurationError, match=f"^{name} must be "):
                attrgetter(operation)(admin)(**given)

            async def awaited(given: dict[str, Any] = given) -> None:
                async with aio.Admin(NAMESRV) as theirs:
                    await attrgetter(operation)(theirs)(**given)

            if value == 5:
                with pytest.raises(ConfigurationError, match=f"^{name} must be "):
                    asyncio.run(awaited())
    of_plans = {
        "changes.apply",
        "changes.reset_apply",
        "changes.reset_plan",
        "letters.of_cause",
        "messages.shown",
    }
    if operation not in of_plans:
        assert looked_at == {name for name, _ in wrong}


def _others_fit(operation: str, given: dict[str, Any], wrong: str) -> bool:
    kinds = arguments_of(method_of(operation))[0]
    return all(fits(value, kinds[name]) for name, value in given.items() if name != wrong)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_each_argument_has_a_kind(operation: str) -> None:
    """One that is not annotated would not be looked at."""
    method = method_of(operation)
    assert set(arguments_of(method)[0]) == set(inspect.signature(method).parameters) - {"self"}
    words = {name: accepted(kind) for name, kind in arguments_of(method)[0].items()}
    assert "anything" not in words.values(), words


@pytest.mark.parametrize(("operation", "given"), SEVERAL)
def test_one_name_for_several_is_told_how_to_give_it(operation: str, given: Any) -> None:
    """Its letters would be asked for otherwise, and nothing found."""
    with (
        Admin(NAMESRV) as admin,
        pytest.raises(ConfigurationError, match=r"not 'billing': give \['billing'\]$"),
    ):
        attrgetter(operation)(admin)(**given)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("namesrv_addr", 5),
        ("timeout_ms", 0),
        ("timeout_ms", "x"),
        ("connect_timeout_ms", -1),
        ("connect_timeout_ms", 1.5),
        ("ssl_context", True),
        ("audit", "audit.log"),
        ("read_only", "no"),
        ("masking", {}),
        ("access_key", 5),
    ],
)
@pytest.mark.parametrize("face", [Admin, aio.Admin])
def test_a_setting_that_cannot_be_used_is_refused(face: Any, name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"^{name} must be "):
        face(**{"namesrv_addr": NAMESRV, name: value})


def test_a_closed_admin_says_so() -> None:
    """Whatever is asked of it, as its asyncio face does."""
    admin = Admin(NAMESRV)
    admin.close()
    admin.close()
    for operation in ("topics.all", "cluster.state", "cluster.name_servers"):
        with pytest.raises(ClientStateError, match=r"^this Admin is closed; make a new one$"):
            attrgetter(operation)(admin)()
