"""The resources of this machine, which addresses are its own, and what its sockets do."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import struct
import sys
from typing import Final

_DROPPING: Final = struct.pack("ii", 1, 0)
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


def drop_unsent(sock: socket.socket) -> None:
    """Have the end of a socket reset its connection and drop what the peer has not taken.

    Without it the system goes on sending that for minutes after the end. A commit that was said
    over this connection could then come behind a later one over the next.
    """
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DROPPING)


def is_loopback(host: str) -> bool:
    """Return whether nothing outside this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
