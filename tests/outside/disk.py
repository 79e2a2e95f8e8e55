"""A small disk that can be full: a tmpfs, where this user may mount one."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MIB = 1024 * 1024


@contextmanager
def small(path: Path, mib: int) -> Iterator[bool]:
    """Mount one of so many MiB for the time of the block; False where that is not allowed."""
    path.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "outside", str(path)]
    try:
        done = subprocess.run(mount, capture_output=True, timeout=60, check=False)
    except FileNotFoundError:
        yield False
        return
    if done.returncode:
        yield False
        return
    try:
        yield True
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True, timeout=60)


def fill(ballast: Path) -> None:
    """Take all the room that is left on a disk."""
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        for piece in (MIB, 4096, 1):
            with suppress(OSError):
                while file.write(bytes(piece)) == piece:
                    pass
