"""Simulated producers that send in every way there is: columns, selectors, keys, queues, one-way.

Law: a message that is told to go to a queue is stored there and nowhere else; messages of a key in
one call are stored in their order; no send takes much longer than its timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from rocketstream import aio
from rocketstream.errors import RocketMQError, SendManyError
from rocketstream.model import Message, MessageQueue, SendResult
from rocketstream.testing.history import Recorder, Sending
from rocketstream.testing.sim.producing import COMPRESSED_FROM, SimProducer, ended
from rocketstream.testing.sim.world import Node

MANY_MAX = 12
KEYS = 3
OVERTIME_MS = 500.0
"""A send ends within so long after its timeout, where the process did not stand still."""
ROUTE_MS = 10_000.0
"""Until a producer has the route of the topic, a send waits for name servers too, as in Java."""


class SimVariedProducer(SimProducer):
    """A process that sends by all calls of a producer whose settings are drawn."""

    _routed = False
    """Whether a send of this producer came through."""

    async def _main(self, node: Node) -> None:
        recorder = Recorder(lambda: self._world.now_ms, node.record)
        self._ways = self._world.random(f"ways of {node.name} {node.incarnation}")
        settings = self._world.random(f"settings of {node.name}")
        pick = settings.choice
        # All brokers are slow by some of these: then the least bad one is chosen.
        tables = ((1, 20), (300, 3_000)), ((0,), (60_000,)), ((50, 100, 550), (0, 0, 30_000))
        latency_max, not_available_duration = pick(tables[: 2 if self.number == 1 else 3])
        self._timeout_ms: float = self._world.options.request_timeout_ms
        make = partial(
            aio.Producer,
            "producers",
            **node.client(
                retry_times_when_send_failed=self.habits.retries,
                retry_times_when_send_async_failed=self.habits.retries,
                send_msg_timeout_ms=self._timeout_ms,
                auto_batch=self.number != 1 or pick((False, True)),
                batch_max_delay_ms=pick((20, 50)) if self.number == 0 else 1,
                batch_max_bytes=pick((100, 32_768)),
                compress_msg_body_over_howmuch=pick((COMPRESSED_FROM, 4_096)),
                compress_type=pick(("ZLIB", "LZ4", "ZSTD")),
                send_latency_fault_enable=self.number == 1 or pick((False, True)),
                latency_max=latency_max,
                not_available_duration=not_available_duration,
                retry_another_broker_when_not_store_ok=pick((False, True)),
            ),
        )

        async def anew() -> aio.Producer:
            self._routed, begun = False, make()
            await begun.start()
            return begun

        producer = await anew()
        ways: Sequence[Callable[[aio.Producer, Recorder], Awaitable[None]]] = (
            self._send, self._send_batch, self._send_many, self._send_many, self._to_queue,
            self._by_selector, self._by_key, self._oneway, self._in_time,
        )  # fmt: skip
        deck = [*ways]  # each way comes in turn, in any order
        while not self._is_at_end:
            self._ways.shuffle(deck)
            number = self._ways.randint(1, self.habits.at_once)
            sends = [asyncio.ensure_future(each(producer, recorder)) for each in deck[:number]]
            deck = deck[number:] or [*ways]
            if self._ways.random() < 0.2:
                await asyncio.sleep(self._ways.random() / 1000)
                await producer.flush()
            elif self._ways.random() < 0.1:
                await asyncio.sleep(self._ways.random() / 100)
                await producer.shutdown()  # what is under way ends; nothing is sent later
                await asyncio.gather(*sends)
                producer = await anew()
            await asyncio.gather(*sends)
            await asyncio.sleep(self._chance.random() * self.habits.pause_ms / 1000)
        node.kept["busy"] = False

    @property
    def number(self) -> int:
        """The number of the process."""
        return int(self.node.name.rpartition("-")[2])

    @property
    def _is_at_end(self) -> bool:
        return self.node.kept["sent"] >= self.habits.messages or self._world.healed

    async def _one(
        self,
        recorder: Recorder,
        send: Callable[[Message], Awaitable[SendResult]],
        tries_max: int | None,
        timeout_ms: float,
        wanted: Callable[[], MessageQueue | None] = lambda: None,
    ) -> None:
        """Send a message by a call, and see to it that it keeps to its time and its queue."""
        message, began_ms = self._message(), self._world.now_ms
        sending = self._sending(recorder, message, 0.0, tries_max)
        try:
            result = await send(message)
        except RocketMQError as error:
            sending.failed(error)
        else:
            self._routed = True
            ended(sending, result.send_status, result.message_queue, result.queue_offset)
            queue = wanted()
            if queue is not None and result.message_queue != queue:
                text = f"{message.keys} was to go to {queue}, and is in {result.message_queue}"
                self._world.fail(text)
        took_ms = self._world.now_ms - began_ms
        most_ms = timeout_ms + OVERTIME_MS
        most_ms += 0.0 if self._routed else ROUTE_MS
        if took_ms > most_ms and not self.node.stood_still_since(began_ms):
            self._world.fail(f"{message.keys} took {took_ms:.0f} ms; its timeout is {timeout_ms}")

    # --- ways -------------------------------------------------------------------------------------

    async def _in_time(self, producer: aio.Producer, recorder: Recorder) -> None:
        timeout_ms = self._ways.choice((20.0, 200.0, 5_000.0))
        await self._one(
            recorder,
            lambda message: producer.send(message, timeout_ms=timeout_ms),
            None,
            timeout_ms,
        )

    async def _to_queue(self, producer: aio.Producer, recorder: Recorder) -> None:
        try:
            queues = await producer.fetch_publish_message_queues(self.habits.topic)
        except RocketMQError:
            return
        queue = self._ways.choice(queues)
        await self._one(
            recorder, lambda message: producer.send(message, message_queue=queue), 1,
            self._timeout_ms, lambda: queue,
        )  # fmt: skip

    async def _by_selector(self, producer: aio.Producer, recorder: Recorder) -> None:
        chosen: list[MessageQueue] = []

        def select(queues: Sequence[MessageQueue], message: Message, arg: Any) -> MessageQueue:
            chosen.append(queues[arg % len(queues)])
            return chosen[-1]

        arg = self._ways.randrange(100)
        await self._one(
            recorder, lambda message: producer.send(message, selector=select, arg=arg), 1,
            self._timeout_ms, lambda: chosen[-1],
        )  # fmt: skip

    async def _by_key(self, producer: aio.Producer, recorder: Recorder) -> None:
        key = self._key()
        await self._one(
            recorder, lambda message: producer.send(message, sharding_key=key), 1, self._timeout_ms
        )

    async def _oneway(self, producer: aio.Producer, recorder: Recorder) -> None:
        message = self._message()
        sending = self._sending(recorder, message, 0.0, tries_max=1)
        try:
            await producer.send_oneway(message)
        except RocketMQError as error:
            sending.failed(error)
        else:
            sending.unsafe()  # nobody says whether it is stored

    def _key(self) -> str:
        return f"shard-{self._ways.randrange(KEYS)}"

    # --- columns ----------------------------------------------------------------------------------

    async def _send_many(self, producer: aio.Producer, recorder: Recorder) -> None:
        left = self.habits.messages - self.node.kept["sent"]
        messages = [self._bare() for _ in range(min(left, self._ways.randint(1, MANY_MAX)))]
        if not messages:
            return
        keyed = self._ways.random() < 0.5
        shards = [self._key() for _ in messages] if keyed else None
        sendings = [self._sending(recorder, each, 0.0) for each in messages]
        try:
            result = await producer.send_many(
                self.habits.topic,
                [each.body for each in messages],
                tags=[each.tags for each in messages],
                keys=[each.keys for each in messages],
                sharding_keys=shards,
            )
        except SendManyError as error:
            result = error.result
            await self._send_rest(producer, recorder, result, messages, sendings)
        except RocketMQError as error:
            for sending in sendings:
                sending.failed(error)
            return
        else:
            self._note(result, sendings)
        if shards is not None:
            self._check_order(result, shards, messages)

    def _bare(self) -> Message:
        """Return the next message, without properties: columns have none."""
        full = self._message()
        return Message(full.topic, full.body, tags=full.tags, keys=full.keys)

    async def _send_rest(
        self,
        producer: aio.Producer,
        recorder: Recorder,
        result: Any,
        messages: Sequence[Message],
        sendings: Sequence[Sending],
    ) -> None:
        """Send again what is not known to be stored, as its user would."""
        self._note(result, sendings)
        rest = result.rest
        of_key = {each.keys: each for each in messages}
        again = [of_key[key] for key in rest["keys"].to_pylist()]
        missing = {messages[row].keys for part in result.failed for row in part.rows}
        if missing != {each.keys for each in again}:
            self._world.fail(f"{missing} failed, and the rest is {[each.keys for each in again]}")
        sendings = [self._sending(recorder, each, 0.0) for each in again]
        try:
            self._note(await producer.send_many(self.habits.topic, rest), sendings)
        except SendManyError as error:
            self._note(error.result, sendings)
        except RocketMQError as error:
            for sending in sendings:
                sending.failed(error)

    def _note(self, result: Any, sendings: Sequence[Sending]) -> None:
        """Record the end of each message; each has one."""
        ends = 0
        for part in result.stored:
            for place, row in enumerate(part.rows):
                offset = part.queue_offset + place
                ended(sendings[row], part.send_status, part.message_queue, offset)
                ends += 1
        for part in result.failed:
            for row in part.rows:
                sendings[row].failed(part.error)
                ends += 1
        if ends != len(sendings) or len(result) != ends:
            self._world.fail(f"{ends} ends of {len(sendings)} messages sent in columns: {result}")

    def _check_order(self, result: Any, shards: Sequence[str], messages: Sequence[Message]) -> None:
        """Check that the messages of a key are in one queue, in the order they were given."""
        places: dict[str, list[tuple[int, MessageQueue, int]]] = {}
        for part in result.stored:
            for place, row in enumerate(part.rows):
                at = (int(row), part.message_queue, part.queue_offset + place)
                places.setdefault(shards[row], []).append(at)
        for key, found in places.items():
            found.sort()
            offsets = [offset for _, _, offset in found]
            if len({queue for _, queue, _ in found}) > 1 or offsets != sorted(offsets):
                first = messages[found[0][0]].keys
                self._world.fail(f"messages of {key} from {first} on are not in order: {found}")
