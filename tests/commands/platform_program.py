"""Runs commands of the command line where what Windows lacks is taken away.

Law: run as a program of its own; what it removes is gone for the whole process.
"""

from __future__ import annotations

import importlib
import sys

from tests.kits.platform_program import take_away

FOREIGN = ("click", "rich.console", "rich.table")
"""Packages that know Windows themselves, and would ask this system for it."""


def main(address: str) -> None:
    """Change something, which is noted with the user's name; send, consume, and look at it."""
    import asyncio  # needs some of it itself on this system, so it comes first
    import multiprocessing
    import subprocess
    import tempfile

    assert all((asyncio, multiprocessing, subprocess, tempfile))
    asyncio.new_event_loop().close()  # 3.14 asks for the system only when the first is made
    for name in FOREIGN:
        importlib.import_module(name)
    take_away("win32")
    from rocketstream.cli.main import main as command

    for words in (
        "topic create Platform --queues 1",
        "send Platform hello",
        "consume Platform --group g --from earliest --max 1",
        "group list",
    ):
        sys.argv = ["rocketstream", "--namesrv", address, *words.split()]
        if code := command():
            sys.exit(code)


if __name__ == "__main__":
    main(sys.argv[1])
