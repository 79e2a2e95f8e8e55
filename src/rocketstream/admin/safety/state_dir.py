"""The directory on this machine where operators' tools keep their state between runs.

Law: names a directory, creates nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

from rocketstream._util.home import home_directory


def state_directory() -> Path:
    """Return ``$XDG_STATE_HOME/rocketstream``; ``~/.local/state/rocketstream`` without it.

    A relative XDG_STATE_HOME is ignored, as the specification asks.

    Raises:
        ConfigurationError: this user has no home directory.
    """
    base = os.environ.get("XDG_STATE_HOME", "")
    root = Path(base) if os.path.isabs(base) else home_directory() / ".local" / "state"
    return root / "rocketstream"
