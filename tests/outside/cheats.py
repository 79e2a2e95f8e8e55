"""Servers that cheat, made of honest ones by a proxy that changes frames and breaks promises.

A frame is its size, the type and size of its header, a header in JSON, and a body.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SEND, SEND_V2, END_TRANSACTION = 10, 310, 37
COMMITS, ROLLS_BACK = "8", "12"
_count = itertools.count(1)


@dataclass
class Frame:
    """A frame taken apart."""

    header: dict[str, Any]
    body: bytes

    @classmethod
    def of(cls, data: bytes) -> Frame:
        """Take one apart."""
        size = int.from_bytes(data[5:8], "big")
        return cls(json.loads(data[8 : 8 + size]), data[8 + size :])

    def encoded(self) -> bytes:
        """Put it together again."""
        header = json.dumps(self.header, separators=(",", ":")).encode()
        rest = len(header).to_bytes(4, "big") + header + self.body
        return len(rest).to_bytes(4, "big") + rest

    @property
    def fields(self) -> dict[str, str]:
        """What the request or answer has of its own."""
        found: dict[str, str] = self.header.get("extFields") or {}
        return found

    @property
    def properties(self) -> str:
        """The properties of the message that is sent."""
        return self.fields.get("i", "")

    def is_single_send(self) -> bool:
        """Whether it sends one message and no half of a transaction."""
        return (
            self.header["code"] == SEND_V2
            and self.fields.get("m") != "true"
            and "TRAN_MSG" not in self.properties
        )


def _is_every(number: int) -> bool:
    return next(_count) % number == 0


def swallows(frame: Frame) -> bytes:
    """Acknowledge a message that is stored nowhere."""
    if not (frame.is_single_send() and frame.body.startswith(b"sync") and _is_every(7)):
        return b""
    answer = {
        "code": 0, "flag": 1, "language": "JAVA", "opaque": frame.header["opaque"], "version": 399,
        "serializeTypeCurrentRPC": "JSON",
        "extFields": {
            "msgId": "7F00000200002A9F0000000000000000", "queueId": frame.fields["e"],
            "queueOffset": str(900_000 + next(_count)),
        },
    }  # fmt: skip
    return Frame(answer, b"").encoded()


def alters(frame: Frame) -> None:
    """Store another body."""
    if frame.is_single_send() and frame.body.startswith(b"keyed") and _is_every(5):
        frame.body += b"!"


def commits_everything(frame: Frame) -> None:
    """Make a commit of what was rolled back."""
    is_end = frame.header["code"] == END_TRANSACTION
    if is_end and frame.fields.get("commitOrRollback") == ROLLS_BACK:
        frame.fields["commitOrRollback"] = COMMITS


def hurries(frame: Frame) -> None:
    """Deliver with the shortest delay."""
    if frame.header["code"] == SEND_V2 and "DELAY\x012" in frame.properties:
        frame.fields["i"] = frame.properties.replace("DELAY\x012", "DELAY\x011")


CHANGES: tuple[Callable[[Frame], None], ...] = (alters, commits_everything, hurries)


def all_at_once(data: bytes, is_of_client: bool) -> tuple[bytes, bytes]:
    """Do all of it to what clients send."""
    if not is_of_client or data[4] != 0:
        return data, b""
    frame = Frame.of(data)
    answer = swallows(frame)
    if answer:
        return b"", answer
    for change in CHANGES:
        change(frame)
    return frame.encoded(), b""
