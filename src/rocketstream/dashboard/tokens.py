"""The users who may log in: a file of names, roles and hashed tokens.

Law: tokens are made here, 256 bits each, and never kept; the file holds only salted hashes.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

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
