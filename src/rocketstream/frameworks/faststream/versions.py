"""The supported releases of FastStream.

Law: imported first, before anything private of FastStream's.
"""

from __future__ import annotations

import re

FIRST, END = "0.7.6", "0.8"


def check_version(installed: str) -> None:
    """Check that FastStream's private modules are those this broker was written for.

    Raises:
        ImportError: another release series, or an earlier release.
    """
    if not _numbers(FIRST) <= _numbers(installed) < _numbers(END):
        raise ImportError(
            f"this broker stands on private modules of faststream {FIRST} to below {END}; "
            f"{installed} is installed: pip install 'faststream>={FIRST},<{END}'"
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))
