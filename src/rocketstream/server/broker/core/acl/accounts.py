"""Accounts as plain_acl.yml describes them, and how those of several files combine.

Pure: a document (as YAML parsed it) in, accounts out.

Law: nothing is guessed: an entry that upstream would refuse, or that could grant more than its text
says, is an error that names it. Upstream: PlainPermissionManager.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rocketstream.errors import ConfigurationError
from rocketstream.protocol.names import RETRY_PREFIX
from rocketstream.server.broker.core.acl.addresses import AddressRule, parse_rule

DENY: Final = 0
PUB: Final = 1
SUB: Final = 2
KEY_LENGTH_MIN: Final = 7
"""Shortest length; upstream requires more than 6 characters."""

_PERMS: Final = {"PUB": PUB, "SUB": SUB, "PUB|SUB": PUB | SUB, "SUB|PUB": PUB | SUB, "DENY": DENY}
WHITE: Final = "globalWhiteRemoteAddresses"
ACCOUNTS: Final = "accounts"
VERSION: Final = "dataVersion"
_ACCOUNT_NAMES: Final = frozenset({
    "accessKey", "secretKey", "whiteRemoteAddress", "admin", "defaultTopicPerm",
    "defaultGroupPerm", "topicPerms", "groupPerms",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Account:
    """One user.

    Attributes:
        access_key: its name.
        secret_key: the key it signs with.
        addresses: the addresses from which it needs no signature and may do everything.
        is_admin: whether it may change the broker, its topics and groups.
        default_topic_perm: right to topics not named in ``perms``.
        default_group_perm: right to groups not named in ``perms``.
        perms: rights by topic; a group appears as its retry topic.
        settings: the account as the file has it, for request 54.
    """

    access_key: str
    secret_key: str = field(repr=False)
    addresses: AddressRule
    is_admin: bool
    default_topic_perm: int
    default_group_perm: int
    perms: Mapping[str, int]
    settings: Mapping[str, Any] = field(repr=False)


def plain_admin(access_key: str, secret_key: str) -> Account:
    """Return an admin with these keys that no file names."""
    return Account(
        access_key=access_key,
        secret_key=secret_key,
        addresses=parse_rule(None),
        is_admin=True,
        default_topic_perm=DENY,
        default_group_perm=DENY,
        perms={},
        settings={},
    )


@dataclass(frozen=True, slots=True)
class AclDocument:
    """The content of one file.

    Attributes:
        accounts: in the file's order, each once.
        white: addresses that need no account at all, as the file has them.
        rules: the same addresses, parsed.
        counter: how often the file was changed by request.
        timestamp: time of the last such change, ms since 1970; 0 when never.
        warnings: entries that grant less than their writer may have meant.
    """

    accounts: tuple[Account, ...] = ()
    white: tuple[str, ...] = ()
    rules: tuple[AddressRule, ...] = ()
    counter: int = 0
    timestamp: int = 0
    warnings: tuple[str, ...] = ()


def perm_of(text: str | None) -> int:
    """Return the right a text stands for; as upstream, DENY for any text but the five rights."""
    return _PERMS.get((text or "").strip(), DENY)


def parse_document(document: object) -> AclDocument:
    """Return the content of a document; an empty one has no accounts.

    Raises:
        ConfigurationError: the document cannot be used; the text says where and what is accepted.
    """
    if document is None:
        return AclDocument()
    table = _table(document, "the file")
    warnings = [f"{name!r} is unknown and ignored" for name in table if name not in _TOP_NAMES]
    white = tuple(_texts(table.get(WHITE), WHITE))
    accounts: dict[str, Account] = {}
    for place, entry in enumerate(_list(table.get(ACCOUNTS), ACCOUNTS)):
        account = _account(entry, f"account {place + 1}", warnings)
        if account.access_key in accounts:
            warnings.append(f"accessKey {account.access_key!r} is given twice; the first counts")
        else:
            accounts[account.access_key] = account
    counter, timestamp = _version(table.get(VERSION))
    return AclDocument(
        accounts=tuple(accounts.values()),
        white=white,
        rules=tuple(parse_rule(text) for text in white),
        counter=counter,
        timestamp=timestamp,
        warnings=tuple(warnings),
    )


_TOP_NAMES: Final = frozenset({WHITE, ACCOUNTS, VERSION})


def _account(entry: object, where: str, warnings: list[str]) -> Account:
    table = _table(entry, where)
    access_key = _text(table.get("accessKey"), f"accessKey of {where}")
    if access_key is None or len(access_key) < KEY_LENGTH_MIN:
        raise ConfigurationError(
            f"accessKey of {where} is {access_key!r}: give {KEY_LENGTH_MIN} characters or more"
        )
    where = f"account {access_key!r}"
    secret_key = _text(table.get("secretKey"), f"secretKey of {where}", is_secret=True)
    if secret_key is None or len(secret_key) < KEY_LENGTH_MIN:
        raise ConfigurationError(
            f"secretKey of {where} is missing or too short: give {KEY_LENGTH_MIN} characters or "
            "more"
        )
    for name in table:
        if name not in _ACCOUNT_NAMES:
            warnings.append(f"{name!r} of {where} is unknown and ignored")
    settings: dict[str, Any] = {"accessKey": access_key, "secretKey": secret_key}
    for name in ("whiteRemoteAddress", "defaultTopicPerm", "defaultGroupPerm"):
        settings[name] = _text(table.get(name), f"{name} of {where}")
    for name in ("defaultTopicPerm", "defaultGroupPerm"):
        _check_perm(settings[name], f"{name} of {where}", warnings)
    for name in ("topicPerms", "groupPerms"):
        if table.get(name) is not None:
            settings[name] = _texts(table[name], f"{name} of {where}")
    settings["admin"] = _flag(table.get("admin"), f"admin of {where}")
    perms: dict[str, int] = {}
    for name, prefix in (("groupPerms", RETRY_PREFIX), ("topicPerms", "")):
        for line in settings.get(name, ()):
            resource, perm = _resource_perm(line, f"{name} of {where}")
            _check_perm(perm, f"{name} of {where}, {resource}", warnings)
            perms[prefix + resource] = perm_of(perm)
    return Account(
        access_key=access_key,
        secret_key=secret_key,
        addresses=parse_rule(settings["whiteRemoteAddress"]),
        is_admin=settings["admin"],
        default_topic_perm=perm_of(settings["defaultTopicPerm"]),
        default_group_perm=perm_of(settings["defaultGroupPerm"]),
        perms=perms,
        settings=settings,
    )


def _resource_perm(line: str, where: str) -> tuple[str, str]:
    parts = [part.strip() for part in line.split("=") if part]
    if len(parts) != 2:
        raise ConfigurationError(f"{where}: {line!r} is not accepted; write NAME=PUB|SUB")
    return parts[0], parts[1]


def _check_perm(perm: str | None, where: str, warnings: list[str]) -> None:
    if perm and perm.strip() not in _PERMS:
        warnings.append(f"{where}: {perm!r} is not one of {', '.join(_PERMS)}, and counts as DENY")


def _version(value: object) -> tuple[int, int]:
    entries = _list(value, VERSION)
    if not entries:
        return 0, 0
    table = _table(entries[0], VERSION)
    counter, timestamp = table.get("counter", 0), table.get("timestamp", 0)
    if type(counter) is not int or type(timestamp) is not int:
        raise ConfigurationError(f"{VERSION} must have whole numbers as counter and timestamp")
    return counter, timestamp


def _table(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise ConfigurationError(f"{where} is {type(value).__name__}: give a table of names")
    return value


def _list(value: object, where: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ConfigurationError(f"{where} is {type(value).__name__}: give a list")
    return value


def _texts(value: object, where: str) -> list[str]:
    found = []
    for entry in _list(value, where):
        text = _text(entry, where)
        if text is None:
            raise ConfigurationError(f"{where} has an empty entry: remove it")
        found.append(text)
    return found


def _text(value: object, where: str, *, is_secret: bool = False) -> str | None:
    """Return a text, or a whole number as text; other YAML values have lost their spelling."""
    if value is None or isinstance(value, str):
        return value
    if type(value) is int:
        return str(value)
    shown = "what YAML reads as" if is_secret else f"{value!r}, which YAML reads as"
    raise ConfigurationError(f"{where} is {shown} {type(value).__name__}: put it in quotes")


def _flag(value: object, where: str) -> bool:
    if value is None or isinstance(value, bool):
        return bool(value)
    if isinstance(value, str) and value.strip().lower() in ("true", "false", ""):
        return value.strip().lower() == "true"
    raise ConfigurationError(f"{where} is {value!r}: give true or false")


# --- several files -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AclRules:
    """The rules that count: those of all files together.

    Attributes:
        accounts: by access key.
        white: addresses that need no account.
        homes: the file of each access key.
        warnings: entries that do not count.
    """

    accounts: Mapping[str, Account] = field(default_factory=dict)
    white: tuple[AddressRule, ...] = ()
    homes: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def join(documents: Iterable[tuple[str, AclDocument]]) -> AclRules:
    """Return the combined rules of files by path; the first file with an access key counts."""
    accounts: dict[str, Account] = {}
    homes: dict[str, str] = {}
    white: list[AddressRule] = []
    warnings: list[str] = []
    for path, document in documents:
        white += document.rules
        warnings += [f"{path}: {warning}" for warning in document.warnings]
        for account in document.accounts:
            key = account.access_key
            if key in accounts:
                warnings.append(f"{path}: accessKey {key!r} is in {homes[key]} too, which counts")
            else:
                accounts[key], homes[key] = account, path
    return AclRules(accounts, tuple(white), homes, tuple(warnings))
