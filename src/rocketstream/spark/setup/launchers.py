"""Small shell scripts in place of a program that cannot be given to Spark as it is.

Law: writes only into the folders it names.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from rocketstream.errors import ConfigurationError

MARK = "made-by-rocketstream"
"""Name of an empty file in every folder made here."""


def launcher(
    program: str,
    text: str,
    *,
    like: Path | None = None,
    fits: Callable[[Path], bool] = lambda place: True,
) -> Path:
    """Return a folder whose ``bin/PROGRAM`` is the script ``text``; makes it if it does not exist.

    The folder is in the virtual environment, the user's cache or the temporary folder: the first of
    them that can be written and run from. Its name follows from the text.

    Parameters
    ----------
    program : str
        Name of the script.
    text : str
        The script.
    like : Path, optional
        A folder whose other entries the new one links to.
    fits : callable, optional
        Returns whether a folder may be used.

    Raises
    ------
    ConfigurationError
        No folder can be used.
    """
    name = f"{program}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    trouble = []
    for place in _places():
        script = place / name / "bin" / program
        try:
            if not fits(place):
                raise OSError(f"{place} is not a name that can be used")
            place.mkdir(mode=0o755, parents=True, exist_ok=True)
            if place.stat().st_uid not in (os.getuid(), 0):
                raise PermissionError(f"{place} belongs to another user")
            if not os.access(script, os.X_OK):
                _make(place, place / name, program, text, like)
            if os.access(script, os.X_OK):
                return place / name
            trouble.append(f"programs in {place} cannot be run")
        except OSError as error:
            trouble.append(str(error))
    raise ConfigurationError(
        f"cannot make a launcher for {program}: {'; '.join(trouble)}. Set XDG_CACHE_HOME to a "
        "folder of yours that can be written"
    )


def _places() -> Iterator[Path]:
    if sys.prefix != sys.base_prefix:
        yield Path(sys.prefix, "share", "rocketstream")
    cache = os.environ.get("XDG_CACHE_HOME")
    try:
        yield Path(cache) / "rocketstream" if cache else Path.home() / ".cache" / "rocketstream"
    except RuntimeError:
        pass  # a user without a home
    yield Path(tempfile.gettempdir(), f"rocketstream-{os.getuid()}")


def _make(place: Path, target: Path, program: str, text: str, like: Path | None) -> None:
    """Make the folder under another name first, so that nobody sees it incomplete."""
    draft = Path(tempfile.mkdtemp(dir=place, prefix="new-"))
    try:
        (draft / "bin").mkdir()
        if like is not None:
            for entry in like.iterdir():
                if entry.name != "bin":
                    (draft / entry.name).symlink_to(entry)
            for entry in (like / "bin").iterdir():
                if entry.name != program:
                    (draft / "bin" / entry.name).symlink_to(entry)
        (draft / MARK).touch()
        script = draft / "bin" / program
        script.write_text(text, encoding="utf-8")
        script.chmod(0o755)
        draft.chmod(0o755)
        try:
            draft.rename(target)
        except OSError:
            if not (target / "bin" / program).exists():
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
