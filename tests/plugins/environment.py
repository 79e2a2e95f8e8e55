"""The environment of a whole run: a state directory of its own, and flags of short-lived JVMs.

Law: sets variables for the whole run, nothing else.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

_ARCHIVES: Final = sorted(Path(sys.prefix, "share", "rocketstream").glob("spark-*.jsa"))
_SHARED: Final = "".join(
    f" -XX:SharedArchiveFile={each} -Xlog:cds=off -Xlog:cds+dynamic=off" for each in _ARCHIVES[-1:]
)
SHORT_LIVED_JVM: Final = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC{_SHARED}"
"""Half the processor time where a session ends before Java's second compiler pays off; and half of
that where ``scripts/shared_classes.py`` has kept Spark's classes."""
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
