"""What the sync and the asyncio producer share: settings, state, targets, batch results.

Law: no I/O and no waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.client.config import ClientConfig, client_config
from rocketstream.client.core.producer_settings import ProducerSettings
from rocketstream.client.core.send import queue_of_key
from rocketstream.client.observe.hooks import (
    CheckForbiddenHook,
    CheckForbiddenHooks,
    SendHooks,
    SendMessageHook,
)
from rocketstream.client.producer.async_sender import ANY_QUEUE, SendTarget
from rocketstream.client.producer.sending import MessagePreparer
from rocketstream.client.service_state import ServiceState
from rocketstream.client.unsupported import refuse_unsupported
from rocketstream.errors import (
    ClientStateError,
    ConfigurationError,
    MessageInvalidError,
)
from rocketstream.model import Message, MessageQueue, SendResult, SendStatus

QueueSelector = Callable[[Sequence[MessageQueue], Message, Any], MessageQueue]
Messages = Message | Iterable[Message]

_STATUS_ORDER = list(SendStatus)


class ProducerBase:
    """Settings and state of a producer; see ``rocketstream.Producer`` for the arguments."""

    def __init__(
        self,
        group: str,
        *,
        namesrv_addr: str | None = None,
        config: ClientConfig | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **settings: Any,
    ) -> None:
        refuse_unsupported(settings)
        shared = client_config(config, namesrv_addr, settings)
        try:
            self.settings = ProducerSettings(group, **settings)
        except TypeError as error:
            raise ConfigurationError(f"Producer: {error}") from None
        self.settings.check()
        self.config = shared.with_own_instance(clock)
        self.state = ServiceState.CREATE_JUST
        self.send_hooks = SendHooks()
        self.check_forbidden_hooks = CheckForbiddenHooks()
        self._clock = clock
        self._preparer = MessagePreparer(self.settings, clock)

    @property
    def group(self) -> str:
        """The producer group."""
        return self.settings.producer_group

    @property
    def client_id(self) -> str:
        """The id brokers know this producer by."""
        return self.config.client_id()

    def register_send_message_hook(self, hook: SendMessageHook) -> None:
        """Call ``hook`` before and after each try of a send; what it raises is only logged."""
        self.send_hooks.register(hook)

    def register_check_forbidden_hook(self, hook: CheckForbiddenHook) -> None:
        """Ask ``hook`` before each try of a send; what it raises ends the send."""
        self.check_forbidden_hooks.register(hook)

    def _begin_start(self) -> None:
        if self.state is not ServiceState.CREATE_JUST:
            raise ClientStateError(
                "The producer service state not OK, maybe started once, "
                f"{self.state.value}; a client cannot be started again, create a new one"
            )
        self.config.name_servers()
        self.state = ServiceState.START_FAILED

    def _not_running(self) -> ClientStateError:
        return ClientStateError(
            f"The producer service state not OK, {self.state.value}; call start() first, once"
        )

    def _timeout(self, timeout_ms: float | None) -> float:
        return self.settings.send_msg_timeout_ms if timeout_ms is None else timeout_ms


def target_of(
    message: Message,
    queue: MessageQueue | None,
    selector: QueueSelector | None,
    arg: Any,
    sharding_key: str | None,
) -> SendTarget:
    """Return where a message is to go, checking that only one way is named.

    Raises:
        ConfigurationError: more than one way, or a key that is no text.
        MessageInvalidError: the queue belongs to another topic (C-469).
    """
    if queue is None and selector is None and sharding_key is None:
        return ANY_QUEUE
    if (queue is not None) + (selector is not None) + (sharding_key is not None) > 1:
        raise ConfigurationError("give one of queue, selector and sharding_key, not several")
    if queue is not None:
        if queue.topic != message.topic:
            raise MessageInvalidError(
                f"message's topic not equal mq's topic: {message.topic} and {queue.topic}"
            )
        return SendTarget(queue=queue)
    if sharding_key is not None:
        if not isinstance(sharding_key, str):
            raise ConfigurationError(f"sharding_key must be a str, not {sharding_key!r}")
        key = sharding_key
        return SendTarget(pick=lambda queues: queue_of_key(queues, key))
    choose = selector
    assert choose is not None

    def pick(queues: tuple[MessageQueue, ...]) -> MessageQueue:
        chosen: object = choose(queues, message, arg)
        if not isinstance(chosen, MessageQueue):
            raise ConfigurationError(f"select message queue return {chosen!r}, not a MessageQueue")
        return chosen

    return SendTarget(pick=pick)


def joined(results: Sequence[SendResult]) -> SendResult:
    """Return one result for the parts of a split batch: ids joined, the worst status (C-478)."""
    first = results[0]
    if len(results) == 1:
        return first
    return replace(
        first,
        send_status=max((r.send_status for r in results), key=_STATUS_ORDER.index),
        msg_id=",".join(r.msg_id for r in results),
        offset_msg_id=",".join(r.offset_msg_id for r in results),
    )
