"""Many clients of one broker, whichever it is: 50 producers, 50 consumers that hold 1,000 pulls.

Law: frames on raw sockets, no client library, so that the driver is light and the broker is what is
measured; a job as benchmarks.work has them.

Each producer is a connection that sends one message at a time, or with a rate its share of it; each
consumer is a connection that pulls twenty queues of its own and pulls again when one is answered. A
message carries the moment it was sent; it has arrived when a consumer has decoded it.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import cast

from benchmarks.jobs import Options, Round, body_of, counted
from rocketstream._util.loops import new_event_loop
from rocketstream.protocol.codes import PullSysFlag, RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.framing import FrameDecoder
from rocketstream.protocol.headers.pull import PullMessageRequestHeader
from rocketstream.protocol.headers.send import SendMessageRequestHeader
from rocketstream.protocol.message_ext import decode_messages

PRODUCERS, CONSUMERS, QUEUES = 50, 50, 1_000
GROUP = "crowd"
_STAMP = struct.Struct(">q")
_HELD_MS = 60_000
_NOTHING_NEW = (
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)
_QUIET_S = 0.3


class Connection(asyncio.Protocol):
    """One connection to the broker; answers go to ``on_answer``."""

    def __init__(self, crowd: Crowd) -> None:
        self.crowd = crowd
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._frames = FrameDecoder()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = cast("asyncio.Transport", transport)
        self.crowd.connections.append(self)

    def data_received(self, data: bytes) -> None:
        """Take whole answers out of what came."""
        for command in self._frames.feed(data):
            self.on_answer(command)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the round: nobody closes before the job ends."""
        self.crowd.fail(ConnectionError(f"the broker closed a connection: {exc}"))
        self.lost.set_result(None)

    def ask(self, code: int, opaque: int, ext: dict[str, str], body: bytes = b"") -> None:
        """Send a request."""
        command = RemotingCommand(code, opaque, ext_fields=ext, body=body)
        self.transport.write(command.frame())

    def on_answer(self, command: RemotingCommand) -> None:
        """Take one answer."""
        raise NotImplementedError


class Sender(Connection):
    """One producer: a message at a time, in turn to the queues."""

    queue = 0

    def send(self) -> None:
        """Send the next message, stamped with now."""
        crowd = self.crowd
        self.queue = (self.queue + PRODUCERS) % QUEUES
        header = SendMessageRequestHeader(
            GROUP, crowd.topic, "TBW102", 4, self.queue, 0, int(time.time() * 1000), 0, ""
        )
        body = _STAMP.pack(time.perf_counter_ns()) + crowd.filler
        self.ask(RequestCode.SEND_MESSAGE_V2, 1, header.to_ext_v2(), body)

    def on_answer(self, command: RemotingCommand) -> None:
        """Go on, when the broker has the message."""
        if command.code != ResponseCode.SUCCESS:
            self.crowd.fail(RuntimeError(f"send: {command.code} {command.remark}"))
        elif self.crowd.take():
            self.send()


class Puller(Connection):
    """One consumer: a pull held for each of its queues."""

    def __init__(self, crowd: Crowd, queues: range) -> None:
        super().__init__(crowd)
        self.offsets = dict.fromkeys(queues, 0)

    def pull(self, queue: int) -> None:
        """Ask for what comes next in a queue, and wait for it."""
        flags = PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION
        header = PullMessageRequestHeader(
            GROUP, self.crowd.topic, queue, self.offsets[queue], 32, flags, 0, _HELD_MS, 0, "*",
            "TAG",
        )  # fmt: skip
        self.ask(RequestCode.PULL_MESSAGE, queue, header.to_ext())

    def on_answer(self, command: RemotingCommand) -> None:
        """Count what came, and pull the queue again."""
        now = time.perf_counter_ns()
        queue = command.opaque
        if command.ext_fields and "nextBeginOffset" in command.ext_fields:
            self.offsets[queue] = int(command.ext_fields["nextBeginOffset"])
        if command.code == ResponseCode.SUCCESS:
            for message in decode_messages(command.body):
                self.crowd.arrived(now - _STAMP.unpack_from(message.body)[0])
        elif command.code not in _NOTHING_NEW:
            self.crowd.fail(RuntimeError(f"pull: {command.code} {command.remark}"))
            return
        self.pull(queue)


class Crowd:
    """All clients, and the round that is under way."""

    def __init__(self, topic: str, size: int) -> None:
        self.topic = topic
        self.filler = body_of(max(0, size - _STAMP.size))
        self.senders: list[Sender] = []
        self.connections: list[Connection] = []
        self._left_to_send = 0
        self._nanos: list[int] = []
        self._wanted = 0
        self._whole: asyncio.Future[None] | None = None

    async def connect(self, address: str) -> None:
        """Open all connections and let the consumers hold their pulls."""
        loop = asyncio.get_running_loop()
        host, _, port = address.rpartition(":")
        for number in range(CONSUMERS):
            queues = range(number, QUEUES, CONSUMERS)
            puller = Puller(self, queues)
            await loop.create_connection(partial(_itself, puller), host, int(port))
            for queue in queues:
                puller.pull(queue)
        for number in range(PRODUCERS):
            sender = Sender(self)
            await loop.create_connection(partial(_itself, sender), host, int(port))
            sender.queue = number
            self.senders.append(sender)
        await asyncio.sleep(_QUIET_S)  # what was in the queues before has come, and all are held

    async def close(self) -> None:
        """Close all connections, and wait until the loop has let go of them."""
        for connection in self.connections:
            connection.transport.abort()
        await asyncio.gather(*(connection.lost for connection in self.connections))

    async def round(self, now: Options) -> dict[str, float]:
        """Send ``count`` messages and wait until each has arrived."""
        self._nanos = []
        self._wanted = now.count
        self._whole = asyncio.get_running_loop().create_future()
        start = time.perf_counter()
        if now.rate:
            self._left_to_send = 0
            await self._paced(now.count, now.rate)
        else:
            self._left_to_send = now.count
            for sender in self.senders:
                if self.take():
                    sender.send()
        await asyncio.wait_for(self._whole, now.timeout)
        seconds = time.perf_counter() - start
        ordered = sorted(self._nanos)
        shares = {"p50_us": 0.5, "p99_us": 0.99}
        found = {name: ordered[int(share * len(ordered))] / 1000 for name, share in shares.items()}
        return {**counted(now.count, seconds), **found}

    async def _paced(self, count: int, rate: int) -> None:
        """Send at a steady rate, from one producer after the other; what is late is caught up."""
        due = time.perf_counter()
        for number in range(count):
            due += 1 / rate
            # A loop whose timers count whole milliseconds wakes up to one too early.
            while (left := due - time.perf_counter()) > 0:  # noqa: ASYNC110 - time is no event
                await asyncio.sleep(left)
            self.senders[number % PRODUCERS].send()

    def take(self) -> bool:
        """Whether there is another message to send in this round."""
        self._left_to_send -= 1
        return self._left_to_send >= 0

    def arrived(self, nanos: int) -> None:
        """Count a message; what is left from an earlier run of the topic is not of this round."""
        if self._whole is None or self._whole.done():
            return
        self._nanos.append(nanos)
        if len(self._nanos) == self._wanted:
            self._whole.set_result(None)

    def fail(self, error: Exception) -> None:
        """End the round that is under way."""
        if self._whole is not None and not self._whole.done():
            self._whole.set_exception(error)


def _itself(connection: Connection) -> Connection:
    return connection


@contextmanager
def crowd(options: Options) -> Iterator[Round]:
    """Rounds of ``--count`` messages through all clients; ``--rate 0`` is as fast as they go."""
    made = Crowd(options.topic, options.size)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(made.connect(options.broker))
        try:
            yield lambda now: runner.run(made.round(now))
        finally:
            runner.run(made.close())
