"""TCP sockets of this machine, over the system's local ones: what is sent has come at once.

Over real TCP the kernel may hand bytes over a moment later, and a scene's time would pass though
an answer is under way.
"""

from __future__ import annotations

import errno
import itertools
import os
import socket
from collections import defaultdict, deque
from typing import Any

_numbers = itertools.count()


def local_sockets() -> type[socket.socket]:
    """Return a class for ``socket.socket`` with ports of its own."""
    real: Any = socket.socket
    ports = itertools.count(20_000)
    names: dict[int, bytes] = {}
    callers: defaultdict[int, deque[int]] = defaultdict(deque)

    class LocalSocket(real):  # type: ignore[misc]
        _here = _there = 0
        _is_tcp = False

        def __init__(
            self, family: int = -1, type: int = -1, proto: int = -1, fileno: Any = None
        ) -> None:
            stream = family == socket.AF_INET and type in (socket.SOCK_STREAM, -1)
            self._is_tcp = stream and fileno is None
            if self._is_tcp:
                super().__init__(socket.AF_UNIX, socket.SOCK_STREAM)
            else:
                super().__init__(family, type, proto, fileno)

        @property
        def family(self) -> Any:
            return socket.AF_INET if self._is_tcp else super().family

        def bind(self, address: Any) -> None:
            if not self._is_tcp:
                super().bind(address)
                return
            self._here = address[1] or next(ports)
            if self._here in names:
                raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
            name = f"\0rocketstream-{os.getpid()}-{next(_numbers)}".encode()
            names[self._here] = name
            super().bind(name)

        def connect(self, address: Any) -> None:
            if not self._is_tcp:
                super().connect(address)
                return
            name = names.get(address[1])
            if name is None:
                raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
            super().connect(name)
            self._here, self._there = next(ports), address[1]
            callers[address[1]].append(self._here)

        def accept(self) -> Any:
            if not self._is_tcp:
                return super().accept()
            descriptor, _ = self._accept()
            made = LocalSocket(socket.AF_UNIX, socket.SOCK_STREAM, 0, descriptor)
            made._is_tcp = True
            made._here, made._there = self._here, callers[self._here].popleft()
            return made, ("127.0.0.1", made._there)

        def getsockname(self) -> Any:
            return ("127.0.0.1", self._here) if self._is_tcp else super().getsockname()

        def getpeername(self) -> Any:
            if not self._is_tcp:
                return super().getpeername()
            super().getpeername()  # raises where there is none any more
            return "127.0.0.1", self._there

        def setsockopt(self, level: int, *option: Any) -> None:
            if not self._is_tcp or level == socket.SOL_SOCKET:
                super().setsockopt(level, *option)

    return LocalSocket
