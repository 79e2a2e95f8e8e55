"""Fixtures: the cluster a case runs against, whichever server it is, and the face of its clients.

Law: a backend is a name in ``BACKENDS``; cases ask for ``cluster`` and ``names``. Modules that use
the fixture ``face`` import their clients from ``tests.kits.faces`` and run on both faces, on
asyncio's with the embedded server only.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.kits.apache.referee import REFEREES
from tests.kits.cluster import Cluster, running
from tests.kits.faces import ASYNCIO, ONE_FACE, THREADS, running_on

BACKENDS = ["embedded", *(f"apache-{version}" for version in REFEREES)]

BACKEND_PARAMS = [
    pytest.param(name, marks=[pytest.mark.interop] if name.startswith("apache") else [])
    for name in BACKENDS
]

_numbers = itertools.count(1)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make two cases of each that uses a face; those that ``ONE_FACE`` names run once."""
    uses = metafunc.definition.iter_markers("usefixtures")
    if not any("face" in mark.args for mark in uses):
        return
    name = f"{metafunc.module.__name__.rpartition('.')[2]}.{metafunc.function.__name__}"
    if name not in ONE_FACE:
        metafunc.parametrize("face", [THREADS, ASYNCIO], indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave Apache's servers to the clients for threads: what differs is on our side."""
    left = [item for item in items if is_left_out(item)]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if not is_left_out(item)]


def is_left_out(item: pytest.Item) -> bool:
    """Whether this is a case of the asyncio face with Apache's servers."""
    face = getattr(item, "callspec", None) and item.callspec.params.get("face")  # type: ignore[attr-defined]
    return face == ASYNCIO and item.get_closest_marker("interop") is not None


@pytest.fixture
def face(request: pytest.FixtureRequest) -> Iterator[str]:
    """Return the name of the face whose clients ``faces`` makes in this case."""
    name: str = getattr(request, "param", THREADS)
    with running_on(name):
        yield name


@pytest.fixture(scope="session", params=BACKEND_PARAMS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """Return a running cluster, shared by all cases: each uses names of its own."""
    return running(request.param, tmp_path_factory)


@dataclass(frozen=True)
class Names:
    """Names nobody else uses."""

    topic: str
    group: str


@pytest.fixture
def names() -> Names:
    """Return a topic and a group for one case; the topic does not exist yet."""
    number = next(_numbers)
    return Names(f"Topic{number}", f"group{number}")


@pytest.fixture
def closed_port() -> Iterator[int]:
    """Return a loopback port that refuses connections: bound, never listening."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]
