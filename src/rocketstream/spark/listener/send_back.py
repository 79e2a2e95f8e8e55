"""The return of failed messages, over blocking connections, until every one is acknowledged.

Law: a copy is stored before the task that read the original counts as done, so a crash duplicates
and never loses (C-266).
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Final

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.client.consumer.consume.failure_cause import has_cause
from rocketstream.errors import (
    BrokerError,
    MessageInvalidError,
    NoPermissionError,
    RocketMQError,
    RouteNotFoundError,
    SendError,
    SendOutcome,
    TransportError,
    broker_error,
)
from rocketstream.limits import MESSAGE_BODY_BYTES_MAX, PROPERTIES_BYTES_MAX
from rocketstream.model import MessageQueue
from rocketstream.protocol.cause import CAUSE_PROPERTIES
from rocketstream.protocol.codes import Perm, RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import ViewMessageRequestHeader
from rocketstream.protocol.message_ext import MessageExt, decode_messages
from rocketstream.spark.connections import admin_client
from rocketstream.spark.listener.messages import Replacement, anew, dead, send_back_command
from rocketstream.spark.options import ConsumeOptions
from rocketstream.spark.patience import Patience, patiently
from rocketstream.spark.worker import pool

logger: logging.Logger = logging.getLogger("rocketstream.spark")

AT_ONCE: Final = 32
"""Most send-backs under way to one broker: few enough for the buffers of a socket."""

COPIES_MAX: Final = 6
"""Most copies of a message made because brokers store them, but do not call them safe."""

_NOT_SAFE: Final = frozenset(
    {
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    }
)

Failed = tuple[MessageExt, int]
"""A message and the delay level of its next try."""
_Left = tuple[list[Failed], RocketMQError | None]
"""The messages that were not stored, and why; None where all were."""


class SendBack:
    """Sends back messages that one task could not consume; used by one thread; to be closed.

    Args:
        options: the options of consuming.
        clock: bounds retries.
    """

    def __init__(self, options: ConsumeOptions, clock: Clock = SYSTEM_CLOCK) -> None:
        self._options = options
        self._clock = clock
        self._client: BlockingAdminClient | None = None
        self._rotation = itertools.count()

    def close(self) -> None:
        """Close the connections this object has made."""
        if self._client is not None:
            self._client.close()

    def give_back(self, failed: Sequence[Failed]) -> None:
        """Send failed messages back, to be consumed again later; return when all copies are stored.

        Each message is sent back to the broker that stores it. If that broker refuses or cannot be
        reached, the message is sent to the retry topic as a new one, on any broker. Blocks for up
        to ``retryTimeoutMs`` while both fail.

        Raises:
            MessageInvalidError: the properties a retry adds make a message larger than brokers
                accept.
            SendError: a copy could not be stored.
        """
        self._until_stored(failed, self._try_back)

    def give_up(self, messages: Sequence[MessageExt]) -> None:
        """Move messages to the dead letters; blocks and raises as ``give_back`` does."""
        group, most = self._options.group, self._options.max_reconsume_times

        def attempt(failed: Sequence[Failed]) -> _Left:
            return self._all_anew(failed, lambda message, _: dead(message, group, most))

        self._until_stored([(message, 0) for message in messages], attempt)
        for message in messages:
            logger.warning(
                "message %s of topic %s is given up by group %s after %d tries: it is in the "
                "dead-letter topic now",
                message.msg_id, message.topic, group, message.reconsume_times + 1,
            )  # fmt: skip

    def _until_stored(
        self, left: Sequence[Failed], attempt: Callable[[Sequence[Failed]], _Left]
    ) -> None:
        patience = Patience(self._options.retry_timeout_ms, self._clock)
        copies = 0

        def store() -> None:
            nonlocal left
            before = len(left)
            left, error = attempt(left)
            if len(left) < before:
                patience.succeeded()
            if error is not None:
                raise error

        def may_pass(error: RocketMQError) -> bool:
            nonlocal copies
            copies += isinstance(error, BrokerError) and error.code in _NOT_SAFE
            for_good = isinstance(error, MessageInvalidError | NoPermissionError)
            return not for_good and copies < COPIES_MAX

        try:
            patiently(store, patience, may_pass, "failed messages not sent back yet, trying again")
        except MessageInvalidError:
            raise
        except RocketMQError as error:
            message = left[0][0]
            raise SendError(
                f"{len(left)} failed messages of group {self._options.group!r} could be "
                f"neither sent back nor sent anew, the first is {message.msg_id} of topic "
                f"{message.topic!r}: {error}. The task fails, so that they are consumed again",
                SendOutcome.UNKNOWN,
                group=self._options.group,
            ) from error

    def _try_back(self, failed: Sequence[Failed]) -> _Left:
        """Send back, and send the refused ones as new messages; return the messages not stored, and
        why.

        A send-back makes the broker copy the stored message, so a message that must name its cause
        is sent as a new one.
        """
        refused: list[Failed] = []
        by_broker: dict[str, list[Failed]] = {}
        for each in self._without_cause(failed):
            by_broker.setdefault(each[0].broker_name, []).append(each)
        for broker_name, mine in by_broker.items():
            for first in range(0, len(mine), AT_ONCE):
                refused += self._back_to(broker_name, mine[first : first + AT_ONCE])
        return self._all_anew(refused, self._anew)

    def _anew(self, message: MessageExt, level: int) -> Replacement:
        return anew(message, self._options.group, level, self._options.max_reconsume_times)

    def _without_cause(self, failed: Sequence[Failed]) -> Sequence[Failed]:
        """Send new messages for those that must name their cause; return the others, and
        failures."""
        if not self._options.send_back_cause:
            return failed
        left: list[Failed] = []
        for message, level in failed:
            stored = self._stored(message) if has_cause(message) else None
            if stored is None or self._send(self._anew(stored, level)) is not None:
                left.append((message, level))
        return left

    def _stored(self, message: MessageExt) -> MessageExt | None:
        """Return a message as its broker stores it, with the cause; None where it does not say.

        A transform may have changed the row, but must get the message as it was sent again.
        """
        header = ViewMessageRequestHeader(offset=message.commit_log_offset)
        command = RemotingCommand.request(RequestCode.VIEW_MESSAGE_BY_ID, header)
        try:
            address = self._cluster.master(message.broker_name)
            answer = pool(self._options).request(address, command, self._options.request_timeout_ms)
            found = decode_messages(answer.body) if answer.code == ResponseCode.SUCCESS else []
            if not found or found[0].queue_offset != message.queue_offset:
                return None
            stored = found[0]
            told = {
                name: message.properties[name]
                for name in CAUSE_PROPERTIES & message.properties.keys()
            }
            stored.properties.update(told)
        except RocketMQError as error:
            logger.info(
                "%s is sent back without the cause of its failure: %s", message.msg_id, error
            )
            return None
        stored._topic, stored._broker_name = message.topic, message.broker_name
        stored._reconsume_times = message.reconsume_times
        return stored

    def _back_to(self, broker_name: str, failed: Sequence[Failed]) -> list[Failed]:
        """Send messages back to one broker; return those it did not store."""
        group, most = self._options.group, self._options.max_reconsume_times
        answers: dict[int, RemotingCommand] = {}
        sent: list[int] = []
        why: object = None
        try:
            commands = [send_back_command(message, group, level, most) for message, level in failed]
            with pool(self._options).connection(self._cluster.master(broker_name)) as connection:
                sent = [connection.submit(command) for command in commands]
                for _ in sent:
                    answer = connection.receive(self._options.request_timeout_ms)
                    answers[answer.opaque] = answer
        except (TransportError, RouteNotFoundError, BrokerError) as error:
            why = error
        refused = []
        for index, each in enumerate(failed):
            answer_of = answers.get(sent[index]) if index < len(sent) else None
            if answer_of is None or answer_of.code != ResponseCode.SUCCESS:
                why = answer_of.remark if answer_of is not None else why
                refused.append(each)
        if refused:
            logger.info(
                "broker %s did not take %d messages back, sending them anew: %s",
                broker_name, len(refused), why,
            )  # fmt: skip
        return refused

    def _all_anew(
        self, failed: Sequence[Failed], replacement: Callable[[MessageExt, int], Replacement]
    ) -> _Left:
        left: list[Failed] = []
        last: RocketMQError | None = None
        for each in failed:
            sent = replacement(*each)
            error = self._send(sent)
            if error is not None:
                left.append(each)
                for_good = isinstance(last, MessageInvalidError)
                last = last if for_good else _reason(error, each[0], sent)
        return left, last

    def _send(self, replacement: Replacement) -> RocketMQError | None:
        """Send a message to any queue of its topic, each broker once; None when it is safe."""
        last: RocketMQError | None = None
        try:
            queues = self._writable(replacement.topic)
        except (TransportError, BrokerError, RouteNotFoundError) as error:
            return error
        tried: set[str] = set()
        start = next(self._rotation)
        for step in range(len(queues)):
            queue = queues[(start + step) % len(queues)]
            if queue.broker_name in tried:
                continue
            tried.add(queue.broker_name)
            try:
                address = self._cluster.master(queue.broker_name)
                answer = pool(self._options).request(
                    address, replacement.command(queue), self._options.request_timeout_ms
                )
            except (TransportError, RouteNotFoundError) as error:
                last = error
                continue
            if answer.code == ResponseCode.SUCCESS:
                return None
            doubt = "stored, but not as safely as the broker is set up to"
            remark = answer.remark or (doubt if answer.code in _NOT_SAFE else None)
            last = broker_error(answer.code, remark, address)
        return last or RouteNotFoundError(f"topic {replacement.topic!r} has no writable queue")

    def _writable(self, topic: str) -> list[MessageQueue]:
        route = self._cluster.route(topic)
        return sorted(
            MessageQueue(topic, data.broker_name, queue_id)
            for data in route.queue_datas
            if data.perm & Perm.WRITE
            for queue_id in range(data.write_queue_nums)
        )

    @property
    def _cluster(self) -> BlockingAdminClient:
        if self._client is None:
            self._client = admin_client(self._options)
        return self._client


def _reason(error: RocketMQError, message: MessageExt, sent: Replacement) -> RocketMQError:
    """Return why a message was not stored: that it failed this time, or that it never can be.

    Java's consumer repeats such a message for ever: each way back adds properties (C-270, C-271),
    and the bound is the one it was sent within (C-430). Cutting a user's properties would give the
    listener a different message.
    """
    if not isinstance(error, BrokerError) or error.code != ResponseCode.MESSAGE_ILLEGAL:
        return error
    return MessageInvalidError(
        f"message {message.msg_id} (topic {message.topic!r}, broker {message.broker_name!r}, queue "
        f"{message.queue_id}, offset {message.queue_offset}) failed and can be stored neither for "
        f"another try nor as a dead letter: with what a retry adds its properties take "
        f"{sent.properties_bytes} bytes, its body {len(message.body)}; brokers take at most "
        f"{PROPERTIES_BYTES_MAX} bytes of properties, {MESSAGE_BODY_BYTES_MAX} of body "
        f"unless set otherwise ({error.message}). The query comes to it again after each restart: "
        "have the listener keep this message somewhere itself and return success for it, and have "
        "senders put less into properties",
        msg_id=message.msg_id,
        topic=message.topic,
    )
