"""The embedded servers in a process of their own: `python -m tests.kits.serve DIR DELAYS`.

Law: prints the name server's address once clients can connect; ends when its standard input does.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rocketstream.server.embedded import SMALL_STORE, EmbeddedCluster


def main() -> None:
    """Serve until standard input ends."""
    directory, delays = sys.argv[1:]
    with EmbeddedCluster(
        Path(directory),
        delay_levels=delays,
        store_config=SMALL_STORE,
        transaction_timeout_ms=500,
        transaction_check_interval_ms=500,
    ) as cluster:
        sys.stdout.write(cluster.namesrv_addr + "\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
