"""An S3 server in memory, moto's; prints its port and ends with its input.

Law: runs on packages of its own (``tests/landing/lakes.py``), so it imports nothing of ours.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any


def main() -> None:
    """Serve until the input ends."""
    server: Any = import_module("moto.server").ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    print(server.get_host_and_port()[1], flush=True)
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    main()
