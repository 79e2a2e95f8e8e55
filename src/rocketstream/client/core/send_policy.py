"""The policy of sends: where each try goes, what follows it, what is known when it fails.

Law: pure: generators that tell what to do and are told how it went, as psycopg's. One for every
face: blocking, callbacks and coroutines drive the same (C-457 to C-464, C-601, C-602).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from typing import TypeVar

from rocketstream.client.core.producer_settings import ProducerSettings
from rocketstream.client.core.queue_rotation import QueueRotation, SendTarget
from rocketstream.client.core.routes import RouteTable, unknown_broker
from rocketstream.client.core.send import outcome_of
from rocketstream.errors import (
    BrokerError,
    ConnectError,
    InternalError,
    RequestTimeoutError,
    RocketMQError,
    SendConnectError,
    SendError,
    SendOutcome,
)
from rocketstream.late import dataclass
from rocketstream.model import MessageQueue, SendResult, SendStatus

Queues = tuple[MessageQueue, ...]
Try = tuple[MessageQueue, str, float]
"""Send to this queue, at this address, and wait for so many milliseconds at most."""
Wanted = Try | None
"""What to do next; None: find the route of the topic."""
End = SendResult | Queues | Exception | None
"""How it went. A try: the result, the error, or None where nothing is waited for. A route: its
queues, or the error."""

Began = tuple[float, str, End]
"""When a send began (monotonic, ms), the broker of its first try, and how that went."""

_R_co = TypeVar("_R_co", covariant=True)
Steps = Generator[Wanted, End, _R_co]
"""A send: yields what to do, is sent how it went, returns the result or raises a ``SendError``."""

_SEND_OK = SendStatus.SEND_OK


@dataclass(slots=True)
class FailedTry:
    """One try of a send that failed."""

    broker_name: str
    error: Exception


class SendPolicy:
    """How one producer sends. Thread safe; each send is a generator of its own.

    Args:
        routes: the queues of topics, and where brokers are.
        settings: how often to try, and after what; may be replaced by others.
        rotation: chooses the queue of each try; may be replaced too.
        now: returns monotonic milliseconds.
        port_of: makes of a broker's address the one to send to; None: it is the same.
    """

    def __init__(
        self,
        routes: RouteTable,
        settings: ProducerSettings,
        rotation: QueueRotation,
        now: Callable[[], float],
        port_of: Callable[[str], str] | None = None,
    ) -> None:
        self.settings = settings
        self.rotation = rotation
        self.now = now
        self._routes = routes
        self._port_of = port_of

    def first(self, topic: str, target: SendTarget, timeout_ms: float) -> Try | None:
        """Return the first try of a usual send, None for one to begin with ``tries``.

        A message stored as wished by its first try needs nothing else decided. With many on their
        way a generator for each would cost half a microsecond of processor time, so ``tries`` is
        made for those that want more, and told how their first try went. Where one message is sent
        at a time, ``tries`` from the start costs nothing more.
        """
        info = self._routes.publish_info(topic)
        if info is None or timeout_ms <= 0 or target.pick is not None:
            return None
        queue = self.rotation.choose(info.queues, target, None)
        address = self._address(queue.broker_name)
        return None if address is None else (queue, address, timeout_ms)

    def tries(
        self,
        topic: str,
        target: SendTarget,
        timeout_ms: float,
        again: int,
        began: Began | None = None,
    ) -> Steps[SendResult]:
        """Send one message, by as many tries as it takes and its time allows.

        A message that is stored, but not as wished, is sent elsewhere too if the settings say so
        (C-85); if that brings no result, it is the answer: it is stored (C-461).

        Args:
            topic: as the servers know it.
            target: where it is to go; a fixed queue or a selector has one try (C-469, C-470).
            timeout_ms: for all tries together (C-80).
            again: most tries after the first.
            began: what became of a try made before.

        Raises:
            SendError: not sent, refused, or unknown; the earlier tries count for its ``outcome``.
        """
        failed: list[FailedTry] = []
        stored: SendResult | None = None
        last_broker: str | None = None
        end: End
        if began is None:
            started_ms, left_ms = self.now(), timeout_ms
        else:
            started_ms, broker_name, end = began
        try:
            while True:
                if began is None:
                    info = self._routes.publish_info(topic)
                    if info is not None:
                        queues = info.queues
                    else:
                        queues = _found((yield None))
                        left_ms = timeout_ms - (self.now() - started_ms)
                    if left_ms <= 0:
                        raise self._error(topic, failed, timeout_ms, left_ms, "timed out")
                    queue = self.rotation.choose(queues, target, last_broker)
                    broker_name = queue.broker_name
                    address = self._address(broker_name)
                    end = (
                        unknown_broker(broker_name)
                        if address is None
                        else (yield queue, address, left_ms)
                    )
                began = None
                if isinstance(end, SendResult) and end.send_status is _SEND_OK:
                    return end
                most = 1 if target.is_fixed else 1 + again
                if isinstance(end, SendResult):
                    if not self.settings.retry_another_broker_when_not_store_ok:
                        return end
                    # It is stored, so whatever the next try brings, the outcome is open.
                    stored, error = end, _unwished(broker_name)
                else:
                    error = _error_of(end)
                failed.append(FailedTry(broker_name, error))
                last_broker = broker_name
                left_ms = timeout_ms - (self.now() - started_ms)
                if len(failed) >= most or not self._is_worth_retry(error):
                    raise self._error(topic, failed, timeout_ms, left_ms, "failed") from error
        except SendError as error:
            if stored is not None:
                return stored
            error.parameters.setdefault("topic", topic)
            if failed:
                error.outcome = outcome_of([each.error for each in failed])
            raise

    def oneway(self, topic: str, target: SendTarget) -> Steps[None]:
        """Write one message and do not wait: one try, whose end is None once it is written.

        Raises:
            SendError: it could not be written.
        """
        queue = yield from self.queue(topic, target)
        address = self._address(queue.broker_name)
        if address is None:
            end: End = unknown_broker(queue.broker_name)
        else:
            end = yield queue, address, self.settings.send_msg_timeout_ms
        if isinstance(end, SendError):
            end.parameters.setdefault("topic", topic)
            raise end
        if isinstance(end, Exception):
            text = f"one-way send failed: {end}"
            raise SendError(text, SendOutcome.NOT_SENT, topic=topic) from end

    def queue(self, topic: str, target: SendTarget) -> Steps[MessageQueue]:
        """Choose a queue and do nothing more: the message goes there later, or with others.

        Raises:
            SendError: the topic has no route, or the user's selector raised.
        """
        info = self._routes.publish_info(topic)
        queues = info.queues if info is not None else _found((yield None))
        return self.rotation.choose(queues, target, None)

    def _address(self, broker_name: str) -> str | None:
        address = self._routes.master(broker_name)
        return address if address is None or self._port_of is None else self._port_of(address)

    def _is_worth_retry(self, error: Exception) -> bool:
        return is_worth_retry(error, self.settings.retry_response_codes)

    def _error(
        self,
        topic: str,
        failed: Sequence[FailedTry],
        timeout_ms: float,
        left_ms: float,
        what: str,
    ) -> SendError:
        brokers = [each.broker_name for each in failed]
        errors = [each.error for each in failed]
        last = errors[-1] if errors else None
        text = (
            f"Send [{len(brokers)}] times, still {what}, cost [{timeout_ms - left_ms:.0f}]ms of "
            f"[{timeout_ms:.0f}]ms, Topic: {topic}, BrokersSent: {brokers}"
            + (f": {last}" if last is not None else "")
        )
        only_connect = bool(errors) and all(isinstance(each, ConnectError) for each in errors)
        kind = SendConnectError if only_connect else SendError
        error = kind(text, outcome_of(errors), topic=topic, brokers=brokers)
        error.__cause__ = last
        return error.with_retriable(last is None or self._is_worth_retry(last))


def is_worth_retry(error: Exception, retry_codes: Collection[int]) -> bool:
    """Return whether another try may bring what one did not (C-87, C-461)."""
    if isinstance(error, BrokerError):
        return error.code in retry_codes
    return isinstance(error, RocketMQError) and error.retriable


def _found(end: End) -> Queues:
    """Return the queues that were found.

    Raises:
        SendError: there are none.
    """
    if isinstance(end, tuple):
        return end
    raise _error_of(end)


def _error_of(end: End) -> Exception:
    """Return the error a try ended with.

    Raises:
        SendError: the end of the whole send, which no other try is to follow.
    """
    if isinstance(end, SendError):
        raise end
    if isinstance(end, Exception):
        return end
    return InternalError(f"a try of a send ended with neither result nor error: {end!r}")


def _unwished(broker_name: str) -> Exception:
    text = f"stored by {broker_name}, but flush or replication timed out"
    return RequestTimeoutError(text)
