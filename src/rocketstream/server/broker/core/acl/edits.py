"""Edits of a document of accounts by requests 50, 51 and 53.

Pure: a document in, a new one out; all other content of the file stays. Upstream:
PlainPermissionManager.updateAccessConfig and its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rocketstream.errors import ConfigurationError
from rocketstream.server.broker.core.acl.accounts import (
    ACCOUNTS,
    DENY,
    KEY_LENGTH_MIN,
    VERSION,
    WHITE,
    perm_of,
)

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class AccountUpdate:
    """The content of request 50; None leaves a setting unchanged."""

    access_key: str
    secret_key: str | None = field(default=None, repr=False)
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: Sequence[str] | None = None
    group_perms: Sequence[str] | None = None

    def check(self) -> None:
        """Check keys and rights as upstream does, in its words; a secret is not repeated.

        Raises:
            ConfigurationError: upstream would refuse the update.
        """
        if min(len(self.access_key), len(self.secret_key or "")) < KEY_LENGTH_MIN:
            raise ConfigurationError(
                f"The accessKey={self.access_key} and secretKey=*** cannot be null and length "
                "should longer than 6"
            )
        for line in (*(self.topic_perms or ()), *(self.group_perms or ())):
            parts = [part for part in line.split("=") if part]
            if len(parts) != 2:
                raise ConfigurationError(
                    f"Parse Resource format error for {line}.\n"
                    "The expected resource format is 'Res=Perm'. For example: topicA=SUB"
                )
            if parts[1].strip() != "DENY" and perm_of(parts[1]) == DENY:
                raise ConfigurationError(
                    f"Parse resource permission error for {line}.\nThe expected permissions are "
                    "'SUB' or 'PUB' or 'SUB|PUB' or 'PUB|SUB'."
                )


def update_account(document: object, update: AccountUpdate, now_ms: int) -> Document:
    """Return a document with an account added or changed; a new one comes last."""
    changed = _copied(document)
    accounts = changed.get(ACCOUNTS) or []
    mine: dict[str, Any] = {}
    for entry in accounts:
        if str(entry.get("accessKey")) == update.access_key:
            mine = entry
            accounts.remove(entry)
            break
    mine["accessKey"] = update.access_key
    mine["secretKey"] = update.secret_key
    given: dict[str, Any] = {
        "whiteRemoteAddress": update.white_remote_address,
        "admin": update.admin,
        "defaultTopicPerm": update.default_topic_perm or None,
        "defaultGroupPerm": update.default_group_perm or None,
        "topicPerms": None if update.topic_perms is None else list(update.topic_perms),
        "groupPerms": None if update.group_perms is None else list(update.group_perms),
    }
    mine.update({name: value for name, value in given.items() if value is not None})
    changed[ACCOUNTS] = [*accounts, mine]
    return _next_version(changed, now_ms)


def delete_account(document: object, access_key: str, now_ms: int) -> Document:
    """Return a document without an account."""
    changed = _copied(document)
    changed[ACCOUNTS] = [
        entry for entry in changed.get(ACCOUNTS) or [] if str(entry.get("accessKey")) != access_key
    ]
    return _next_version(changed, now_ms)


def set_white_addresses(document: object, addresses: Sequence[str], now_ms: int) -> Document:
    """Return a document whose addresses that need no account are replaced by these."""
    changed = _copied(document)
    changed[WHITE] = list(addresses)
    return _next_version(changed, now_ms)


def _copied(document: object) -> Document:
    """Return a copy of a document that may be changed, with copies of its account lists."""
    changed: Document = dict(document) if isinstance(document, dict) else {}
    if changed.get(ACCOUNTS):
        changed[ACCOUNTS] = [dict(account) for account in changed[ACCOUNTS]]
    return changed


def _next_version(document: Document, now_ms: int) -> Document:
    version = document.get(VERSION) or [{}]
    document[VERSION] = [{"counter": int(version[0].get("counter", 0)) + 1, "timestamp": now_ms}]
    return document
