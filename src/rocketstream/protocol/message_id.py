"""The two ids of a message: the broker's (address and offset) and the sender's (UNIQ_KEY).

Pure: text and numbers; time and process facts are handed in.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final

from rocketstream.errors import LocalProtocolError, RemoteProtocolError
from rocketstream.protocol.record import pack_host, unpack_host


def encode_offset_msg_id(host: str, port: int, offset: int) -> str:
    """Return the broker's id of the record at a commit log offset: 32 or 56 hex digits.

    Raises:
        LocalProtocolError: host and port are not an IP address and a port.
    """
    return offset_msg_id_prefix(host, port) + f"{offset & 0xFFFFFFFFFFFFFFFF:016X}"


def offset_msg_id_prefix(host: str, port: int) -> str:
    """Return the part of the broker's ids that is the same for all its records."""
    return pack_host(host, port).hex().upper()


def decode_offset_msg_id(msg_id: str) -> tuple[str, int, int]:
    """Return host, port and commit log offset of a broker's id.

    Raises:
        RemoteProtocolError: the id is not 32 or 56 hex digits.
    """
    try:
        data = bytes.fromhex(msg_id)
    except ValueError:
        data = b""
    if len(msg_id) != len(data) * 2 or len(data) not in (16, 28):
        raise RemoteProtocolError(f"{msg_id!r:.80} is not a message id of 32 or 56 hex digits")
    host, port = unpack_host(data[:-8])
    return host, port, int.from_bytes(data[-8:], "big", signed=True)


RESERVED_IDS_MAX: Final = 0x8000
"""How many UNIQ_KEYs may be reserved for one moment at a time: half the range of the counter, so
that other threads may make as many meanwhile."""


class UniqueIdGenerator:
    """Makes UNIQ_KEYs: address, process id, a random number, time within the month, a counter.

    Args:
        ip: 4 or 16 bytes that tell this machine from others.
        pid: process id; its low 16 bits are used.
        loader_hash: a random 32-bit number of this process (a class loader's hash upstream).
        month_start_ms: returns when the month of ``now_ms`` began, local time, ms since 1970.

    Safe to share between threads: the counter is one atomic step.
    """

    def __init__(
        self, ip: bytes, pid: int, loader_hash: int, month_start_ms: Callable[[int], int]
    ) -> None:
        if len(ip) not in (4, 16):
            raise LocalProtocolError(f"an address for message ids has 4 or 16 bytes, not {len(ip)}")
        self._prefix = (
            ip + (pid & 0xFFFF).to_bytes(2, "big") + (loader_hash & 0xFFFFFFFF).to_bytes(4, "big")
        ).hex().upper()  # fmt: skip
        self._month_start_ms = month_start_ms
        self._month = 0, 0
        self._last: tuple[int | None, str] = None, ""
        self._counter = itertools.count()

    def next(self, now_ms: int) -> str:
        """Return the next id: 32 hex digits, or 56 of an IPv6 machine."""
        moment, head = self._last
        if moment != now_ms:
            head = self._head(now_ms)
        return f"{head}{next(self._counter) & 0xFFFF:04X}"

    def reserve(self, count: int, now_ms: int) -> tuple[str, list[int]]:
        """Return many ids of one moment in parts: their common beginning, and a number for each.

        An id is the common beginning followed by the low 16 bits of its number as 4 hex digits, as
        in ``next``.

        Args:
            count: from 0 to ``RESERVED_IDS_MAX``.
            now_ms: ms since 1970.

        Raises:
            LocalProtocolError: ``count`` exceeds ``RESERVED_IDS_MAX``.
        """
        if not 0 <= count <= RESERVED_IDS_MAX:
            raise LocalProtocolError(
                f"from 0 to {RESERVED_IDS_MAX} ids can be made of one millisecond, not {count}"
            )
        moment, head = self._last
        if moment != now_ms:
            head = self._head(now_ms)
        # Each step of the counter is atomic: numbers taken by other threads may lie between.
        return head, list(itertools.islice(self._counter, count))

    def _head(self, now_ms: int) -> str:
        """Return the id without the counter; ids of one millisecond share it."""
        start, end = self._month
        if not start <= now_ms < end:
            start = self._month_start_ms(now_ms)
            # Every month has at least 28 days: within them its start cannot change.
            self._month = start, start + 28 * 86_400_000
        elapsed = max(now_ms - start, 0) & 0xFFFFFFFF
        head = f"{self._prefix}{elapsed:08X}"
        self._last = now_ms, head
        return head
