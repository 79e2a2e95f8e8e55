"""The resources of this machine, and which addresses are its own."""

from __future__ import annotations

import ipaddress
import os
import sys

_MEMORY_BYTES_UNKNOWN = 8 * 1024 * 1024 * 1024
_OPEN_FILES_UNKNOWN = 512


def memory_bytes() -> int:
    """Return the machine's memory in bytes; 8 GiB where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return _MEMORY_BYTES_UNKNOWN


def open_files_max() -> int:
    """Return how many descriptors this process may have; 512 where the system does not say."""
    if sys.platform == "win32":
        return _OPEN_FILES_UNKNOWN
    import resource

    limit: int = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limit if limit > 0 else 1 << 20


def is_loopback(host: str) -> bool:
    """Return whether nothing outside this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
