"""The guard: asked about every request before its handler runs, when there are accounts.

Law: asks ``core.acl`` and answers in the words upstream's client knows.
"""

from __future__ import annotations

import logging
from typing import Final

from rocketstream._util.clock import Clock
from rocketstream.protocol.codes import ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.server.broker.acl.files import AclFiles
from rocketstream.server.broker.core.acl.verdict import (
    account_of,
    lacking_rights,
    refusal_of,
)
from rocketstream.server.dispatch import refusal
from rocketstream.transport.aio import Connection

logger = logging.getLogger("rocketstream.server")

EXCEPTION: Final = "org.apache.rocketmq.acl.common.AclException: "
"""The beginning of a refusal: 4.9 answers SYSTEM_ERROR with the exception's text, and clients and
dashboards look for this name."""
_COMPLAINT_PAUSE_MS: Final = 1_000.0


class AccessGuard:
    """Lets requests in, or says why they are refused.

    Attributes:
        files: the accounts.
    """

    def __init__(self, files: AclFiles, clock: Clock) -> None:
        self.files = files
        self._clock = clock
        self._next_complaint_ms = 0.0
        self._untold = 0

    def __call__(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        """Return the refusal of a request; None when it is let in."""
        reason = refusal_of(self.files.rules, request, connection.peer_host[0])
        if reason is None:
            return None
        self._complain(connection, request.code, reason)
        return RemotingCommand.response(ResponseCode.SYSTEM_ERROR, EXCEPTION + reason)

    def check_stored(
        self, connection: Connection, request: RemotingCommand, topic: str, wanted: int
    ) -> None:
        """Check the right to a topic that becomes known only after a stored message was read.

        Args:
            connection: the connection of the request.
            request: a request the guard has let in.
            topic: topic of the message.
            wanted: PUB, SUB, or both where either is enough.

        Raises:
            BrokerError: the account has no right to the topic.
        """
        account = account_of(self.files.rules, request, connection.peer_host[0])
        if account is None:
            return
        reason = lacking_rights(account, {topic: wanted})
        if reason is not None:
            self._complain(connection, request.code, reason)
            raise refusal(ResponseCode.SYSTEM_ERROR, EXCEPTION + reason)

    def _complain(self, connection: Connection, code: int, reason: str) -> None:
        """Log at most one line a second, since a peer can cause refusals at no cost."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._next_complaint_ms:
            self._untold += 1
            return
        self._next_complaint_ms = now_ms + _COMPLAINT_PAUSE_MS
        more = f" ({self._untold} more since the last such line)" if self._untold else ""
        self._untold = 0
        logger.warning("broker: refused code=%d peer=%s: %r%s", code, connection.peer, reason, more)
