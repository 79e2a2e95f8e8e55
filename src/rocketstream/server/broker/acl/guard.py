"""The guards: they see every request before its handler runs, when there are accounts.

``core.acl`` decides; a refusal has the words that upstream's client knows.
"""

from __future__ import annotations

import dataclasses
import logging
import secrets
from collections.abc import Callable, Mapping
from typing import Final

from rocketstream._util.clock import Clock
from rocketstream._util.machine import is_loopback
from rocketstream.protocol import names
from rocketstream.protocol.codes import ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.server.broker.acl.files import AclFiles
from rocketstream.server.broker.core.acl.accounts import SUB, Account, plain_admin
from rocketstream.server.broker.core.acl.rights import OPEN_NAME_SERVER_CODES, Rights
from rocketstream.server.broker.core.acl.verdict import (
    account_of,
    key_of,
    lacking_admin,
    lacking_rights,
    lacking_to_stored,
    refusal_of,
    stranger_of,
)
from rocketstream.server.dispatch import refusal
from rocketstream.transport.connection import Connection

logger: logging.Logger = logging.getLogger("rocketstream.server")

EXCEPTION: Final = "org.apache.rocketmq.acl.common.AclException: "
"""The beginning of a refusal: 4.9 answers SYSTEM_ERROR with the exception's text, and clients and
dashboards look for this name."""
_COMPLAINT_PAUSE_MS: Final = 1_000.0
_POLL_PAUSE_MS: Final = 1_000.0
_WITHOUT_TLS: Final = (
    "the requests of an admin, accessKey={}, are refused without TLS from another machine: a "
    "request somebody sees on its way can be sent again as any other; use TLS, or allow it with "
    "--admin-without-tls (admin_without_tls=True)"
)


class _Guard:
    """Refuses requests, and logs refusals.

    Attributes:
        files: the accounts.
    """

    def __init__(self, files: AclFiles, clock: Clock, *, admin_without_tls: bool) -> None:
        self.files = files
        self._clock = clock
        self._admin_without_tls = admin_without_tls
        self._next_complaint_ms = 0.0
        self._untold = 0

    def _open_admin(self, connection: Connection, account: Account | None) -> str | None:
        """Return why an admin is refused whose requests others on the network can see.

        A signature covers neither the code nor the time: an admin's question, seen and sent again
        with another code, deletes a topic.
        """
        if account is None or not account.is_admin or self._admin_without_tls:
            return None
        return None if is_private(connection) else _WITHOUT_TLS.format(account.access_key)

    def _refused(self, connection: Connection, code: int, reason: str) -> RemotingCommand:
        self._complain(connection, code, reason)
        return RemotingCommand.response(ResponseCode.SYSTEM_ERROR, EXCEPTION + reason)

    def _complain(self, connection: Connection, code: int, reason: str) -> None:
        """Log at most one line a second, since a peer can cause refusals at no cost."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._next_complaint_ms:
            self._untold += 1
            return
        self._next_complaint_ms = now_ms + _COMPLAINT_PAUSE_MS
        more = f" ({self._untold} more since the last such line)" if self._untold else ""
        self._untold = 0
        logger.warning("refused code=%d peer=%s: %r%s", code, connection.peer, reason, more)


class AccessGuard(_Guard):
    """Lets requests to a broker in, or says why they are refused.

    Args:
        files: the accounts.
        clock: the time.
        cluster_name: the broker's cluster, whose topic of replies is open to all accounts.
        admin_without_tls: let admins in over connections on which others can see their requests.
    """

    def __init__(
        self, files: AclFiles, clock: Clock, cluster_name: str, *, admin_without_tls: bool
    ) -> None:
        super().__init__(files, clock, admin_without_tls=admin_without_tls)
        self._reply_topic = cluster_name + names.REPLY_TOPIC_SUFFIX

    def __call__(
        self, connection: Connection, request: RemotingCommand, is_answered: bool
    ) -> RemotingCommand | None:
        """Return the refusal of a request; None when it is let in."""
        rules, host = self.files.rules, connection.peer_host[0]
        if is_answered:
            reason = refusal_of(rules, request, host, self._reply_topic)
        else:
            reason = stranger_of(rules, request, host)
        if reason is None:
            reason = self._open_admin(connection, self._account(connection, request))
        return None if reason is None else self._refused(connection, request.code, reason)

    def _account(self, connection: Connection, request: RemotingCommand) -> Account | None:
        return account_of(self.files.rules, key_of(request), connection.peer_host[0])

    def check_stored(
        self,
        connection: Connection,
        request: RemotingCommand,
        topic: str,
        properties: Mapping[str, str],
        wanted: int,
    ) -> None:
        """Check the right to a message, which becomes known only after it was read.

        Args:
            connection: the connection of the request.
            request: a request the guard has let in.
            topic: where the message is stored.
            properties: the message's.
            wanted: PUB, SUB, or both where either is enough.

        Raises:
            BrokerError: the account has no right to the message.
        """
        account = self._account(connection, request)
        reason = account and lacking_to_stored(account, topic, properties, wanted)
        if reason:
            self._complain(connection, request.code, reason)
            raise refusal(ResponseCode.SYSTEM_ERROR, EXCEPTION + reason)

    def reader(
        self, connection: Connection, request: RemotingCommand, topic: str
    ) -> Callable[[Mapping[str, str]], bool] | None:
        """Return the test of each message of a topic by its properties; None where all may be read.

        Retries and dead letters of a group are messages of other topics.
        """
        account = self._account(connection, request)
        is_mixed = topic.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX))
        if account is None or not is_mixed or (account.is_admin and not account.perms):
            return None
        return lambda properties: lacking_to_stored(account, topic, properties, SUB) is None

    def may(self, connection: Connection, access_key: str | None, rights: Rights) -> bool:
        """Whether a client, known by the key of its heartbeat, has rights now."""
        rules, host = self.files.rules, connection.peer_host[0]
        account = account_of(rules, access_key, host)
        if account is not None:
            return lacking_rights(account, rights) is None
        is_white = any(rule.fits(host) for rule in rules.white)
        return is_white or (access_key or "") in rules.accounts


class NameServerGuard(_Guard):
    """Guards changes of a name server: brokers beside it may make them, and admins.

    Questions are open to everybody, as upstream.

    Args:
        files: the accounts; read again when they are needed and a second has passed.
        clock: the time.
        own: the account of the brokers in the name server's process.
        admin_without_tls: as for a broker.
    """

    def __init__(
        self, files: AclFiles, clock: Clock, own: Account, *, admin_without_tls: bool
    ) -> None:
        super().__init__(files, clock, admin_without_tls=admin_without_tls)
        self._own = own
        self._next_poll_ms = 0.0

    def __call__(
        self, connection: Connection, request: RemotingCommand, is_answered: bool
    ) -> RemotingCommand | None:
        """Return the refusal of a request; None when it is let in."""
        if request.code in OPEN_NAME_SERVER_CODES or not is_answered:
            return None
        self._poll()
        rules, host = self.files.rules, connection.peer_host[0]
        known = {**rules.accounts, self._own.access_key: self._own}
        rules = dataclasses.replace(rules, accounts=known)
        reason = stranger_of(rules, request, host)
        account = None if reason is not None else account_of(rules, key_of(request), host)
        if account is not None:
            reason = lacking_admin(account, request.code) or self._open_admin(connection, account)
        return None if reason is None else self._refused(connection, request.code, reason)

    def _poll(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._next_poll_ms:
            self._next_poll_ms = now_ms + _POLL_PAUSE_MS
            self.files.poll()


def random_account() -> Account:
    """Return an account that nobody knows outside this process."""
    return plain_admin(f"rocketstream-{secrets.token_hex(8)}", secrets.token_hex(32))


def is_private(connection: Connection) -> bool:
    """Whether nobody on the network can read a connection: TLS, or this machine."""
    known: bool | None = connection.attributes.get("is_private")
    if known is None:
        peer = connection.peer_host[0]
        is_here = is_loopback(peer) or peer == connection.local_host[0]
        known = connection.attributes["is_private"] = connection.is_encrypted or is_here
    return known
