"""The pool of blocking connections, step by step: which is lent, which is closed, who waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rocketstream import limits
from rocketstream.errors import ClientStateError, ConnectError, TooManyRequestsError
from rocketstream.protocol.command import RemotingCommand
from rocketstream.testing.clock import ManualClock
from rocketstream.transport import blocking_pool
from rocketstream.transport.blocking_pool import BlockingPool
from tests.kits.threaded_server import request
from tests.plugins.waiting import wait_until

A, B = "a:1", "b:1"
LONG_MS = 20_000.0
ANSWER = RemotingCommand.response(0)


class Lent:
    """As much of a connection as a pool asks for, and what it was asked."""

    made: list[Any]
    refuses: Exception | None
    connect_ms: float

    def __init__(self, address: str, *, clock: ManualClock, **how: Any) -> None:
        clock.advance(self.connect_ms)
        self.address, self.how = address, how
        self.made.append(self)
        self.is_closed = self.timed_out = self.goes_stale = False
        self.is_reusable = True
        self.asked: list[tuple[float, bool]] = []
        self.oneways = 0
        self.amid: Callable[[], object] = lambda: None
        if self.refuses is not None:
            raise self.refuses

    def is_stale(self) -> bool:
        return self.goes_stale

    def request(
        self, command: RemotingCommand, timeout_ms: float, *, alone: bool = False
    ) -> RemotingCommand:
        self.asked.append((timeout_ms, alone))
        self.amid()
        return ANSWER

    def oneway(self, command: RemotingCommand) -> None:
        self.oneways += 1

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture(autouse=True)
def _fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    Lent.made, Lent.refuses, Lent.connect_ms = [], None, 0.0
    monkeypatch.setattr(blocking_pool, "BlockingConnection", Lent)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def pool(clock: ManualClock) -> Iterator[BlockingPool]:
    with BlockingPool(clock=clock, connections_max=2, connect_timeout_ms=50) as pool:
        yield pool


def ask(pool: BlockingPool, timeout_ms: float = LONG_MS, address: str = A) -> RemotingCommand:
    return pool.request(address, request(), timeout_ms)


def idle(pool: BlockingPool, count: int = 1) -> list[Any]:
    """Have so many idle connections; return them, the one lent next at the end."""
    lent = [pool.connection(A) for _ in range(count)]
    connections: list[Any] = [each.__enter__() for each in lent]
    for each in lent:
        each.__exit__(None, None, None)
    return connections


# --- which one ------------------------------------------------------------------------------------


def test_an_idle_connection_is_lent_again_and_what_came_back_last_first(
    pool: BlockingPool,
) -> None:
    first, second = idle(pool, 2)
    assert ask(pool) is ANSWER
    assert (len(first.asked), len(second.asked)) == (0, 1)
    ask(pool, address=B)
    assert [each.address for each in Lent.made] == [A, A, B]
    assert pool._lent == {A: 0, B: 0}


def test_a_new_connection_is_made_as_the_pool_is_told(clock: ManualClock) -> None:
    def sign(address: str, command: RemotingCommand) -> None:
        """Nothing."""

    context: Any = object()
    with BlockingPool(
        clock=clock, connect_timeout_ms=50, ssl_context=context, before_request=sign
    ) as pool:
        for timeout_ms in (LONG_MS, 20.0, 0.5, -3.0):
            pool._borrow(A, timeout_ms)
        with pool.connection(A):
            pass
    hows = [each.how for each in Lent.made]
    assert [how["connect_timeout_ms"] for how in hows] == [50, 20, 1, 1, 50]
    assert {(how["ssl_context"], how["before_request"]) for how in hows} == {(context, sign)}


@pytest.mark.parametrize("count", [1, 2])
def test_stale_connections_are_passed_over(pool: BlockingPool, count: int) -> None:
    connections = idle(pool, count)
    for each in connections:
        each.goes_stale = True
    ask(pool)
    assert [len(each.asked) for each in Lent.made] == [*[0] * count, 1]
    assert pool._lent == {A: 0}
    (fresh,) = pool._idle[A]
    assert fresh is Lent.made[-1]
    fresh.goes_stale = True
    with pool.connection(A) as other:
        assert other is Lent.made[-1]
    assert pool._lent == {A: 0}


def test_a_stale_connection_makes_room_for_who_waits(pool: BlockingPool) -> None:
    (stale,) = idle(pool)
    notified: list[int] = []
    pool._changed.notify_all = lambda: notified.append(1)  # type: ignore[method-assign]
    stale.goes_stale = True
    assert pool._take_idle(A) is None
    assert (notified, pool._lent) == ([1], {A: 0})
    assert pool._take_idle(A) is None
    assert pool._lent == {A: 0}


def test_a_connection_that_cannot_be_made_takes_no_room(pool: BlockingPool) -> None:
    Lent.refuses = ConnectError("no")
    for _ in range(3):
        with pytest.raises(ConnectError):
            ask(pool)
    assert pool._lent == {A: 0}


# --- coming back ----------------------------------------------------------------------------------


def test_what_cannot_be_used_again_is_closed(pool: BlockingPool) -> None:
    with pool.connection(A) as lent:
        lent.is_reusable = False  # type: ignore[misc]
    assert lent.is_closed
    assert not pool._idle.get(A)
    (other,) = idle(pool)
    assert not other.is_closed


def test_a_request_that_fails_brings_its_connection_back(pool: BlockingPool) -> None:
    (connection,) = idle(pool)

    def fails() -> None:
        raise ConnectError("no")

    connection.amid = fails
    with pytest.raises(ConnectError):
        ask(pool)
    assert pool._lent == {A: 0}
    assert pool._idle[A] == [connection]


def test_a_timeout_takes_the_idle_ones_of_its_address_along(pool: BlockingPool) -> None:
    other, connection = idle(pool, 2)
    ask(pool, address=B)
    far = Lent.made[-1]
    ask(pool)
    assert not other.is_closed

    def times_out() -> None:
        connection.timed_out, connection.is_reusable = True, False

    connection.amid = times_out
    ask(pool)
    assert (connection.is_closed, other.is_closed, far.is_closed) == (True, True, False)
    assert not pool._idle.get(A)
    ask(pool)
    Lent.made[-1].amid = lambda: setattr(Lent.made[-1], "timed_out", True)
    ask(pool)
    assert pool._idle[A] == [Lent.made[-1]], "there was no other"


def test_nobody_is_woken_while_nobody_waits(pool: BlockingPool) -> None:
    notified: list[int] = []
    pool._changed.notify_all = lambda: notified.append(1)  # type: ignore[method-assign]
    ask(pool)
    assert notified == []
    pool._waiting = 1
    ask(pool)
    assert notified == [1]
    pool._waiting = 0
    pool.close()
    assert notified == [1, 1]


# --- waiting --------------------------------------------------------------------------------------


def test_who_finds_all_in_use_waits_as_long_as_it_may(pool: BlockingPool) -> None:
    waits: list[float] = []

    def wait_for(ready: Callable[[], bool], timeout_s: float) -> bool:
        waits.append(timeout_s)
        assert pool._waiting == 1
        return ready()

    pool._changed.wait_for = wait_for  # type: ignore[method-assign,assignment]
    with pool.connection(A), pool.connection(A, 2_500):
        text = "all 2 connections to a:1 were in use for 1500 ms; nothing was sent"
        with pytest.raises(TooManyRequestsError, match=text):
            ask(pool, 1_500)
        with pytest.raises(TooManyRequestsError), pool.connection(A):
            pass
        ask(pool, address=B)
    assert waits == [0.05, 2.5, 1.5, 0.05, 20.0]
    assert (pool._waiting, pool._lent[A]) == (0, 0)


def test_a_oneway_waits_three_seconds_if_nobody_says_otherwise(pool: BlockingPool) -> None:
    waits: list[float] = []
    plain = pool._reserve

    def reserve(address: str, timeout_ms: float) -> Any:
        waits.append(timeout_ms)
        return plain(address, timeout_ms)

    pool._reserve = reserve  # type: ignore[method-assign]
    pool.oneway(A, request())
    pool.oneway(A, request(), 70)
    assert (waits, Lent.made[0].oneways) == ([3_000, 70], 2)


@pytest.mark.parametrize("late_ms", [0.0, 1.0])
def test_a_connection_that_took_all_the_time_sends_nothing(
    pool: BlockingPool, late_ms: float
) -> None:
    Lent.connect_ms = 40 + late_ms
    with pytest.raises(TooManyRequestsError, match="no connection to a:1 within 40 ms; nothing"):
        ask(pool, 40)
    assert Lent.made[0].asked == []
    assert pool._lent == {A: 0}


def test_the_time_of_connecting_counts(pool: BlockingPool) -> None:
    Lent.connect_ms = 39
    ask(pool, 40)
    assert Lent.made[0].asked == [(1, False)]


def test_who_waits_gets_what_comes_back(clock: ManualClock) -> None:
    with BlockingPool(clock=clock, connections_max=1) as pool, ThreadPoolExecutor(1) as threads:
        with pool.connection(A) as lent:
            waiting = threads.submit(ask, pool)
            wait_until(lambda: pool._waiting, "the other waits")
        assert waiting.result(20) is ANSWER
        assert Lent.made == [lent]


# --- who looks, and who sees ----------------------------------------------------------------------


@pytest.mark.parametrize("busy_wait", [True, False])
def test_a_lone_user_may_look_for_its_answer(clock: ManualClock, busy_wait: bool) -> None:
    with BlockingPool(clock=clock, busy_wait=busy_wait) as pool:
        idle(pool, 2)
        ask(pool)
        with pool.connection(A):
            ask(pool)
    assert sorted(asked for each in Lent.made for asked in each.asked) == [
        (LONG_MS, False), (LONG_MS, busy_wait),
    ]  # fmt: skip


def test_without_asking_nobody_looks(clock: ManualClock) -> None:
    with BlockingPool(clock=clock) as pool:
        idle(pool)
        ask(pool)
    assert Lent.made[0].asked == [(LONG_MS, False)]


def test_answers_are_seen_of_new_and_of_idle_connections(clock: ManualClock) -> None:
    seen: list[tuple[Any, ...]] = []
    with BlockingPool(clock=clock, after_response=lambda *call: seen.append(call)) as pool:
        for _ in range(2):
            command = request()
            pool.request(A, command, LONG_MS)
            assert seen.pop() == (A, command, ANSWER)


# --- the end --------------------------------------------------------------------------------------


@pytest.mark.parametrize("waits", [False, True])
def test_an_interrupt_amid_the_look_at_an_idle_connection_takes_no_room(
    pool: BlockingPool, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    def interrupted(_: Lent) -> bool:
        raise KeyboardInterrupt

    lend = pool._borrow if waits else pool._take_idle
    for _ in range(3):  # more than there may be
        ask(pool)
        with monkeypatch.context() as patch:
            patch.setattr(Lent, "is_stale", interrupted)
            with pytest.raises(KeyboardInterrupt):
                lend(A, *([LONG_MS] if waits else []))
        assert Lent.made[-1].is_closed
    assert ask(pool) is ANSWER
    assert pool._lent[A] == 0


def test_an_interrupt_amid_a_return_takes_no_room(
    pool: BlockingPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: Lent) -> bool:
        raise KeyboardInterrupt

    for _ in range(3):
        with monkeypatch.context() as patch:
            patch.setattr(
                Lent, "is_reusable", property(interrupted, lambda *_: None), raising=False
            )
            with pytest.raises(KeyboardInterrupt):
                ask(pool)
    assert ask(pool) is ANSWER
    assert pool._lent[A] == 0


def test_a_closed_pool_lends_nothing_and_closes_what_returns(pool: BlockingPool) -> None:
    (kept,) = idle(pool)
    ask(pool, address=B)
    with pool.connection(A) as lent, pool.connection(A) as other:
        assert lent is kept
        pool.close()
        assert [each.is_closed for each in Lent.made] == [False, True, False]
    assert lent.is_closed
    assert other.is_closed
    for timeout_ms in (LONG_MS, 0.0):
        with pytest.raises(ClientStateError, match="cannot connect to a:1: the pool is closed"):
            ask(pool, timeout_ms)
    assert pool._lent[A] == 0


def test_connections_nobody_uses_are_closed_whatever_their_address(
    pool: BlockingPool, clock: ManualClock
) -> None:
    """Brokers that come back at another address left up to 16 sockets each."""
    first, second = idle(pool, 2)
    clock.advance(limits.IDLE_CLOSE_MS - 1)
    ask(pool)  # with the second
    ask(pool, address=B)
    assert (first.is_closed, second.is_closed) == (False, False)
    clock.advance(60_000)
    ask(pool, address=B)
    assert (first.is_closed, second.is_closed) == (True, False)
    clock.advance(limits.IDLE_CLOSE_MS)
    ask(pool, address=B)
    assert second.is_closed
    assert list(pool._idle) == [B]
    assert pool._lent == {}
    assert not pool._idle[B][0].is_closed


def test_lent_connections_are_not_closed_however_long(
    pool: BlockingPool, clock: ManualClock
) -> None:
    with pool.connection(A) as lent:
        clock.advance(2 * limits.IDLE_CLOSE_MS)
        ask(pool, address=B)
        assert not lent.is_closed
        assert pool._lent[A] == 1
    assert pool._idle[A] == [lent]


def test_idle_connections_are_looked_at_once_a_minute(
    pool: BlockingPool, clock: ManualClock
) -> None:
    idle(pool)
    clock.advance(limits.IDLE_CLOSE_MS)
    ask(pool, address=B)
    assert list(pool._idle) == [B]
    (again,) = idle(pool)
    again.idle_since_ms -= limits.IDLE_CLOSE_MS
    clock.advance(59_999)
    ask(pool, address=B)
    assert not again.is_closed
    clock.advance(1)
    ask(pool, address=B)
    assert again.is_closed


def test_who_still_has_a_pool_goes_on_when_its_idle_connections_are_closed(
    pool: BlockingPool,
) -> None:
    (first,) = idle(pool)
    with pool.connection(B) as lent:
        pool.close_idle()
        assert (first.is_closed, lent.is_closed) == (True, False)
    assert ask(pool) is ANSWER
    assert [each.address for each in Lent.made] == [A, B, A]


def test_who_waits_hears_of_the_close(clock: ManualClock) -> None:
    pool = BlockingPool(clock=clock, connections_max=1)
    with ThreadPoolExecutor(1) as threads, pool.connection(A):
        waiting = threads.submit(ask, pool)
        wait_until(lambda: pool._waiting, "the other waits")
        pool.close()
        assert isinstance(waiting.exception(20), ClientStateError)


def test_a_signal_handler_that_closes_amid_a_return_leaves_nothing_open(
    pool: BlockingPool,
) -> None:
    """It comes between the look whether the pool is closed and the line after it."""

    class Interrupted(dict[str, Any]):
        def setdefault(self, *what: Any) -> Any:
            pool.close()
            return super().setdefault(*what)

    pool._idle = Interrupted()
    ask(pool)
    assert [each.is_closed for each in Lent.made] == [True]
    assert pool._idle == {}


def test_bounds_are_those_of_the_table() -> None:
    pool = BlockingPool()
    assert pool._connections_max == limits.BLOCKING_CONNECTIONS_PER_BROKER_MAX
    assert pool._connect_timeout_ms == limits.CONNECT_TIMEOUT_MS
    pool.close()
