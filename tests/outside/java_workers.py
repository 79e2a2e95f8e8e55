"""Java's producer and consumers as workers of a round: one program, compiled for its jars."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

from tests.kits.apache.referee import REFEREES

SOURCE = Path(__file__).parent / "java" / "Outside.java"


def command(folder: Path, version: str = "4.9.7") -> tuple[str, ...]:
    """Compile the program into a folder; return how it is started, but for its arguments.

    Raises:
        RefereeUnavailableError: Maven, a JDK or the network is missing; the text says which.
    """
    referee = replace(REFEREES[version], is_as_shipped=True)
    referee.prepare()
    path = referee.programs[referee.programs.index("-cp") + 1]
    subprocess.run(
        ["javac", "-encoding", "UTF-8", "-cp", path, "-d", str(folder), str(SOURCE)],
        check=True,
        timeout=300,
    )
    logs = "-Drocketmq.client.logUseSlf4j=true"
    small = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m", logs)
    divides = "-Drocketmq.client.rebalance.waitInterval=1000"
    return ("java", *small, divides, "-cp", os.pathsep.join((path, str(folder))), "Outside")
