"""Locks of queues at their brokers: taken, renewed, given back.

Law: on the loop; a broker that does not answer has neither given nor refused (C-186 to C-188).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.errors import RocketMQError
from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import (
    LockBatchRequestBody,
    LockBatchResponseBody,
    UnlockBatchRequestBody,
)
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand

LOCK_TIMEOUT_MS = 1_000


@dataclass(slots=True)
class LockAnswers:
    """What brokers answered; queues in neither ``held`` nor ``refused`` got no answer.

    Attributes:
        asked_ms: monotonic time before the request: leases count from here.
        held: queues this client has.
        refused: queues that another client has.
        asked: by broker name: the address asked, and how often a connection to it had been lost.
    """

    asked_ms: float
    held: set[MessageQueue] = field(default_factory=set)
    refused: set[MessageQueue] = field(default_factory=set)
    asked: dict[str, tuple[str, int]] = field(default_factory=dict)


class QueueLocks:
    """Takes, renews and gives back the queue locks of one member of a group."""

    def __init__(self, instance: MQClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group
        self._addresses: dict[str, str] = {}
        """The address that was asked last, by broker name."""

    def is_from(self, mq: MessageQueue, address: str) -> bool:
        """Whether the lock of a queue was last asked for at this address."""
        return self._addresses.get(mq.broker_name) == address

    def still_stands(self, mq: MessageQueue, answers: LockAnswers) -> bool:
        """Whether no connection to the queue's broker was lost since the request for ``answers``.

        A broker that was restarted since then has forgotten its locks.
        """
        address, losses = answers.asked[mq.broker_name]
        return self._instance.losses(address) == losses

    async def lock(self, mqs: Iterable[MessageQueue]) -> LockAnswers:
        """Take or renew the locks of queues: one request per broker (C-186, C-187)."""
        answers = LockAnswers(self._instance.clock.monotonic_ms())
        await asyncio.gather(
            *(self._lock(broker, queues, answers) for broker, queues in _by_broker(mqs).items())
        )
        return answers

    async def _lock(self, broker: str, mqs: set[MessageQueue], answers: LockAnswers) -> None:
        body = LockBatchRequestBody(self._group, self._instance.client_id, mqs)
        command = RemotingCommand.request(RequestCode.LOCK_BATCH_MQ, body=body.encode())
        try:
            address = self._addresses[broker] = self._address(broker)
            answers.asked[broker] = address, self._instance.losses(address)
            answer = await self._instance.api.invoke(address, command, LOCK_TIMEOUT_MS)
            held = LockBatchResponseBody.decode(bytes(answer.body)).lock_ok_mq_set
        except RocketMQError as error:
            self._instance.outages.failed(("locks of", self._group, "at", broker), error)
            return
        self._instance.outages.worked("locks of", self._group, "at", broker)
        answers.held |= held & mqs
        answers.refused |= mqs - held

    async def unlock(self, mqs: Collection[MessageQueue]) -> None:
        """Give locks back and wait until the brokers have them (C-188)."""
        await asyncio.gather(
            *(self._unlock(broker, queues) for broker, queues in _by_broker(mqs).items())
        )

    async def _unlock(self, broker: str, mqs: set[MessageQueue]) -> None:
        body = UnlockBatchRequestBody(self._group, self._instance.client_id, mqs)
        command = RemotingCommand.request(RequestCode.UNLOCK_BATCH_MQ, body=body.encode())
        try:
            address = self._address(broker)
            await self._instance.api.invoke(address, command, LOCK_TIMEOUT_MS)
        except RocketMQError as error:
            self._instance.outages.failed(("unlocking for", self._group, "at", broker), error)
        else:
            self._instance.outages.worked("unlocking for", self._group, "at", broker)

    def _address(self, broker: str) -> str:
        return self._instance.api.channel(self._instance.routes.known_master(broker))


def _by_broker(mqs: Iterable[MessageQueue]) -> dict[str, set[MessageQueue]]:
    found: dict[str, set[MessageQueue]] = {}
    for mq in mqs:
        found.setdefault(mq.broker_name, set()).add(mq)
    return found
