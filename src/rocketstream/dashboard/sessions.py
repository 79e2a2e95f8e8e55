"""Sessions: the users logged in, and for how long.

Tokens are 256 random bits: nobody guesses one, so wrong ones are not counted. A count would let
anybody behind the same proxy keep everybody out.

Law: in memory only; bounded, and lost when the process ends.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from dataclasses import dataclass

from rocketstream import limits
from rocketstream._util.clock import Clock
from rocketstream.dashboard.tokens import Entry, Role, TokenFile


@dataclass(frozen=True, slots=True)
class User:
    """The user of a request.

    Attributes:
        name: the name under which changes are recorded.
        session_id: the session that form tokens are bound to.
        is_logged_in: False where no login is needed.
    """

    name: str
    roles: frozenset[Role]
    session_id: str
    is_logged_in: bool = True

    def may(self, role: Role) -> bool:
        """Return whether the user has a role."""
        return role in self.roles


@dataclass(slots=True)
class _Session:
    entry: Entry
    began_ms: float
    seen_ms: float


class Sessions:
    """The sessions of one dashboard, with the secret from which form tokens are made.

    Not thread safe: only the event loop uses it.
    """

    def __init__(self, tokens: TokenFile | None, clock: Clock) -> None:
        self._tokens = tokens
        self._clock = clock
        self._secret = secrets.token_bytes(32)
        self._sessions: OrderedDict[str, _Session] = OrderedDict()

    def new_id(self) -> str:
        """Return an id that nobody can guess."""
        return secrets.token_urlsafe(32)

    def form_token(self, session_id: str) -> str:
        """Return the token that a form of this session must carry."""
        return hmac.new(self._secret, session_id.encode(), hashlib.sha256).hexdigest()

    def is_form_token(self, session_id: str, given: str) -> bool:
        """Return whether a form's token belongs to a session."""
        # A header or field may hold any text, but only ASCII can be compared in constant time.
        return hmac.compare_digest(self.form_token(session_id).encode(), given.encode())

    def find(self, session_id: str) -> User | None:
        """Return the token entry of a session; None for one that has ended or never existed."""
        session = self._sessions.get(session_id)
        if session is None or self._tokens is None:
            return None
        now = self._clock.monotonic_ms()
        idle = now - session.seen_ms > limits.DASHBOARD_SESSION_IDLE_MS
        old = now - session.began_ms > limits.DASHBOARD_SESSION_MS
        # Revoking a token also ends the sessions begun with it.
        if idle or old or session.entry not in self._tokens.entries:
            del self._sessions[session_id]
            return None
        session.seen_ms = now
        return User(session.entry.name, session.entry.roles, session_id)

    def begin(self, entry: Entry) -> str:
        """Begin a session and return its id."""
        now = self._clock.monotonic_ms()
        while len(self._sessions) >= limits.DASHBOARD_SESSIONS_MAX:
            self._sessions.popitem(last=False)
        session_id = self.new_id()
        self._sessions[session_id] = _Session(entry, now, now)
        return session_id

    def end(self, session_id: str) -> None:
        """End a session."""
        self._sessions.pop(session_id, None)
