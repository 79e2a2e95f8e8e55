"""Messages of a producer with a namespace: wrapped on their way out, results unwrapped (C-148).

Law: the user's message keeps the topic it has; only the id and INSTANCE_ID are put into it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from rocketstream._util.clock import Clock
from rocketstream.client.config import ClientConfig
from rocketstream.client.core.producer_settings import ProducerSettings
from rocketstream.client.producer.sending import MessagePreparer, PreparedSend
from rocketstream.model import Message, MessageQueue, SendResult
from rocketstream.protocol.answer_form import StoredForm, StoredValues
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.properties import PROPERTY_INSTANCE_ID


class NamespacedSend(PreparedSend):
    """A prepared send whose result names the user's topic."""

    __slots__ = ("unwrap",)
    unwrap: Callable[[MessageQueue], MessageQueue]

    def result(self, answer: RemotingCommand, mq: MessageQueue, address: str) -> SendResult:
        """Read the broker's answer; raises as ``PreparedSend.result``."""
        result = super().result(answer, mq, address)
        return replace(result, message_queue=self.unwrap(result.message_queue))

    def stored(self, form: StoredForm, values: StoredValues, mq: MessageQueue) -> SendResult:
        """Return what ``result`` would make of the usual answer."""
        result = super().stored(form, values, mq)
        return replace(result, message_queue=self.unwrap(result.message_queue))


class NamespacedPreparer(MessagePreparer):
    """Makes messages ready under the topic the servers know."""

    prepared_type = NamespacedSend

    def __init__(self, settings: ProducerSettings, clock: Clock, config: ClientConfig) -> None:
        super().__init__(settings, clock)
        self._config = config
        self._namespace = config.effective_namespace() or ""

    def one(self, message: Message) -> PreparedSend:
        """Make one message ready; raises as ``MessagePreparer.one``."""
        return self._with_unwrap(super().one(self._wrapped(message)))

    def batches(self, messages: Sequence[Message]) -> list[PreparedSend]:
        """Make a batch ready; raises as ``MessagePreparer.batches``."""
        wrapped = [self._wrapped(message) for message in messages]
        return [self._with_unwrap(part) for part in super().batches(wrapped)]

    def _wrapped(self, message: Message) -> Message:
        # The properties are shared, so that the id given to the copy is the message's own.
        message.properties[PROPERTY_INSTANCE_ID] = self._namespace
        # Past the initialiser: what was assigned since is for the checks of sends to refuse.
        copy = Message.__new__(Message)
        copy.topic, copy.body = self._config.with_namespace(message.topic), message.body
        copy.flag, copy.properties = message.flag, message.properties
        return copy

    def _with_unwrap(self, prepared: PreparedSend) -> PreparedSend:
        assert isinstance(prepared, NamespacedSend)
        prepared.unwrap = self._config.queue_without_namespace
        return prepared
