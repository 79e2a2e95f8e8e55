"""Fixtures of the behaviour suite: the same cases against every backend.

Law: a backend is one line in ``BACKENDS``; cases ask for ``cluster`` and ``names``.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.behaviour.cluster import Cluster, apache, embedded
from tests.interop.referee import REFEREES

BACKENDS: dict[str, Callable[[Path], AbstractContextManager[Cluster]]] = {
    "embedded": embedded,
    **{f"apache-{version}": partial(apache, version) for version in REFEREES},
}

BACKEND_PARAMS = [
    pytest.param(name, marks=[pytest.mark.interop] if name.startswith("apache") else [])
    for name in BACKENDS
]

_numbers = itertools.count(1)


@pytest.fixture(scope="session", params=BACKEND_PARAMS)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Return a running cluster, shared by all cases: each uses names of its own."""
    with BACKENDS[request.param](tmp_path_factory.mktemp(request.param)) as running:
        yield running


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
