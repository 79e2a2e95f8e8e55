"""The environment of a whole run: a state directory of its own, and flags of short-lived JVMs.

Law: sets variables for the whole run, nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

import pytest

SHORT_LIVED_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Half the processor time where a session ends before Java's second compiler pays off."""
_SPARKS: Final = ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS", "SPARK_DAEMON_JAVA_OPTS")
"""What Spark's own scripts give to drivers, to the program that starts them, and to daemons."""


@pytest.fixture(scope="session", autouse=True)
def _environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        # No test writes into the user's directory of what tools keep between runs.
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        for name in _SPARKS:
            given = os.environ.get(name, "")
            patch.setenv(name, f"{SHORT_LIVED_JVM} {given}".rstrip())
        yield
