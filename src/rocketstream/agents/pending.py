"""Changes that were previewed and may be applied: once, soon, and by the word that names them.

Law: pure; keeps what it is given and decides by the clock it is told. It changes nothing itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from rocketstream.errors import ClientStateError

EXPIRES_AFTER_MS: Final = 300_000
PENDING_MAX: Final = 32
"""Previews kept; the oldest goes first."""


@dataclass(frozen=True, slots=True)
class Pending:
    """One previewed change.

    Attributes:
        operation: what it is, for messages.
        apply: carries it out, or refuses since things are no longer as they were shown.
        expires_ms: until when, on the clock of who keeps it.
    """

    operation: str
    apply: Callable[[], Awaitable[Any]]
    expires_ms: float


class PendingChanges:
    """Previewed changes by token.

    Args:
        new_token: makes a token nobody can guess.
        now_ms: monotonic milliseconds.
    """

    def __init__(self, new_token: Callable[[], str], now_ms: Callable[[], float]) -> None:
        self._new_token = new_token
        self._now_ms = now_ms
        self._kept: dict[str, Pending] = {}

    def keep(self, operation: str, apply: Callable[[], Awaitable[Any]]) -> str:
        """Keep a change; return its token."""
        while len(self._kept) >= PENDING_MAX:
            del self._kept[next(iter(self._kept))]
        token = self._new_token()
        self._kept[token] = Pending(operation, apply, self._now_ms() + EXPIRES_AFTER_MS)
        return token

    def take(self, token: str) -> Pending:
        """Return a change and forget it: a token is good once.

        Raises:
            ClientStateError: no such token, or an expired one.
        """
        found = self._kept.pop(token, None)
        if found is None:
            raise ClientStateError(
                "no previewed change has this token: it was applied already, was pushed out by "
                "newer ones, or is mistyped. Preview the change again"
            )
        if self._now_ms() > found.expires_ms:
            raise ClientStateError(
                f"this preview of {found.operation} is older than {EXPIRES_AFTER_MS // 60_000} "
                "minutes and no longer good. Preview the change again"
            )
        return found
