"""Where a run keeps its files: a fresh directory under ./demo-data, those of dead runs removed.

Law: files only.
"""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from demo.errors import DemoError

BYTES_NEEDED = 3 * 1024**3
_OWNER = "owner.pid"


class PlaceError(DemoError):
    """The demo cannot keep its files here; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Place:
    """The directory of one run."""

    root: Path

    @property
    def store(self) -> Path:
        """The broker's message store."""
        return self.root / "store"

    @property
    def table(self) -> Path:
        """The Parquet table."""
        return self.root / "flights.parquet"

    @property
    def chart(self) -> Path:
        """The picture."""
        return self.root / "departure-delay.png"

    @property
    def checkpoint(self) -> Path:
        """Where Spark keeps how far its listener is."""
        return self.root / "listener.checkpoint"

    def journal(self, group: str) -> Path:
        """Where a group's listener notes what it does; made when it is first asked for."""
        folder = self.root / "journal" / group
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @property
    def spark_log(self) -> Path:
        """What Spark's processes say."""
        return self.root / "spark.log"

    @property
    def client_log(self) -> Path:
        """What the client library says, each refused message included."""
        return self.root / "client.log"

    @property
    def server_log(self) -> Path:
        """What the broker says."""
        return self.root / "server.log"


def fresh_place(base: Path, started: str) -> Place:
    """Make the directory of a run, after removing those whose run has ended.

    Args:
        base: ``./demo-data``.
        started: text for the name, like ``20240501-120000``.

    Raises:
        PlaceError: it cannot be written, or the disk has too little room.
    """
    try:
        base.mkdir(parents=True, exist_ok=True)
        for old in sorted(base.glob("run-*")):
            if old.is_dir() and not _in_use(old):
                shutil.rmtree(old, ignore_errors=True)  # a run that begins now may be at it too
        free = shutil.disk_usage(base).free
        if free < BYTES_NEEDED:
            raise PlaceError(
                f"the disk of {base} has {free / 1024**3:.1f} GiB free and the demo needs about "
                f"{BYTES_NEEDED / 1024**3:.0f}; free some, or give another one: "
                "python -m demo --data DIR"
            )
        root = _new_dir(base, started)
    except OSError as error:
        raise PlaceError(
            f"{error.filename or base}: {error.strerror or error}; give a directory that can be "
            "written: python -m demo --data DIR"
        ) from error
    return Place(root.absolute())


def _new_dir(base: Path, started: str) -> Path:
    """Make a directory that has its owner from the moment on at which it has its name."""
    made = base / f"new-{os.getpid()}"
    made.mkdir(exist_ok=True)
    (made / _OWNER).write_text(str(os.getpid()), "utf-8")
    for attempt in range(100):
        root = base / (f"run-{started}" + (f"-{attempt}" if attempt else ""))
        try:
            made.rename(root)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            continue
        return root
    raise FileExistsError(f"{base}/run-{started}: taken a hundred times")


def _in_use(run: Path) -> bool:
    try:
        owner = int((run / _OWNER).read_text("utf-8"))
        os.kill(owner, 0)
    except PermissionError:  # of another user
        return True
    except (OSError, ValueError):
        return False
    return owner != os.getpid()
