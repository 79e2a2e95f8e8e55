"""What a producer has only while it is started: what it sends with, and its place in the instance.

Law: made and closed on the loop; the producer's faces decide which call uses which part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rocketstream._util.clock import Clock
from rocketstream.client.around_requests import after_response_of, before_request_of
from rocketstream.client.config import ClientConfig
from rocketstream.client.core.producer_settings import ProducerSettings
from rocketstream.client.instance.engine import Engine
from rocketstream.client.instance.groups import ProducerInner
from rocketstream.client.producer.async_sender import AsyncSender
from rocketstream.client.producer.calls import ProducerCalls
from rocketstream.client.producer.fault import FaultStrategy
from rocketstream.client.producer.gathered import Unwrap
from rocketstream.client.producer.gatherer import Ended, Gatherer, Held
from rocketstream.client.producer.outbox import Outbox
from rocketstream.client.producer.request_reply import Requests
from rocketstream.late import dataclass
from rocketstream.transport.blocking import BlockingPool


@dataclass(frozen=True, slots=True)
class Joining:
    """What a producer brings along when it joins its client instance.

    Attributes:
        settings: of the producer.
        config: of its client.
        inner: answers what brokers ask of the group; None where they have nothing to ask.
        announced: topics whose brokers are to know the producer, besides ``settings.topics``.
        unwrap: makes of a queue the user's, where there is a namespace.
    """

    settings: ProducerSettings
    config: ClientConfig
    inner: ProducerInner | None
    announced: Sequence[str]
    unwrap: Unwrap | None


class ProducerMachine:
    """A producer that has joined its client instance; made on the loop.

    Args:
        engine: the instance and its loop.
        joining: what the producer brings along.

    Attributes:
        sender: sends without waiting.
        policy: what a send does next, for whoever sends in another way.
        calls: what is not a send.
        requests: requests that wait for a reply.
        faults: brokers found slow or failing; None where they are not avoided.

    Raises:
        ClientStateError: the instance has a producer of this group.
    """

    def __init__(self, engine: Engine, joining: Joining) -> None:
        instance, settings, config = engine.instance, joining.settings, joining.config
        topics = [config.with_namespace(topic) for topic in settings.topics]
        self._instance, self._group = instance, settings.producer_group
        instance.register_producer(self._group, [settings.create_topic_key, *topics], joining.inner)
        self.sender = AsyncSender(instance, settings)
        self.policy = self.sender.policy
        self.calls = ProducerCalls(self.sender, config)
        self.requests = Requests(self.sender, config.client_id())
        self.faults: FaultStrategy | None = None
        if settings.send_latency_fault_enable:
            self.faults = FaultStrategy(settings, instance, engine.loop)
            self.policy.rotation = self.faults.rotation()
        # Brokers that ask us something must know us before the first send (C-446).
        instance.run_soon(self.calls.announce([*topics, *joining.announced]))

    async def close(self) -> None:
        """Leave the instance; what still waits for an answer fails."""
        if self.faults is not None:
            self.faults.close()
        self.requests.close()
        await self._instance.unregister_producer(self._group)


class BlockingMachine(ProducerMachine):
    """That of the sync face: sends that are waited for have sockets of their own.

    Attributes:
        pool: those sockets.
        outbox: messages on their way that nobody waits for.
    """

    def __init__(self, engine: Engine, joining: Joining, clock: Clock) -> None:
        config = joining.config
        self.pool = BlockingPool(
            connect_timeout_ms=config.connect_timeout_ms,
            ssl_context=config.tls_context(),
            before_request=before_request_of(config),
            after_response=after_response_of(config),
            busy_wait=joining.settings.busy_wait,
            clock=clock,
        )
        super().__init__(engine, joining)
        self.outbox = Outbox(engine, self.sender, joining.unwrap)


class LoopMachine(ProducerMachine):
    """That of the asyncio face.

    Attributes:
        gatherer: gathers messages into batches; None without ``auto_batch``.
    """

    def __init__(
        self,
        engine: Engine,
        joining: Joining,
        ended: Callable[[Sequence[Held], Ended, int], None],
    ) -> None:
        super().__init__(engine, joining)
        self.gatherer: Gatherer | None = None
        if joining.settings.auto_batch:
            loop = engine.loop
            self.gatherer = Gatherer(self.sender, loop, loop.call_soon, ended, joining.unwrap)
