"""The users: who may log in, by a file of names, roles and hashed tokens, and who is logged in.

Tokens are made here, 256 random bits each: nobody guesses one, so wrong ones are not counted. A
count would let anybody behind the same proxy keep everybody out.

Law: tokens are never kept; the file holds only salted hashes. Sessions are in memory only, bounded,
and lost when the process ends.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from rocketstream import limits
from rocketstream._util.clock import Clock
from rocketstream.errors import ConfigurationError

TOKEN_CHARS_MAX: Final = 256
_SHOWN_USES: Final = "look, act, export"


class Role(StrEnum):
    """The right of a token; each role includes looking."""

    LOOK = "look"
    ACT = "act"
    EXPORT = "export"


@dataclass(frozen=True, slots=True)
class Entry:
    """One token of the file.

    Attributes:
        salt, digest: hexadecimal; the digest is SHA-256 over salt and token. A token is 256 random
            bits, so a slow hash would not make guessing any harder.
    """

    name: str
    roles: frozenset[Role]
    salt: str
    digest: str

    def is_of(self, token: str) -> bool:
        """Return whether a token is the one of this entry; takes the same time either way."""
        return hmac.compare_digest(_digest(self.salt, token), self.digest)


def _digest(salt: str, token: str) -> str:
    return hashlib.sha256(bytes.fromhex(salt) + token.encode()).hexdigest()


def read_roles(text: str) -> frozenset[Role]:
    """Return the roles of a text such as ``look,act``.

    Raises:
        ConfigurationError: a role is unknown, or there is none.
    """
    words = [word for word in text.replace("+", ",").replace(" ", "").split(",") if word]
    try:
        roles = frozenset(Role(word) for word in words)
    except ValueError:
        roles = frozenset()
    if not roles:
        raise ConfigurationError(
            f"role is {text!r}; accepted are {_SHOWN_USES}, several separated by commas", role=text
        )
    return roles | {Role.LOOK}


class TokenFile:
    """The tokens of a dashboard; read again when the file changes.

    Args:
        path: JSON, ``{"tokens": [{"name", "roles", "salt", "digest"}, …]}``, as ``add`` writes it.

    Raises:
        ConfigurationError: the file cannot be read, or is not of this form, or has no token.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, int] | None = None
        self._entries: tuple[Entry, ...] = ()
        self._read()
        if not self._entries:
            raise ConfigurationError(
                f"{path} has no tokens: `rocketstream dashboard token` adds one"
            )

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Return the present tokens; none where the file cannot be read any more."""
        try:
            self._read()
        except ConfigurationError:
            # A broken file lets nobody in, nor do the tokens it held before.
            self._entries, self._seen = (), None
        return self._entries

    def find(self, token: str) -> Entry | None:
        """Return the entry of a token; compares all entries, even after a match."""
        found: Entry | None = None
        if len(token) > TOKEN_CHARS_MAX:
            return None
        for entry in self.entries:
            if entry.is_of(token):
                found = entry
        return found

    def _read(self) -> None:
        try:
            status = self.path.stat()
        except OSError as error:
            raise _unusable(self.path, error) from error
        seen = (status.st_mtime_ns, status.st_size)
        if seen != self._seen:
            self._entries, self._seen = _read_entries(self.path), seen


def add_token(path: Path, name: str, roles: frozenset[Role]) -> str:
    """Add a token to a file, made if it does not exist, and return the token; it is kept nowhere.

    A token of the same name is replaced. Only its owner can read the file.

    Raises:
        ConfigurationError: the name is empty, or the file is of another kind.
    """
    if not name.strip() or not name.isprintable():
        raise ConfigurationError(f"name is {name!r}; it takes who the token is for")
    kept: list[Mapping[str, Any]] = []
    if path.exists():
        kept = [_shape(entry) for entry in _read_entries(path) if entry.name != name]
    token, salt = secrets.token_urlsafe(32), secrets.token_hex(16)
    kept.append(_shape(Entry(name, roles, salt, _digest(salt, token))))
    text = json.dumps({"tokens": kept}, indent=2) + "\n"
    beside = path.with_name(path.name + ".new")
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as out:
        out.write(text)
    beside.replace(path)
    return token


def _read_entries(path: Path) -> tuple[Entry, ...]:
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        return tuple(_entry(each) for each in told["tokens"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unusable(path, error) from error


def _unusable(path: Path, error: Exception) -> ConfigurationError:
    return ConfigurationError(
        f"{path} cannot be used as a file of tokens ({type(error).__name__}: {error}); "
        "`rocketstream dashboard token` makes one"
    )


def _entry(told: Mapping[str, Any]) -> Entry:
    entry = Entry(
        str(told["name"]), read_roles(",".join(told["roles"])), told["salt"], told["digest"]
    )
    if not (bytes.fromhex(entry.salt) and len(bytes.fromhex(entry.digest)) == 32):
        raise ValueError(f"the token of {entry.name!r} has no salt, or no SHA-256 digest")
    return entry


def _shape(entry: Entry) -> Mapping[str, Any]:
    return {
        "name": entry.name,
        "roles": sorted(entry.roles),
        "salt": entry.salt,
        "digest": entry.digest,
    }


# --- sessions -------------------------------------------------------------------------------------


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
        """Return the user of a session; None for one that has ended or never existed."""
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
