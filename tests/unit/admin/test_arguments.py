"""Every operation of both faces refuses arguments of another kind before it asks anything."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from rocketstream.admin import Admin, aio
from rocketstream.checks import accepted, arguments_of, fits
from rocketstream.errors import ClientStateError, ConfigurationError

NAMESRV = "127.0.0.1:1"
OPERATIONS = sorted(name for name in dir(Admin) if not name.startswith("_") and name != "close")
WRONG: tuple[Any, ...] = (5, 5.5, True, "x", b"x", None, float("nan"), [5], {5: 5}, object(), int)
FITTING: tuple[Any, ...] = ("x", 5, {}, [])
SEVERAL = [
    ("cluster_state", {"groups": "billing"}),
    ("cluster_state", {"topics": "billing"}),
    ("progress", {"groups": "billing"}),
    ("progress", {"topics": "billing"}),
    ("export", {"groups": "billing"}),
]


def arguments(operation: str) -> list[tuple[str, Any]]:
    """Every argument of an operation with each value that does not fit it."""
    kinds = arguments_of(getattr(Admin, operation))[0]
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
    for each in inspect.signature(getattr(Admin, operation)).parameters.values():
        if each.default is each.empty and each.name not in ("self", name):
            kind = arguments_of(getattr(Admin, operation))[0][each.name]
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
                getattr(admin, operation)(**given)

            async def awaited(given: dict[str, Any] = given) -> None:
                async with aio.Admin(NAMESRV) as theirs:
                    await getattr(theirs, operation)(**given)

            if value == 5:
                with pytest.raises(ConfigurationError, match=f"^{name} must be "):
                    asyncio.run(awaited())
    of_plans = {"change_apply", "reset_apply", "shown", "letters_of_cause", "reset_plan"}
    if operation not in of_plans:
        assert looked_at == {name for name, _ in wrong}


def _others_fit(operation: str, given: dict[str, Any], wrong: str) -> bool:
    kinds = arguments_of(getattr(Admin, operation))[0]
    return all(fits(value, kinds[name]) for name, value in given.items() if name != wrong)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_each_argument_has_a_kind(operation: str) -> None:
    """One that is not annotated would not be looked at."""
    method = getattr(Admin, operation)
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
        getattr(admin, operation)(**given)


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
    for operation in ("topic_list", "cluster_state", "name_servers"):
        with pytest.raises(ClientStateError, match=r"^this Admin is closed; make a new one$"):
            getattr(admin, operation)()
