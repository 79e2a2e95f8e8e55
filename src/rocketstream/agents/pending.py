"""Changes that were previewed and may be applied: once, soon, and only with their token.

Pure: the given changes are kept, the given clock decides; nothing is changed here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from rocketstream.errors import ClientStateError

EXPIRES_AFTER_MS: Final = 300_000
PENDING_MAX: Final = 32
"""How many previews are kept; beyond that the oldest is dropped."""


@dataclass(frozen=True, slots=True)
class Pending:
    """One previewed change.

    Attributes:
        operation: the operation's name, for messages.
        apply: carries the change out, or refuses if things are no longer as they were shown.
        expires_ms: until when it may be applied, in ms of the keeper's clock.
    """

    operation: str
    apply: Callable[[], Awaitable[Any]]
    expires_ms: float


class PendingChanges:
    """Previewed changes by token.

    Args:
        new_token: makes a token nobody can guess.
        now_ms: returns monotonic milliseconds.
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
        """Take a change out and return it: a token works once.

        Raises:
            ClientStateError: there is no such token, or it has expired.
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
