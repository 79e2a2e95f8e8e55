"""A consumer's loop of pulls: one for each queue, always on its way.

Law: runs on the loop, by callbacks: no task and no thread per queue, so an empty queue starves
none. Each queue is at any time exactly one of: in flight, waiting for a timer, held by its
consumer, or gone (C-199 to C-231, C-509, C-511).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

from rocketstream.client.consumer.pull_answer import (
    STALL_MS_MAX,
    STALLS_TOLD,
    SUSPENDED_DELAY_MS,
    AfterFailure,
    PullResult,
    RecordsResult,
    Stall,
    after_failure,
)
from rocketstream.client.consumer.pull_requests import Pull, PullRequests, PullTerms
from rocketstream.client.consumer.subscription import SubscriptionCheck
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.errors import BrokerError, RocketMQError
from rocketstream.model import MessageQueue, PullStatus
from rocketstream.protocol.bodies import SubscriptionData
from rocketstream.protocol.codes import ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.names import retry_topic

logger: logging.Logger = logging.getLogger("rocketstream.client")

QUICK_ANSWER_MS = 100
"""A broker with nothing to tell holds a pull for seconds; one that answers sooner does not hold."""


# --- queues that get no further -------------------------------------------------------------------


class StalledQueues:
    """The queues of one consumer whose pulls get no further."""

    def __init__(self, instance: MQClientInstance) -> None:
        self._outages = instance.outages
        self._stalls: dict[MessageQueue, Stall] = {}

    def __contains__(self, mq: MessageQueue) -> bool:
        return mq in self._stalls

    def stood(self, mq: MessageQueue, offset: int, status: PullStatus, address: str) -> int:
        """Count an answer that named no other offset; return the pause before the next pull, ms."""
        stall = self._stalls.setdefault(mq, Stall())
        pause_ms = stall.stood(offset)
        # A broker that holds no pulls is asked less often, but nothing is wrong with its queue.
        if stall.answers == STALLS_TOLD and status is not PullStatus.NO_NEW_MSG:
            self._outages.report(
                ("progress of", mq),
                f"{mq} stays at offset {offset}: {address} answers {status.name} and names no "
                f"other offset; it is pulled every {STALL_MS_MAX} ms. Look at the broker's log, "
                "or move the group to another offset (rocketstream group reset)",
            )
        return pause_ms

    def moved(self, mq: MessageQueue, offset: int | None = None) -> None:
        """End a stall: a pull got to ``offset``; None: its broker holds the pull."""
        stall = self._stalls.get(mq)
        if stall is not None and (offset is None or offset > stall.offset):
            del self._stalls[mq]
            self._outages.worked("progress of", mq)

    def forget(self, mq: MessageQueue) -> None:
        """Forget a queue that is not pulled any more."""
        self._stalls.pop(mq, None)
        self._outages.forget("pull of", mq)
        self._outages.forget("progress of", mq)


# --- the pulls of a consumer ----------------------------------------------------------------------


class Pulled(Protocol):
    """A queue that is pulled."""

    message_queue: MessageQueue
    pull_offset: int
    epoch: int
    """Another one after a seek, and once the queue leaves: older pulls count no more."""

    def pull_begins(self, now_ms: float) -> None:
        """A pull is about to be sent, or is put off."""
        ...


Q = TypeVar("Q", bound=Pulled)
Q_contra = TypeVar("Q_contra", bound=Pulled, contravariant=True)


class Sink(Protocol[Q_contra]):
    """The consumer whose queues are pulled."""

    def subscription(self, topic: str) -> SubscriptionData | None:
        """Return what is wanted of a topic; None when it is not wanted any more."""
        ...

    def may_pull(self, queue: Q_contra) -> bool:
        """Return whether a pull may be sent; if not, who lets it go on pulls it again."""
        ...

    def terms(
        self, queue: Q_contra, subscription: SubscriptionData, *, to_slave: bool
    ) -> PullTerms:
        """Return how to ask for the queue."""
        ...

    def accept(
        self,
        queue: Q_contra,
        messages: list[MessageExt],
        next_offset: int,
        body_bytes: int,
    ) -> int:
        """Take messages, maybe none, and pull from ``next_offset`` on; return how many they are."""
        ...

    def moved(self, queue: Q_contra, offset: int) -> None:
        """Start the queue anew at a smaller offset: the broker has less than was consumed."""
        ...

    def ends_before(self, queue: Q_contra, end: int) -> None:
        """Start the queue anew, which ends before what was consumed: at its end, or earlier."""
        ...


class Puller(Generic[Q]):
    """Pulls the queues of one consumer, one request per queue always on its way.

    Args:
        instance: the client instance.
        group: consumer group, with its namespace.
        sink: the consumer.
        check: compares subscriptions when a broker does not know one.

    Attributes:
        requests: asks brokers, and reads their answers.
        paused: nothing is pulled.
    """

    def __init__(
        self,
        instance: MQClientInstance,
        group: str,
        sink: Sink[Q],
        *,
        check: SubscriptionCheck | None = None,
    ) -> None:
        self.requests: PullRequests = PullRequests(instance, group)
        self.paused = False
        self._instance = instance
        self._group = group
        self._retry_topic = retry_topic(group)
        self._sink = sink
        self._check = check
        self._exception_delay_ms = instance.config.pull_time_delay_ms_when_exception
        self._loop = asyncio.get_running_loop()
        self._now = instance.clock.monotonic_ms
        self._stalls = StalledQueues(instance)
        self._timers: set[asyncio.TimerHandle] = set()
        self._stopped = False
        self._refreshing: set[str] = set()
        self._gone: set[MessageQueue] = set()
        """Queues whose topic the broker did not know at the last pull: it may be made anew."""

    def stop(self) -> None:
        """Pull nothing more; answers still to come are discarded."""
        self._stopped = True
        for timer in self._timers:
            timer.cancel()
        self.requests.stop()

    def forget(self, mq: MessageQueue) -> None:
        """Forget which broker a queue's last answer suggested, and what went wrong with it."""
        self.requests.drop(mq)
        self._stalls.forget(mq)
        self._gone.discard(mq)

    def is_gone(self, mq: MessageQueue) -> bool:
        """Whether the broker did not know a queue's topic at the last pull.

        What is noted of the queue then is of that topic, and would pass over messages of the next.
        """
        return mq in self._gone

    def pull_soon(self, queue: Q, epoch: int | None = None) -> None:
        """Pull a queue again that was held; from any thread. ``epoch`` as for ``pull``."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: shut down meanwhile
            self._loop.call_soon_threadsafe(self.pull, queue, epoch)

    def pull(self, queue: Q, epoch: int | None = None) -> None:
        """Send the next pull of a queue, or see to it that it is sent later (C-203).

        Args:
            queue: one of the consumer's.
            epoch: do it only while the queue has this one.
        """
        if self._stopped or (epoch is not None and queue.epoch != epoch):
            return
        queue.pull_begins(self._now())
        if self.paused:
            self._later(queue, SUSPENDED_DELAY_MS)
            return
        if not self._sink.may_pull(queue):
            return
        subscription = self._sink.subscription(queue.message_queue.topic)
        if subscription is None:
            self._later(queue, self._exception_delay_ms)
            return
        try:
            self._send(queue, subscription)
        except RocketMQError as error:
            self._failed(queue, queue.epoch, error)

    def pull_all(self, queues: Iterable[Q]) -> None:
        """Pull queues nothing is on its way for."""
        for queue in queues:
            self.pull(queue)

    def _send(self, queue: Q, subscription: SubscriptionData) -> None:
        mq, epoch, offset = queue.message_queue, queue.epoch, queue.pull_offset
        broker = self.requests.broker(mq)
        connection = None if broker is None else self._instance.remoting.connected(broker.address)
        if (
            broker is None
            or connection is None
            or not self.requests.can_select(broker.address, subscription)
        ):
            self._instance.background.run_soon(self._connect(queue, epoch, subscription))
            return
        terms = self._sink.terms(queue, subscription, to_slave=broker.is_slave)
        command = self.requests.command(mq, subscription, offset, terms)
        take = terms.take_records
        sent = Pull(mq, subscription, offset, broker.address, terms.check_crc, take is not None)
        sent_ms = self._now()

        def answered(answer: RemotingCommand | None, error: Exception | None) -> None:
            if queue.epoch != epoch or self._stopped:
                return  # of before a seek, or of a queue given up: discarded
            try:
                if answer is None:
                    assert error is not None
                    raise error
                self._instance.outages.answered(broker.address)
                if self._is_resubscribed(subscription):
                    # The broker may have selected by either subscription; the tags of one must not
                    # be tested on what the other selected, and may leave out what is wanted now.
                    self.pull(queue)
                    return
                self._answered(queue, sent, answer, self._now() - sent_ms, terms)
            except RocketMQError as failure:
                self._failed(queue, epoch, failure)
            except Exception as bug:
                logger.exception("handling a pull reply failed")
                self._failed(queue, epoch, bug)

        connection.request_callback(command, terms.timeout_ms, answered)

    async def _connect(self, queue: Q, epoch: int, subscription: SubscriptionData) -> None:
        try:
            address = await self.requests.known_broker(queue.message_queue, subscription)
            await self._instance.remoting.connection(address)
        except RocketMQError as error:
            self._failed(queue, epoch, error)
        else:
            self.pull(queue, epoch)

    def _is_resubscribed(self, asked: SubscriptionData) -> bool:
        now = self._sink.subscription(asked.topic)
        wanted = asked.sub_string, asked.expression_type
        return now is None or (now.sub_string, now.expression_type) != wanted

    def _answered(
        self, queue: Q, pull: Pull, answer: RemotingCommand, took_ms: float, terms: PullTerms
    ) -> None:
        mq, epoch, offset = pull.mq, queue.epoch, pull.offset
        result = self.requests.result(pull, answer)
        if mq in self._gone:
            self._begun_anew(queue, result)
            return
        status, next_offset = result.pull_status, result.next_begin_offset
        if status is PullStatus.OFFSET_ILLEGAL:
            self._offset_moved(queue, offset, result, pull.address)
            return
        delay_ms = 0
        if status is PullStatus.FOUND:
            delay_ms = terms.interval_ms
            self._instance.stats.inc_pull_rt(self._group, mq.topic, took_ms)
        size = len(answer.body)
        if terms.take_records is not None and isinstance(result, RecordsResult):
            accepted = terms.take_records(queue, result, size)
        else:
            accepted = self._sink.accept(queue, result.msg_found_list, next_offset, size)
        if accepted:
            self._instance.stats.inc_pull_tps(self._group, mq.topic, accepted)
        self._instance.outages.worked("pull of", mq)
        if next_offset > offset:
            self._stalls.moved(mq, next_offset)
        elif status is PullStatus.NO_NEW_MSG and took_ms >= QUICK_ANSWER_MS:
            self._stalls.moved(mq)
        else:
            # The broker holds the request while there is nothing; one that does not must not be
            # asked in a tight loop.
            delay_ms = max(delay_ms, self._stalls.stood(mq, offset, status, pull.address))
        if delay_ms:
            self._later(queue, delay_ms)
        else:
            self.pull(queue, epoch)

    def _begun_anew(self, queue: Q, result: PullResult) -> None:
        """Begin with the first message of a topic that was gone: offsets are given out anew.

        Those of the topic that was there before would pass over messages of this one.
        """
        mq, offset = queue.message_queue, result.min_offset
        self._gone.discard(mq)
        logger.warning("topic %s was gone, and is there again; %s begins at %d", mq[0], mq, offset)
        self._sink.moved(queue, offset)

    def _offset_moved(self, queue: Q, offset: int, result: PullResult, address: str) -> None:
        """Repair an offset outside the queue, at once unless that has just led nowhere (C-228)."""
        mq, epoch = queue.message_queue, queue.epoch
        corrected = result.next_begin_offset
        if offset > result.max_offset > corrected:
            corrected = result.max_offset  # old brokers would replay everything (C-564, C-512)
        is_new = mq not in self._stalls
        pause_ms = self._stalls.stood(mq, offset, PullStatus.OFFSET_ILLEGAL, address)
        if is_new:
            logger.warning(
                "offset %d of %s is not in the queue (%d to %d); continuing at %d",
                offset, mq, result.min_offset, result.max_offset, corrected,
            )  # fmt: skip
            pause_ms = pause_ms if corrected == offset else 0
        if corrected >= offset:
            # The queue's beginning was deleted: what is cached stays valid, only the next pull
            # moves.
            self._sink.accept(queue, [], corrected, 0)
            self._later(queue, pause_ms)
        elif is_new and offset > result.max_offset:
            self._sink.ends_before(queue, corrected)
        elif is_new:
            self._sink.moved(queue, corrected)
        else:
            self.later(pause_ms, lambda: self._moved_late(queue, epoch, corrected))

    def _moved_late(self, queue: Q, epoch: int, offset: int) -> None:
        if queue.epoch == epoch:
            self._sink.moved(queue, offset)

    def _failed(self, queue: Q, epoch: int, error: Exception) -> None:
        if queue.epoch != epoch or self._stopped:
            return
        mq = queue.message_queue
        retry = after_failure(error, self._exception_delay_ms)
        if queue.pull_offset and self._says_gone(mq, error):
            self._gone.add(mq)
        if mq.topic != self._retry_topic or not isinstance(error, BrokerError):
            self._instance.outages.failed(("pull of", mq), error, expected=retry.expected)
        if retry.after is AfterFailure.HEARTBEAT:
            self._instance.heartbeats.send_soon()
            subscription = self._sink.subscription(mq.topic)
            address = getattr(error, "address", None)
            if self._check is not None and subscription is not None and address:
                self._check.compare_soon(subscription, address)
        elif retry.after is AfterFailure.ROUTE:
            self.requests.forget(mq)  # a slave that is gone: the master may be there
            if mq.topic not in self._refreshing:
                # A broker that is gone fails the pulls of all its queues; one look-up does for
                # them.
                self._refreshing.add(mq.topic)
                self._instance.background.run_soon(self._refresh_route(mq.topic))
        self._later(queue, retry.delay_ms)

    def _says_gone(self, mq: MessageQueue, error: Exception) -> bool:
        """Whether a queue's master says that there is no such topic; a slave may not know yet."""
        return (
            isinstance(error, BrokerError)
            and error.code == ResponseCode.TOPIC_NOT_EXIST
            and error.address == self._instance.routes.masters.get(mq.broker_name)
        )

    async def _refresh_route(self, topic: str) -> None:
        try:
            await self._instance.route_updates.update(topic)
        finally:
            self._refreshing.discard(topic)

    def _later(self, queue: Q, delay_ms: float) -> None:
        epoch = queue.epoch
        self.later(delay_ms, lambda: self.pull(queue, epoch))

    def later(self, delay_ms: float, work: Callable[[], None]) -> None:
        """Have something done unless stopped meanwhile."""

        def due() -> None:
            self._timers.discard(timer)
            work()

        timer = self._loop.call_later(delay_ms / 1000, due)
        self._timers.add(timer)
