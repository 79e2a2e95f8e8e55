"""The package of these rounds, made once for all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.outside.installed import unpack


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of an unpacked wheel."""
    return unpack(tmp_path_factory.mktemp("wheel"))
