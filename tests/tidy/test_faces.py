"""Every behaviour is tested on both faces, or named with the reason why it is not."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Collection, Iterator

import pytest

import rocketstream
from rocketstream import aio
from tests.kits.faces import CLIENTS, ONE_FACE
from tests.tidy.source import ROOT, of_each

MODULES = {
    path.stem: ast.parse(text)
    for path in (ROOT / "tests").rglob("test_*.py")
    if 'usefixtures("face")' in (text := path.read_text("utf-8"))
}
"""Modules whose cases run on both faces."""

CASES = {
    f"{name}.{part.name}"
    for name, tree in MODULES.items()
    for part in tree.body
    if isinstance(part, ast.FunctionDef) and part.name.startswith("test_")
}
"""``module.test`` of every behaviour test."""


def strays(tree: ast.Module, once: Collection[str]) -> Iterator[str]:
    """Yield what takes a client from elsewhere than ``faces``, outside the tests that run once."""
    for part in tree.body:
        if getattr(part, "name", None) in once:
            continue
        for node in ast.walk(part):
            if isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("tests."):
                for alias in node.names:
                    if alias.name in CLIENTS:
                        yield f"line {node.lineno} imports {alias.name} of {node.module}"
            elif (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id in ("aio", "rocketstream")
                and node.func.attr in CLIENTS
            ):
                yield f"line {node.lineno} makes {node.func.value.id}.{node.func.attr}"


def test_every_exception_names_a_test_and_says_why() -> None:
    assert set(ONE_FACE) <= CASES
    assert all(len(reason.split()) > 4 for reason in ONE_FACE.values())


@of_each(list(MODULES))
def test_clients_of_cases_are_those_of_their_face(name: str) -> None:
    """What is made of another class would be tested twice on one face."""
    own = {case.partition(".")[2] for case in CASES if case.startswith(f"{name}.")}
    once = {case.partition(".")[2] for case in ONE_FACE if case.startswith(f"{name}.")}
    if own != once:
        assert list(strays(MODULES[name], once)) == []


@pytest.mark.parametrize(
    "text",
    [
        "from rocketstream import Message, Producer",
        "from rocketstream.aio import PushConsumer as AsyncPushConsumer",
        "def test_b():\n    with rocketstream.Producer('g'): pass",
        "async def helper():\n    async with aio.Producer('g'): pass",
    ],
)
def test_a_client_from_elsewhere_is_found(text: str) -> None:
    assert list(strays(ast.parse(text), ["test_a"])) != []


def test_a_test_that_runs_once_may_make_what_it_likes() -> None:
    text = "def test_a():\n    aio.Producer('g')\nfrom tests.kits.faces import Producer"
    assert list(strays(ast.parse(text), ["test_a"])) == []


@of_each(sorted({*CLIENTS, "LitePushConsumer"}))
def test_no_coroutine_of_both_faces_awaits_another_of_them(client: str) -> None:
    """On threads it runs on the client's loop, where such a call would wait for itself."""
    sync, waits = getattr(rocketstream, client), getattr(aio, client)
    coroutines = {
        name
        for name, _ in inspect.getmembers(waits, inspect.iscoroutinefunction)
        if hasattr(getattr(sync, name, None), "__wrapped__")
    }
    assert coroutines
    for name in coroutines:
        body = inspect.getsource(inspect.unwrap(getattr(waits, name)))
        assert not coroutines & set(re.findall(r"self\.(\w+)\(", body)), name
