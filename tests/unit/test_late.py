"""Dataclasses made late are dataclasses: what ``dataclasses`` makes at once is the referee."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
import pickle
import pkgutil
import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Any, ClassVar

import pytest

import rocketstream
from rocketstream import late
from rocketstream.protocol.bodies.base import Body
from rocketstream.protocol.headers.base import Header

METHODS = ("__init__", "__repr__", "__eq__", "__match_args__", "__dataclass_fields__")
MADE_EAGERLY: Callable[..., Any] = dataclasses.dataclass
MADE_LATE: Callable[..., Any] = late.dataclass
SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"slots": True},
    {"frozen": True, "slots": True},
    {"frozen": True, "slots": True, "order": True},
    {"frozen": True, "kw_only": True, "slots": True},
    {"eq": False, "slots": True},
    {"frozen": True, "repr": False},
)


@late.dataclass(frozen=True, slots=True)
class Frozen:
    """At the top of a module, so that pickle finds it."""

    topic: str
    queues: tuple[int, ...] = ()


def pair(settings: dict[str, Any]) -> tuple[Any, Any]:
    """The same class, made late and made at once."""

    def declared(make: Callable[..., Any]) -> Any:
        @make(**settings)
        class Row:
            topic: str
            queue: int = 3
            tags: list[str] = dataclasses.field(default_factory=list, compare=False)
            secret: str = dataclasses.field(default="s", repr=False, kw_only=True)
            kind: ClassVar[str] = "row"

            def __post_init__(self) -> None:
                if self.queue < 0:
                    raise ValueError("queue")

        return Row

    return declared(MADE_LATE), declared(MADE_EAGERLY)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_class_made_late_is_what_dataclasses_makes(settings: dict[str, Any]) -> None:
    made, referee = pair(settings)
    words = {"topic": "t", "queue": 1, "secret": "x"}
    ours, theirs = made(**words), referee(**words)
    assert inspect.signature(made) == inspect.signature(referee)
    assert (repr(ours) == repr(theirs)) == settings.get("repr", True)
    assert made.__match_args__ == referee.__match_args__
    assert dataclasses.asdict(ours) == dataclasses.asdict(theirs)
    assert isinstance(ours, Hashable) == isinstance(theirs, Hashable)
    assert hasattr(ours, "__dict__") == hasattr(theirs, "__dict__")
    assert hasattr(made, "tags") == hasattr(referee, "tags")
    assert getattr(made, "queue", None) == 3 or "slots" in settings
    assert made.kind == "row"
    assert (ours == made(**words)) == (theirs == referee(**words))
    assert dataclasses.replace(ours, queue=7).queue == 7
    with pytest.raises(ValueError, match="queue"):
        made(topic="t", queue=-1)
    if settings.get("order"):
        assert made("a", 2) < made("a", 3) >= made("a", 3)
    if settings.get("frozen"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            ours.queue = 1
        with pytest.raises(dataclasses.FrozenInstanceError):
            del ours.queue
    else:
        ours.queue = 9
        assert ours.queue == 9


@pytest.mark.parametrize("first", METHODS)
def test_whatever_is_used_first_makes_all(first: str) -> None:
    made, _ = pair({"slots": True})
    assert all(isinstance(made.__dict__[name], late.Attribute) for name in METHODS)
    getattr(made, first)
    assert not any(isinstance(made.__dict__[name], late.Attribute) for name in METHODS)


def test_values_of_it_are_pickled_and_copied() -> None:
    value = Frozen("t", (1, 2))
    assert pickle.loads(pickle.dumps(value)) == value  # noqa: S301 - its own bytes
    assert copy.deepcopy(value) == value
    assert hash(copy.copy(value)) == hash(value)


@pytest.mark.parametrize("derive", [MADE_LATE, MADE_EAGERLY], ids=["late", "at once"])
def test_a_subclass_has_the_fields_of_its_base(derive: Callable[..., Any]) -> None:
    base, _ = pair({"slots": True})

    @derive(slots=True)
    class More(base):  # type: ignore[misc, valid-type]
        broker: str = "b"

    assert repr(More("t", broker="c")).endswith("More(topic='t', queue=3, tags=[], broker='c')")
    assert More.__slots__ == ("broker",)


def test_a_class_below_it_calls_its_init() -> None:
    base, _ = pair({})

    class Below(base):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__("below")

    assert Below().topic == "below"


def test_own_methods_stay() -> None:
    @late.dataclass(frozen=True, slots=True)
    class Own:
        topic: str

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Own)

        def __hash__(self) -> int:
            return 7

        def __repr__(self) -> str:
            return "own"

    assert Own("a") == Own("b")
    assert (hash(Own("a")), repr(Own("a"))) == (7, "own")


def test_threads_that_use_a_class_first_at_once_all_get_what_they_asked_for() -> None:
    for _ in range(50):
        made, _ = pair({"frozen": True, "slots": True})
        start = threading.Barrier(4)
        found: list[Any] = []

        def use(made: Any = made, start: Any = start, found: list[Any] = found) -> None:
            start.wait()
            found.append(made("t", 1))

        threads = [threading.Thread(target=use) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [made("t", 1)] * 4


def made_late() -> Iterator[type]:
    """Every class of ours in the modules that have such classes."""
    for room in ("admin", "cli", "client", "protocol", "transport"):
        package = importlib.import_module(f"rocketstream.{room}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            try:
                members = vars(importlib.import_module(module.name))
            except ModuleNotFoundError as error:
                # A package that this Python has not, such as opentelemetry or click.
                if (error.name or "").startswith("rocketstream"):
                    raise
                continue
            for value in members.values():
                if isinstance(value, type) and value.__module__ == module.name:
                    yield value


def test_every_class_of_ours_can_be_made() -> None:
    """A mistake in a declaration is found here, and not by the first who uses the class."""
    assert rocketstream.__path__
    classes = set(made_late())
    for each in classes:
        if dataclasses.is_dataclass(each):
            assert inspect.signature(each)
        if issubclass(each, Header):
            assert isinstance(each.header_fields, tuple)
        if issubclass(each, Body):
            assert isinstance(each.body_fields, tuple)
    assert sum(dataclasses.is_dataclass(each) for each in classes) > 200
