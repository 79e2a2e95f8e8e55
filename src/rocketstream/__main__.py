"""``python -m rocketstream`` is the ``rocketstream`` command."""

from __future__ import annotations

import sys

from rocketstream.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
