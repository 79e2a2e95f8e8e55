"""The verdict on a request: let in, or refused and with which words.

Pure: the first reason counts, in upstream's order and words (PlainPermissionManager.validate).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rocketstream.errors import ProtocolError
from rocketstream.protocol import names
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.signing import ACCESS_KEY, verify
from rocketstream.server.broker.core.acl.accounts import DENY, PUB, SUB, Account, AclRules
from rocketstream.server.broker.core.acl.rights import (
    OWN_TOPICS,
    Rights,
    rights_of,
    rights_to_stored,
)

SHOWN_KEY_MAX: Final = 128
"""How many characters of an access key are repeated to the peer that sent it."""


def stranger_of(rules: AclRules, request: RemotingCommand, host: str) -> str | None:
    """Return why the sender of a request is unknown; None for a known sender.

    Args:
        rules: the rules that count now.
        request: as received, with its body.
        host: address of the peer, without port.
    """
    for rule in rules.white:
        if rule.fits(host):
            return None
    ext = request.ext_fields or {}
    key = ext.get(ACCESS_KEY)
    if key is None:
        return "No accessKey is configured"
    account = rules.accounts.get(key)
    if account is None:
        return f"No acl config for {key[:SHOWN_KEY_MAX]}"
    if account.addresses.fits(host) or verify(ext, request.body, account.secret_key):
        return None
    return f"Check signature failed for accessKey={key}"


def refusal_of(
    rules: AclRules, request: RemotingCommand, host: str, reply_topic: str = ""
) -> str | None:
    """Return why a broker does not let a request in; None when it does."""
    reason = stranger_of(rules, request, host)
    account = None if reason is not None else account_of(rules, key_of(request), host)
    if account is None:
        return reason
    try:
        rights = rights_of(request, reply_topic)
    except ProtocolError as error:
        return error.message
    if rights is None:
        return lacking_admin(account, request.code)
    # Every client writes message trace, with any other rights.
    return None if rights == {names.TRACE_TOPIC: PUB} else lacking_rights(account, rights)


def key_of(request: RemotingCommand) -> str | None:
    """Return the access key a request names."""
    return (request.ext_fields or {}).get(ACCESS_KEY)


def account_of(rules: AclRules, key: str | None, host: str) -> Account | None:
    """Return the account whose rights count for a sender who was let in; None if none does."""
    if any(rule.fits(host) for rule in rules.white):
        return None
    account = rules.accounts.get(key or "")
    return None if account is None or account.addresses.fits(host) else account


def lacking_admin(account: Account, code: int) -> str | None:
    """Return that an account lacks the admin's right a request code needs; None when it has it."""
    if account.is_admin:
        return None
    return (
        f"Need admin permission for request code={code}, but accessKey={account.access_key} is not"
    )


def lacking_rights(account: Account, rights: Rights) -> str | None:
    """Return the right an account lacks; None when it has them all.

    An admin has every right, unless its account names rights: then those count, as for others.
    """
    if account.is_admin and not account.perms:
        return None
    for resource, wanted in rights.items():
        if resource in OWN_TOPICS and not account.is_admin:
            return f"Need admin permission for topic:{resource}"
        if not _owned(account, resource) & wanted:
            is_group = resource.startswith(names.RETRY_PREFIX)
            what = (
                f"group:{resource[len(names.RETRY_PREFIX) :]}" if is_group else f"topic:{resource}"
            )
            return f"No default permission for {what}"
    return None


def _owned(account: Account, resource: str) -> int:
    """Return the right to a topic, or to a group by its retry topic."""
    named = account.perms.get(resource)
    if named is not None:
        return named
    if resource.startswith(names.RETRY_PREFIX):
        return account.default_group_perm
    if resource.startswith(names.DLQ_PREFIX):
        # Upstream takes dead letters for a topic like others; they are the group's too.
        group = names.retry_topic(resource[len(names.DLQ_PREFIX) :])
        if not account.perms.get(group, account.default_group_perm) & SUB:
            return DENY
    return account.default_topic_perm


def lacking_to_stored(
    account: Account, topic: str, properties: Mapping[str, str], wanted: int
) -> str | None:
    """Return the right an account lacks to a stored message; None when it has it.

    An account with a right to a group's dead letters by name has it to all of them.
    """
    rights = rights_to_stored(topic, properties, wanted)
    if topic.startswith(names.DLQ_PREFIX) and topic in account.perms:
        rights = {topic: wanted}
    return lacking_rights(account, rights)
