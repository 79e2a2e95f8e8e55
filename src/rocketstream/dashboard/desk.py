"""The queue of questions to brokers: a few run at a time, equal ones once, none without an end.

Law: no page reaches a broker otherwise. For any number of users the cluster sees no more than the
limits say.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from rocketstream import limits
from rocketstream._util.clock import Clock
from rocketstream._util.stopping import Stop, call_until
from rocketstream.admin import Admin
from rocketstream.errors import RocketMQError

T = TypeVar("T")
AdminFactory = Callable[[], Admin]


class DeskBusyError(RocketMQError):
    """Too many questions wait already."""

    condition = "BUSY"


class DeskLateError(RocketMQError):
    """The answer did not come in time."""

    condition = "LATE"


@dataclass(slots=True)
class _Kept:
    answer: asyncio.Future[Any]
    until_ms: float | None


class Desk:
    """Asks brokers on behalf of pages; to be closed. Only the event loop calls it.

    Args:
        admin_factory: makes the only Admin, when it is first needed.
    """

    def __init__(self, admin_factory: AdminFactory, clock: Clock) -> None:
        self._factory = admin_factory
        self._clock = clock
        self._lock = threading.Lock()
        self._admin: Admin | None = None
        self._pool = ThreadPoolExecutor(limits.DASHBOARD_ASKING_MAX, "rocketstream-dashboard")
        self._under_way = 0
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()

    async def ask(
        self, question: Callable[[Admin], T], *, key: Hashable = None, keep_ms: float = 0
    ) -> T:
        """Return the answer of a question to the desk's Admin; as ``look``."""
        return await self.look(lambda: question(self._the_admin()), key=key, keep_ms=keep_ms)

    async def look(
        self, question: Callable[[], T], *, key: Hashable = None, keep_ms: float = 0
    ) -> T:
        """Return the answer of ``question``, which runs on a thread; waits for a bounded time.

        Args:
            key: others that ask with the same key meanwhile get the same answer.
            keep_ms: how long after its arrival others still get it.

        Raises:
            DeskBusyError: too many questions wait.
            DeskLateError: there was no answer in time; the question ends before its next request to
                a broker.
            RocketMQError: the question raised it.
        """
        if key is not None and (kept := self._fresh(key)) is not None:
            return await self._in_time(kept.answer)
        if self._under_way >= limits.DASHBOARD_ASKING_MAX + limits.DASHBOARD_WAITING_MAX:
            raise DeskBusyError(
                f"{self._under_way} questions wait for the brokers already; try again in a moment"
            )
        self._under_way += 1
        loop = asyncio.get_running_loop()
        stop = Stop()

        def work() -> T:
            try:
                return call_until(stop, question)
            except asyncio.CancelledError:
                raise _late() from None

        answer = loop.run_in_executor(self._pool, work)
        answer.add_done_callback(self._done)
        loop.call_later(limits.DASHBOARD_ANSWER_MS / 1_000, stop.ask)
        if key is not None:
            self._keep(key, answer, keep_ms)
        return await self._in_time(answer)

    async def locally(self, work: Callable[[], T]) -> T:
        """Return the answer of blocking work that asks no broker, such as reading local files."""
        return await asyncio.get_running_loop().run_in_executor(None, work)

    def forget(self, key: Hashable) -> None:
        """Drop a kept answer, because a change made it out of date."""
        self._kept.pop(key, None)

    def close(self) -> None:
        """Wait for running questions and close the Admin; blocks."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        with self._lock:
            admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()

    # --- parts ------------------------------------------------------------------------------------

    def _the_admin(self) -> Admin:
        with self._lock:
            if self._admin is None:
                self._admin = self._factory()
            return self._admin

    def _done(self, answer: asyncio.Future[Any]) -> None:
        self._under_way -= 1
        if not answer.cancelled():
            answer.exception()  # perhaps nobody waits for it any more

    def _fresh(self, key: Hashable) -> _Kept | None:
        kept = self._kept.get(key)
        if kept is None:
            return None
        if kept.until_ms is not None and self._clock.monotonic_ms() >= kept.until_ms:
            del self._kept[key]
            return None
        return kept

    def _keep(self, key: Hashable, answer: asyncio.Future[Any], keep_ms: float) -> None:
        while len(self._kept) >= limits.DASHBOARD_KEPT_MAX:
            self._kept.popitem(last=False)
        kept = self._kept[key] = _Kept(answer, None)

        def came(done: asyncio.Future[Any]) -> None:
            failed = done.cancelled() or done.exception() is not None
            kept.until_ms = self._clock.monotonic_ms() + (0 if failed else keep_ms)

        if answer.done():
            came(answer)  # now: a callback would run after the next caller found it fresh
        else:
            answer.add_done_callback(came)

    async def _in_time(self, answer: asyncio.Future[T]) -> T:
        try:
            async with asyncio.timeout(limits.DASHBOARD_ANSWER_MS / 1_000):
                return await asyncio.shield(answer)
        except TimeoutError:
            if answer.done() and not answer.cancelled():
                return answer.result()  # raises: the question itself timed out
            raise _late() from None


def _late() -> DeskLateError:
    return DeskLateError(
        f"no answer within {limits.DASHBOARD_ANSWER_MS // 1_000} s; the brokers, or the members "
        "they pass it on to, are slow"
    )
