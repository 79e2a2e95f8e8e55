"""The user's name and directories, and a substitute where there is none, as in containers."""

from __future__ import annotations

import getpass
import os
from pathlib import Path

from rocketstream.errors import ConfigurationError


def home_directory() -> Path:
    """Return the user's home directory.

    Raises:
        ConfigurationError: HOME is not set, and the system knows none of this user.
    """
    return expanded(Path("~"))


def expanded(path: Path) -> Path:
    """Return a path whose leading ``~`` is replaced by the home directory.

    Raises:
        ConfigurationError: there is a ``~`` and no such directory is known.
    """
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise ConfigurationError(
            f"this user has no home directory for {path}; set HOME, or give another path"
        ) from error


def state_directory() -> Path:
    """Return where operators' tools keep their state: ``$XDG_STATE_HOME/rocketstream``, without the
    variable ``~/.local/state/rocketstream``. It may not exist yet.

    A relative XDG_STATE_HOME is ignored, as the specification asks.

    Raises:
        ConfigurationError: this user has no home directory.
    """
    base = os.environ.get("XDG_STATE_HOME", "")
    root = Path(base) if os.path.isabs(base) else home_directory() / ".local" / "state"
    return root / "rocketstream"


def user_name() -> str:
    """Return the user of this process: a name, or ``uid N`` where the system knows none;
    ``unknown`` on Windows where the environment names none.
    """
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # no entry for this uid; or no pwd on Windows
        return f"uid {os.getuid()}" if hasattr(os, "getuid") else "unknown"
