"""Transports without a socket, for connections that are driven step by step."""

from __future__ import annotations

from typing import Any, cast


class Socket:
    """Notes its options."""

    def __init__(self) -> None:
        self.options: list[tuple[int, int, int]] = []

    def setsockopt(self, *option: int) -> None:
        self.options.append(cast(Any, option))


class Wire:
    """A transport that keeps what is written."""

    def __init__(self, **about: Any) -> None:
        self.written: list[bytes] = []
        self.left = 0
        self.high = 0
        self.closes = self.aborts = 0
        self.is_reading = True
        self.socket = Socket()
        self.about = {
            "socket": self.socket,
            "peername": ("10.0.0.1", 10911),
            "sockname": ("10.0.0.2", 40000, 0, 0),
            **about,
        }

    def get_extra_info(self, name: str) -> Any:
        return self.about.get(name)

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def get_write_buffer_size(self) -> int:
        return self.left

    def write(self, data: bytes | memoryview) -> None:
        self.written.append(bytes(data))

    def pause_reading(self) -> None:
        assert self.is_reading
        self.is_reading = False

    def resume_reading(self) -> None:
        assert not self.is_reading
        self.is_reading = True

    def close(self) -> None:
        self.closes += 1

    def abort(self) -> None:
        self.aborts += 1
