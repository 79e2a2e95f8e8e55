"""Plans that were shown and may be carried out: once, soon, and by those who saw them.

Law: the given clock decides when; nothing is changed here.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from rocketstream._util.clock import Clock
from rocketstream.errors import ClientStateError

Plan = TypeVar("Plan")

GOOD_FOR_MS: Final = 10 * 60_000
KEPT_MAX: Final = 64
"""How many plans are kept; beyond that the oldest is dropped."""


class PreviewGoneError(ClientStateError):
    """A change cannot be carried out by this token: its preview is not kept, or no longer good."""


@dataclass(frozen=True, slots=True)
class _Kept(Generic[Plan]):
    plan: Plan
    shown_to: str
    until_ms: float


class Previews(Generic[Plan]):
    """Plans by the tokens that those who saw them were given; used on one event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[str, _Kept[Plan]] = {}

    def keep(self, plan: Plan, shown_to: str = "") -> str:
        """Keep a plan and return its token, which nobody can guess.

        Args:
            shown_to: the session that saw it, and alone may carry it out.
        """
        while len(self._kept) >= KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        token = secrets.token_urlsafe(18)
        self._kept[token] = _Kept(plan, shown_to, self._clock.monotonic_ms() + GOOD_FOR_MS)
        return token

    def find(self, token: str, shown_to: str = "") -> Plan:
        """Return a plan, and keep it.

        Raises:
            PreviewGoneError: it was carried out already, has expired, was shown to another, or was
                never kept.
        """
        return self._find(token, shown_to).plan

    def take(self, token: str, shown_to: str = "") -> Plan:
        """Return a plan and forget it: a token is good once.

        Raises:
            PreviewGoneError: as in ``find``.
        """
        found = self._find(token, shown_to)
        del self._kept[token]
        return found.plan

    def left_s(self, token: str, shown_to: str = "") -> float:
        """Return for how many seconds a plan may still be carried out.

        Raises:
            PreviewGoneError: as in ``find``.
        """
        left_ms = self._find(token, shown_to).until_ms - self._clock.monotonic_ms()
        return left_ms / 1_000

    def _find(self, token: str, shown_to: str) -> _Kept[Plan]:
        found = self._kept.get(token)
        if found is None or found.shown_to != shown_to:
            raise PreviewGoneError(
                "no preview has this token: its change was carried out already, newer previews "
                "pushed it out, or the token is mistyped. Look at the change again first"
            )
        if self._clock.monotonic_ms() > found.until_ms:
            del self._kept[token]
            raise PreviewGoneError(
                f"this preview is older than {GOOD_FOR_MS // 60_000} minutes and no longer good. "
                "Look at the change again first"
            )
        return found
