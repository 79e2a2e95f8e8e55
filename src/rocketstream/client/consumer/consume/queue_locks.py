"""Locks of queues at their brokers: asked for, renewed, doubted, given back.

Law: on the loop; a broker that does not answer has neither given nor refused. A queue whose lock
another member got, or that another member consumed while its lock was in doubt, is dropped: it has
to be taken anew (C-186 to C-188, C-279, C-556, C-558, C-560).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from rocketstream.client.consumer.consume.orderly_queue import Lease, OrderlyTimes
from rocketstream.client.consumer.queue import OrderlyQueue
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

logger: logging.Logger = logging.getLogger("rocketstream.client")

LOCK_TIMEOUT_MS = 1_000
REFUSED_RETRY_MS = (500, 500, 1_000, 2_000)
"""Pauses before a queue another member still has is asked for again (C-560); the last one stays."""


@dataclass(slots=True)
class LockAnswers:
    """The answers of brokers; queues in neither ``held`` nor ``refused`` got no answer.

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


class QueueLocker:
    """The queue locks of one member of a group."""

    def __init__(self, instance: MQClientInstance, group: str, times: OrderlyTimes) -> None:
        self._instance = instance
        self._group = group
        self._times = times
        self._now = instance.clock.monotonic_ms
        self._queues: dict[MessageQueue, OrderlyQueue] = {}
        self._granted: dict[MessageQueue, float] = {}
        """Locks of queues that are being taken, and when they were asked for."""
        self._addresses: dict[str, str] = {}
        """The address that was asked last, by broker name."""
        self._renewal: asyncio.Task[None] | None = None
        self._refusals = 0
        self._retry: asyncio.TimerHandle | None = None
        self._stopped = False

    # --- queues come and go -----------------------------------------------------------------------

    async def may_take(self, mqs: Sequence[MessageQueue]) -> Collection[MessageQueue]:
        """Lock queues at their brokers; return those that were locked (C-175, C-186).

        A refused lock is asked for again soon: its owner is about to give it back (C-560).
        """
        if self._renewal is None and not self._stopped:
            self._renewal = asyncio.get_running_loop().create_task(self._renew_forever())
        await self._unlock_unused(keep=mqs)
        answers = await self._lock(mqs)
        for mq in answers.held:
            self._granted[mq] = answers.asked_ms if self._stands(mq, answers) else -math.inf
        if answers.refused:
            self._ask_again_soon()
        else:
            self._refusals = 0
        return answers.held

    def lease(self, mq: MessageQueue) -> Lease:
        """Return the lease of a queue that is being taken: of the lock got just now, or before."""
        granted_ms = self._granted.pop(mq, None)
        former = self._queues.get(mq)
        if granted_ms is None and former is not None and former.process_queue.lease is not None:
            return former.process_queue.lease
        # Without a lock the lease is over before it begins, and a turn asks for one.
        return Lease(-math.inf if granted_ms is None else granted_ms, self._times.lock_max_live_ms)

    def taken(self, queue: OrderlyQueue) -> None:
        """Keep the lock of a queue that is ours now."""
        self._queues[queue.message_queue] = queue

    async def released(self, mqs: Sequence[MessageQueue]) -> None:
        """Unlock queues whose offsets are stored (C-122, C-188, C-556).

        At shutdown a listener may still run: its queue stays locked until the broker forgets it,
        so that nobody overtakes it.
        """
        free: list[MessageQueue] = []
        for mq in mqs:
            queue = self._queues.pop(mq, None)
            lease = None if queue is None else queue.process_queue.lease
            if (lease is None or lease.locked) and (queue is None or queue.is_free):
                free.append(mq)
        if free:
            await self._unlock(free)

    async def _unlock_unused(
        self, keep: Collection[MessageQueue] = (), until_ms: float = math.inf
    ) -> None:
        """Give back locks of queues that were not taken in the end, asked for until then."""
        unused = [mq for mq, ms in self._granted.items() if mq not in keep and ms <= until_ms]
        for mq in unused:
            del self._granted[mq]
        if unused:
            await self._unlock([mq for mq in unused if mq not in self._queues])

    def _ask_again_soon(self) -> None:
        if self._retry is not None or self._stopped:
            return
        pause_ms = REFUSED_RETRY_MS[min(self._refusals, len(REFUSED_RETRY_MS) - 1)]
        self._refusals += 1

        def due() -> None:
            self._retry = None
            self._instance.groups.rebalance_soon()

        self._retry = asyncio.get_running_loop().call_later(pause_ms / 1000, due)

    # --- locks are kept ---------------------------------------------------------------------------

    async def _renew_forever(self) -> None:
        pause_ms = self._times.first_lock_ms
        while True:
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = self._times.lock_interval_ms
            try:
                await self.renew()
            except Exception:
                logger.exception("renewing queue locks failed")

    async def renew(self) -> None:
        """Renew the locks of all queues that are ours (C-187, C-279); dropped ones not (C-558)."""
        # Younger locks may belong to queues that are just being taken: where to begin in them is
        # being asked for.
        await self._unlock_unused(until_ms=self._now() - self._times.lock_max_live_ms)
        await self.ask([mq for mq, queue in self._queues.items() if not queue.dropped])

    def connection_lost(self, address: str) -> None:
        """Trust no lock that was granted over this connection, until it is granted anew.

        Apache's broker keeps its locks in memory: after a restart whoever asks first is granted all
        of them. A batch that is with its listener ends; the next one waits for the lock.
        """
        for mq, queue in self._queues.items():
            lease = queue.process_queue.lease
            if lease is not None and self._addresses.get(mq.broker_name) == address:
                lease.doubt()
        for mq in self._granted:
            if self._addresses.get(mq.broker_name) == address:
                self._granted[mq] = -math.inf

    async def ask_for_doubted(self) -> bool:
        """Ask for the locks whose leases are over; return whether there was any."""
        now_ms = self._now()
        mqs = [
            mq
            for mq, queue in self._queues.items()
            if not queue.dropped and queue.is_in_doubt(now_ms)
        ]
        if mqs:
            await self.ask(mqs)
        return bool(mqs)

    async def ask(self, mqs: Sequence[MessageQueue]) -> Collection[MessageQueue]:
        """Ask for the locks of queues that are ours; return those another member has.

        Leases are renewed, or queues dropped, as the brokers answer.
        """
        answers = await self._lock(mqs)
        now_ms = self._now()
        # In the order asked, not that of a set: a simulated run is to be the same each time.
        held = [queue for mq in mqs if mq in answers.held and (queue := self._queues.get(mq))]
        doubted = [queue for queue in held if queue.is_in_doubt(now_ms)]
        ours = await asyncio.gather(*map(self._is_ours_still, doubted))
        unknown = [queue for queue, is_ours in zip(doubted, ours, strict=True) if not is_ours]
        for queue in held:
            mq, lease = queue.message_queue, queue.process_queue.lease
            if lease is None or queue in unknown or self._queues.get(mq) is not queue:
                continue
            if self._stands(mq, answers):
                lease.renew(answers.asked_ms)
        for mq in [mq for mq in mqs if mq in answers.refused]:
            refused = self._queues.get(mq)
            if refused is not None and refused.process_queue.lease and not refused.dropped:
                # Somebody else has consumed it meanwhile: what is cached here may be done there.
                logger.warning("%s was locked by another member; it has to be taken anew", mq)
                refused.process_queue.lease.lose()
                refused.drop()
                self._instance.groups.rebalance_soon()
        return answers.refused

    async def _is_ours_still(self, queue: OrderlyQueue) -> bool:
        """Whether nobody consumed a queue while its lock was in doubt; else it is dropped."""
        mq = queue.message_queue
        try:
            overtaken = await queue.is_overtaken()
        except RocketMQError as error:
            logger.debug(
                "it is not known yet whether another member consumed %s meanwhile: %s", mq, error
            )
            return False
        if overtaken and not queue.dropped:
            logger.warning("%s was consumed by another member meanwhile; it is taken anew", mq)
            queue.drop()
            self._instance.groups.rebalance_soon()
        return not overtaken

    def stop(self) -> None:
        """Ask for no lock again: the consumer ends."""
        self._stopped = True
        if self._retry is not None:
            self._retry.cancel()

    async def close(self) -> None:
        """Renew nothing any more, once stopped; give back what was not taken.

        Queues follow in ``released``.
        """
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.gather(self._renewal, return_exceptions=True)
        await self._unlock_unused()

    # --- requests ---------------------------------------------------------------------------------

    def _stands(self, mq: MessageQueue, answers: LockAnswers) -> bool:
        """Whether no connection to the queue's broker was lost since the request for ``answers``.

        A broker that was restarted since then has forgotten its locks.
        """
        address, losses = answers.asked[mq.broker_name]
        return self._instance.links.losses(address) == losses

    async def _lock(self, mqs: Iterable[MessageQueue]) -> LockAnswers:
        """Take or renew the locks of queues: one request per broker (C-186, C-187)."""
        answers = LockAnswers(self._now())
        by_broker = _by_broker(mqs)
        await asyncio.gather(
            *(self._lock_at(broker, queues, answers) for broker, queues in by_broker.items())
        )
        return answers

    async def _lock_at(self, broker: str, mqs: set[MessageQueue], answers: LockAnswers) -> None:
        body = LockBatchRequestBody(self._group, self._instance.client_id, mqs)
        command = RemotingCommand.request(RequestCode.LOCK_BATCH_MQ, body=body.encode())
        try:
            address = self._addresses[broker] = self._address(broker)
            answers.asked[broker] = address, self._instance.links.losses(address)
            answer = await self._instance.api.invoke(address, command, LOCK_TIMEOUT_MS)
            held = LockBatchResponseBody.decode(bytes(answer.body)).lock_ok_mq_set
        except RocketMQError as error:
            self._instance.outages.failed(("locks of", self._group, "at", broker), error)
            return
        self._instance.outages.worked("locks of", self._group, "at", broker)
        answers.held |= held & mqs
        answers.refused |= mqs - held

    async def _unlock(self, mqs: Collection[MessageQueue]) -> None:
        """Give locks back and wait until the brokers have them (C-188)."""
        await asyncio.gather(
            *(self._unlock_at(broker, queues) for broker, queues in _by_broker(mqs).items())
        )

    async def _unlock_at(self, broker: str, mqs: set[MessageQueue]) -> None:
        body = UnlockBatchRequestBody(self._group, self._instance.client_id, mqs)
        command = RemotingCommand.request(RequestCode.UNLOCK_BATCH_MQ, body=body.encode())
        try:
            await self._instance.api.invoke(self._address(broker), command, LOCK_TIMEOUT_MS)
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
