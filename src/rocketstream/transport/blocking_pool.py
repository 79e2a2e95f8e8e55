"""Blocking connections shared by threads.

Law: lends, takes back and replaces connections; the borrower decides what is sent over them.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Self

from rocketstream import limits
from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.errors import ClientStateError, ForkedClientError, TooManyRequestsError
from rocketstream.protocol.command import AfterResponse, BeforeRequest, RemotingCommand
from rocketstream.transport.blocking_connection import BlockingConnection

if TYPE_CHECKING:
    import ssl

_LOOKS_MS = 60_000
"""Pause between two looks at what is idle."""


class BlockingPool:
    """Connections for many threads: borrowed for one use each; the one returned last is lent first.

    Thread safe. Connections the peer closed while they were idle are replaced before use, so that
    a broker's restart does not fail the next request. Connections idle for ``IDLE_CLOSE_MS`` are
    closed when another is given back, to whatever address: nobody asks for one that is gone.
    """

    def __init__(
        self,
        *,
        connections_max: int = limits.BLOCKING_CONNECTIONS_PER_BROKER_MAX,
        connect_timeout_ms: float = limits.CONNECT_TIMEOUT_MS,
        ssl_context: ssl.SSLContext | None = None,
        before_request: BeforeRequest | None = None,
        after_response: AfterResponse | None = None,
        busy_wait: bool = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Keep the settings; nothing is connected yet.

        Args:
            connections_max: connections per address; further users wait for one.
            connect_timeout_ms: for a new connection.
            ssl_context: speak TLS with it.
            before_request: called with address and command before each request is encoded.
            after_response: called with address, command and answer for each ``request``.
            busy_wait: while one connection to an address is in use, poll for its answer for some
                tens of microseconds before sleeping, as long as answers do come that soon.
            clock: measures deadlines.
        """
        self._connections_max = connections_max
        self._connect_timeout_ms = connect_timeout_ms
        self._ssl = ssl_context
        self._before_request = before_request
        self._after_response = after_response
        self._busy_wait = busy_wait
        self._clock = clock
        self._pid = os.getpid()
        # Guards the fields below; never held while connecting. A signal handler may take it in the
        # middle of a section of its thread's, which is why each holds together at every step.
        self._mutex = threading.RLock()
        self._changed = threading.Condition(self._mutex)
        self._waiting = 0
        self._idle: dict[str, list[BlockingConnection]] = {}
        self._lent: Counter[str] = Counter()
        self._next_look_ms = clock.monotonic_ms() + _LOOKS_MS
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def request(self, address: str, command: RemotingCommand, timeout_ms: float) -> RemotingCommand:
        """Send ``command`` to ``address`` and return the answer.

        Blocks for ``timeout_ms`` at most, including the wait for a connection.

        Raises:
            TooManyRequestsError: every connection stayed in use; nothing was sent.
            ConnectError, RequestTimeoutError, ConnectionLostError: see ``BlockingConnection``.
            ForkedClientError: the pool was made before a fork.
            ClientStateError: the pool is closed.
        """
        connection = self._take_idle(address)
        if connection is None:
            answer = self._request_when_lent(address, command, timeout_ms)
        else:
            try:
                alone = self._busy_wait and self._lent[address] == 1
                answer = connection.request(command, timeout_ms, alone=alone)
            finally:
                self._give_back(address, connection)
        if self._after_response is not None:
            self._after_response(address, command, answer)
        return answer

    def _request_when_lent(
        self, address: str, command: RemotingCommand, timeout_ms: float
    ) -> RemotingCommand:
        """Wait for a connection, or make one, and send the request."""
        deadline = self._clock.monotonic_ms() + timeout_ms
        with self.connection(address, timeout_ms) as connection:
            remaining_ms = deadline - self._clock.monotonic_ms()
            if remaining_ms <= 0:
                raise TooManyRequestsError(
                    f"no connection to {address} within {timeout_ms:g} ms; nothing was sent",
                    address=address,
                )
            return connection.request(command, remaining_ms)

    def oneway(self, address: str, command: RemotingCommand, timeout_ms: float = 3000) -> None:
        """Send ``command``, marked one-way, to ``address``; raises the errors of ``request``."""
        with self.connection(address, timeout_ms) as connection:
            connection.oneway(command)

    @contextlib.contextmanager
    def connection(
        self, address: str, timeout_ms: float | None = None
    ) -> Iterator[BlockingConnection]:
        """Lend a connection for the ``with`` block; it returns to the pool unless it broke.

        Args:
            address: ``host:port``.
            timeout_ms: how long to wait while all are in use; the connect timeout by default.

        Raises:
            TooManyRequestsError: every connection stayed in use.
            ConnectError: a new connection could not be made.
            ForkedClientError: the pool was made before a fork.
            ClientStateError: the pool is closed.
        """
        connection = self._borrow(
            address, self._connect_timeout_ms if timeout_ms is None else timeout_ms
        )
        try:
            yield connection
        finally:
            self._give_back(address, connection)

    def close(self) -> None:
        """Close the idle connections; lent ones are closed when they come back."""
        with self._mutex:
            self._closed = True
            self._changed.notify_all()
        self.close_idle()

    def close_idle(self) -> None:
        """Close the idle connections; whoever still has the pool may go on."""
        with self._mutex:
            idle = [each for connections in self._idle.values() for each in connections]
            self._idle.clear()
        for connection in idle:
            connection.close()

    def _take_idle(self, address: str) -> BlockingConnection | None:
        """Lend an idle connection that is still open; None when there is none."""
        self._check_process()
        with self._mutex:
            idle = self._idle.get(address)
            if not idle:
                return None
            connection = idle.pop()
            self._lent[address] += 1
        return connection if self._is_open(address, connection) else None

    def _is_open(self, address: str, connection: BlockingConnection) -> bool:
        """Whether a connection just lent is still open; one that is not, is lent no more."""
        try:
            if not connection.is_stale():
                return True
        except BaseException:  # of a signal handler: the place would be lost for ever
            self._release(address)
            connection.close()
            raise
        self._release(address)
        return False

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedClientError(
                "this connection pool was made before fork(); create a new one in the child"
            )

    def _borrow(self, address: str, timeout_ms: float) -> BlockingConnection:
        self._check_process()
        while True:
            idle = self._reserve(address, timeout_ms)
            if idle is None:
                break
            if self._is_open(address, idle):
                return idle
        try:
            return BlockingConnection(
                address,
                connect_timeout_ms=min(self._connect_timeout_ms, max(timeout_ms, 1)),
                ssl_context=self._ssl,
                before_request=self._before_request,
                clock=self._clock,
            )
        except BaseException:
            self._release(address)
            raise

    def _reserve(self, address: str, timeout_ms: float) -> BlockingConnection | None:
        """Count one more lent connection; return an idle one, or None if one must be made."""
        with self._mutex:
            if not self._wait_for_one(address, timeout_ms):
                raise TooManyRequestsError(
                    f"all {self._connections_max} connections to {address} were in use for"
                    f" {timeout_ms:g} ms; nothing was sent",
                    address=address,
                )
            if self._closed:
                raise ClientStateError(f"cannot connect to {address}: the pool is closed")
            self._lent[address] += 1
            idle = self._idle.get(address)
            return idle.pop() if idle else None

    def _wait_for_one(self, address: str, timeout_ms: float) -> bool:
        """Wait, holding the lock, until a connection may be lent or the pool is closed."""

        def ready() -> bool:
            return self._closed or self._lent[address] < self._connections_max

        self._waiting += 1
        try:
            return self._changed.wait_for(ready, timeout_ms / 1000)
        finally:
            self._waiting -= 1

    def _give_back(self, address: str, connection: BlockingConnection) -> None:
        doubtful: list[BlockingConnection] = []
        with self._mutex:
            self._lent[address] -= 1  # first: a signal handler may raise in any call that follows
            if connection.timed_out:
                # In between something may have forgotten all connections; each kept one would cost
                # another request its time.
                doubtful = self._idle.pop(address, doubtful)
            # Answers still outstanding would reach the next borrower, so such a connection is not
            # reused.
            keep = connection.is_reusable and not self._closed
            now_ms = self._clock.monotonic_ms()
            if keep:
                connection.idle_since_ms = now_ms
                self._idle.setdefault(address, []).append(connection)
            if now_ms >= self._next_look_ms:
                self._next_look_ms = now_ms + _LOOKS_MS
                doubtful = [*doubtful, *self._take_unused(now_ms - limits.IDLE_CLOSE_MS)]
            if self._waiting:
                self._changed.notify_all()
        if not keep:
            connection.close()
        elif self._closed:  # by a signal handler, between the look and the line after it
            self.close()
        for each in doubtful:
            each.close()

    def _take_unused(self, until_ms: float) -> list[BlockingConnection]:
        """Take out what came back until a time, and addresses without connections; under the lock.

        No call comes between a look and what follows from it, since a signal handler would, too.
        """
        unused: list[BlockingConnection] = []
        for address, idle in list(self._idle.items()):
            while idle and idle[0].idle_since_ms <= until_ms:  # what is lent last comes first
                unused.append(idle.pop(0))
            if not idle:
                self._idle.pop(address, None)
        for address in list(self._lent):
            if not self._lent[address]:
                self._lent.pop(address, None)
        return unused

    def _release(self, address: str) -> None:
        with self._mutex:
            self._lent[address] -= 1
            self._changed.notify_all()
