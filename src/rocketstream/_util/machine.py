"""What the machine has.

Law: asks the system, decides nothing.
"""

from __future__ import annotations

import os

_MEMORY_BYTES_UNKNOWN = 8 * 1024 * 1024 * 1024


def memory_bytes() -> int:
    """Return the machine's memory in bytes; 8 GiB where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return _MEMORY_BYTES_UNKNOWN
