"""Records a history while a program runs, around its sends and around its listeners.

Pure: the given clock dates events. A message is known by its key (``Message.keys``), which the
program makes unique for each message it means to send once. May be used from several threads.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from rocketstream.errors import SendError, SendOutcome
from rocketstream.model import Message, MessageQueue, SendResult
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.properties import PROPERTY_RETRY_TOPIC
from rocketstream.testing.history.events import (
    Content,
    Event,
    ListenerCutOff,
    ListenerReturned,
    LogRead,
    MessageDelivered,
    MessageStored,
    SendAcknowledged,
    SendFailed,
    SendInvoked,
)
from rocketstream.testing.history.story import DLQ, RETRY


def place_of(group: str, message: MessageExt) -> MessageQueue:
    """Return the queue a message was read from; listeners see retries under the first topic."""
    topic = message.topic
    if not topic.startswith((RETRY, DLQ)) and PROPERTY_RETRY_TOPIC in message.properties:
        topic = RETRY + group
    return MessageQueue(topic, message.broker_name, message.queue_id)


class Sending:
    """One send under way; record how it ended with one of its methods."""

    def __init__(self, recorder: Recorder, invoked: SendInvoked, tries_max: int) -> None:
        self._recorder, self._invoked, self._tries_max = recorder, invoked, tries_max

    def acknowledged(self, result: SendResult | None = None) -> None:
        """Record that the send returned; without ``result`` its place is unknown."""
        if result is None:
            self.acknowledged_at(None, -1)
        else:
            self.acknowledged_at(result.message_queue, result.queue_offset)

    def unsafe(self) -> None:
        """Record that the message is stored, but may be lost: its status is not SEND_OK."""
        now, key = self._recorder.now(), self._invoked.key
        self._recorder.record(SendFailed(now, key, SendOutcome.UNKNOWN, self._tries_max))

    def acknowledged_at(
        self, queue: MessageQueue | None, offset: int, wanted: MessageQueue | None = None
    ) -> None:
        """Record that the send was acknowledged with this place, or for a queue to be seen in."""
        now, key = self._recorder.now(), self._invoked.key
        self._recorder.record(SendAcknowledged(now, key, queue, offset, self._tries_max, wanted))

    def failed(self, error: Exception) -> None:
        """Record that the send raised; only a ``SendError`` tells anything of the outcome."""
        outcome = error.outcome if isinstance(error, SendError) else SendOutcome.UNKNOWN
        now = self._recorder.now()
        self._recorder.record(SendFailed(now, self._invoked.key, outcome, self._tries_max))


class Returned(Protocol):
    """Records that a listener call ended."""

    def __call__(self, success: bool, failed_from: int | None = None) -> None:
        """Record it; of a successful one, messages from the place ``failed_from`` on failed."""
        ...


class Recorder:
    """Collects the events of one run.

    Args:
        now: true time in milliseconds, one clock for the whole run.
        record: called with each event; by default it is appended to ``events``.
    """

    def __init__(
        self, now: Callable[[], float], record: Callable[[Event], None] | None = None
    ) -> None:
        self.now = now
        self.events: list[Event] = []
        self.record: Callable[[Event], None] = self.events.append if record is None else record
        self._calls = itertools.count(1)

    def sending(
        self,
        key: str,
        topic: str,
        *,
        due_ms: float = 0.0,
        tags: str = "",
        transactional: bool = False,
        tries_max: int = 1,
        message: Message | None = None,
    ) -> Sending:
        """Note that a send begins.

        Args:
            key, topic, due_ms, tags, transactional: as ``SendInvoked`` has them.
            tries_max: 1 + ``retry_times_when_send_failed``.
            message: the message, to have compared what arrives with it.
        """
        content = None
        if message is not None:
            content = Content.of(message.body, message.properties)
            tags = content.tags
        invoked = SendInvoked(
            self.now(), key, topic, due_ms, tags, transactional, tries_max, content
        )
        self.record(invoked)
        return Sending(self, invoked, tries_max)

    @contextmanager
    def listening(
        self, group: str, member: str, messages: Sequence[MessageExt]
    ) -> Iterator[Returned]:
        """Record a listener call; the block is given a function to report whether it succeeds.

        A block that raises has failed. One that is cancelled is over without an outcome; one that
        ends without reporting counts as a call whose end is unknown.
        """
        call, at = next(self._calls), self.now()
        deliveries = [
            MessageDelivered(
                at,
                message.keys or "",
                group,
                member,
                place_of(group, message),
                message.queue_offset,
                message.reconsume_times,
                call,
                Content.of(message.body, message.properties),
            )
            for message in messages
        ]
        for delivery in deliveries:
            self.record(delivery)

        def returned(success: bool, failed_from: int | None = None) -> None:
            end = self.now()
            for place, delivery in enumerate(deliveries):
                good = success and (failed_from is None or place < failed_from)
                self.record(ListenerReturned(end, delivery, good))

        try:
            yield returned
        except Exception:
            returned(False)
            raise
        except GeneratorExit:  # thrown away with its loop: nobody knows when it ended
            raise
        except BaseException:  # cancelled
            end = self.now()
            for delivery in deliveries:
                self.record(ListenerCutOff(end, delivery))
            raise

    def log(
        self,
        queue: MessageQueue,
        begin: int,
        messages: Sequence[MessageExt],
        stored_at: Callable[[MessageExt], float] | None = None,
    ) -> None:
        """Record that a queue was read to its end from ``begin``, and the messages found in it.

        Args:
            queue: the queue.
            begin: its first offset.
            messages: the messages it holds.
            stored_at: returns when a message was stored, on this recorder's clock; by default the
                current time is taken.
        """
        now, end = self.now(), begin
        for message in messages:
            at = now if stored_at is None else stored_at(message)
            key, tags = message.keys or "", message.tags or ""
            content = Content.of(message.body, message.properties)
            self.record(MessageStored(at, key, queue, message.queue_offset, tags, content))
            end = message.queue_offset + 1
        self.record(LogRead(now, queue, begin, end))
