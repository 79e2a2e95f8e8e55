"""A simulated broker with ways of Apache's that ours has not: clients must bear them.

Law: chance is drawn from the seed, and nothing else of the broker is another.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

from rocketstream.protocol.bodies import QueueLockTable
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.server.broker.broker import Broker
from rocketstream.server.broker.core.locks import QueueLocks
from rocketstream.server.broker.core.members import ConsumerGroup, ConsumerMembers
from rocketstream.transport.connection import Connection
from rocketstream.transport.sharing import AnswerSteps

BUSY_SHARE: Final = 0.04
"""The share of sends that is refused because the broker is busy."""
_BUSY: Final = "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while"
_SENDS: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.CONSUMER_SEND_MSG_BACK,
    }
)


class ForgottenLocks(QueueLocks):
    """Leases of queues that do not outlive the broker (RebalanceLockManager)."""

    def load(self, table: QueueLockTable, now_ms: float) -> None:
        """Forget who held what before the start."""

    def wait_out(self, now_ms: float) -> None:
        """Give leases away at once, whoever had them."""


class UnorderedMembers(ConsumerMembers):
    """Members of groups that are told in any order, as from a hash table (ConsumerGroupInfo)."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance

    def group(self, name: str) -> ConsumerGroup | None:
        """Return a group; its members stand in another order each time."""
        found = super().group(name)
        if found is not None:
            members = list(found.members.items())
            self._chance.shuffle(members)
            found.members = dict(members)
        return found


class ApacheLikeBroker(Broker):
    """A broker that forgets leases, tells members in any order and refuses sends when it is busy.

    Args:
        chance: where its chance comes from.
        given, more: see ``Broker``.
    """

    def __init__(self, chance: random.Random, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._chance = chance
        self.controller.locks = ForgottenLocks()
        self.controller.consumers = UnorderedMembers(chance)

    def _take_frames(
        self,
        connection: Connection,
        data: bytes | bytearray,
        position: int,
        until: Callable[[], bool],
    ) -> int:
        return position  # each request is looked at by itself

    def _dispatch(self, connection: Connection, request: RemotingCommand) -> AnswerSteps | None:
        if request.code in _SENDS and self._chance.random() < BUSY_SHARE:
            connection.reply(request, RemotingCommand.response(ResponseCode.SYSTEM_BUSY, _BUSY))
            return None
        return super()._dispatch(connection, request)
