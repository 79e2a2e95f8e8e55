"""Decides whether a request is let in, and words the refusal.

Law: pure; the first reason counts, in upstream's order and words (PlainPermissionManager.validate).
"""

from __future__ import annotations

from typing import Final

from rocketstream.errors import ProtocolError
from rocketstream.protocol import names
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.signing import ACCESS_KEY, verify
from rocketstream.server.broker.core.acl.accounts import PUB, Account, AclRules
from rocketstream.server.broker.core.acl.rights import ADMIN_CODES, Rights, rights_of

SHOWN_KEY_MAX: Final = 128
"""How many characters of an access key are repeated to the peer that sent it."""


def refusal_of(rules: AclRules, request: RemotingCommand, host: str) -> str | None:
    """Return why a request is not let in; None when it is.

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
    if account.addresses.fits(host):
        return None
    if not verify(ext, request.body, account.secret_key):
        return f"Check signature failed for accessKey={key}"
    try:
        rights = rights_of(request)
    except ProtocolError as error:
        return error.message
    return _lacking(account, request.code, rights)


def account_of(rules: AclRules, request: RemotingCommand, host: str) -> Account | None:
    """Return the account whose rights count for a request that was let in; None if none does."""
    if any(rule.fits(host) for rule in rules.white):
        return None
    account = rules.accounts.get((request.ext_fields or {}).get(ACCESS_KEY, ""))
    return None if account is None or account.addresses.fits(host) else account


def _lacking(account: Account, code: int, rights: Rights) -> str | None:
    # Every client writes message trace, whatever else it may do.
    if rights.get(names.TRACE_TOPIC) == PUB:
        return None
    if code in ADMIN_CODES and not account.is_admin:
        return (
            f"Need admin permission for request code={code}, but accessKey={account.access_key} "
            "is not"
        )
    return lacking_rights(account, rights)


def lacking_rights(account: Account, rights: Rights) -> str | None:
    """Return the right an account lacks; None when it has them all.

    An admin has every right, unless its account names rights: then those count, as for others.
    """
    if account.is_admin and not account.perms:
        return None
    for resource, wanted in rights.items():
        is_group = resource.startswith(names.RETRY_PREFIX)
        default = account.default_group_perm if is_group else account.default_topic_perm
        owned = account.perms.get(resource, default)
        if not owned & wanted:
            what = (
                f"group:{resource[len(names.RETRY_PREFIX) :]}" if is_group else f"topic:{resource}"
            )
            return f"No default permission for {what}"
    return None
