"""Where what the operators' tools keep between runs lives on this machine.

Law: names a directory, makes nothing.
"""

from __future__ import annotations

import os
from pathlib import Path


def state_directory() -> Path:
    """Return ``$XDG_STATE_HOME/rocketstream``; ``~/.local/state/rocketstream`` without it.

    A relative XDG_STATE_HOME is ignored, as the specification asks.
    """
    base = os.environ.get("XDG_STATE_HOME", "")
    root = Path(base) if os.path.isabs(base) else Path.home() / ".local" / "state"
    return root / "rocketstream"
