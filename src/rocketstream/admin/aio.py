"""The asyncio face of ``Admin``: the same calls, awaited.

Law: no operation of its own. Calls run on a few threads, on purpose: an operation is a chain of
questions whose joins are written once, in blocking code that the command line starts with in
milliseconds; a second version of them on the event loop would drift from the first, and an
operator's question waits for brokers, not for threads.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from rocketstream import limits
from rocketstream._util.ending import Cancellation, to_the_end
from rocketstream._util.stopping import Stop, call_until
from rocketstream.admin.admin import Admin as _Admin
from rocketstream.admin.changes.service import Changes as _Changes
from rocketstream.admin.cluster import Brokers as _Brokers
from rocketstream.admin.cluster import Cluster as _Cluster
from rocketstream.admin.cluster import Producers as _Producers
from rocketstream.admin.groups import Groups as _Groups
from rocketstream.admin.letters.service import Letters as _Letters
from rocketstream.admin.messages.service import Messages as _Messages
from rocketstream.admin.service import Awaited
from rocketstream.admin.topics import Topics as _Topics
from rocketstream.errors import ClientStateError

P = ParamSpec("P")
R = TypeVar("R")


def _like(
    init: Callable[Concatenate[Any, P], None],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Give a constructor the parameters of another one."""
    return functools.wraps(init)


class Cluster(Awaited, _Cluster):
    """``Admin.cluster``, awaited."""


class Brokers(Awaited, _Brokers):
    """``Admin.brokers``, awaited."""


class Topics(Awaited, _Topics):
    """``Admin.topics``, awaited."""


class Groups(Awaited, _Groups):
    """``Admin.groups``, awaited."""


class Producers(Awaited, _Producers):
    """``Admin.producers``, awaited."""


class Messages(Awaited, _Messages):
    """``Admin.messages``, awaited."""


class Letters(Awaited, _Letters):
    """``Admin.letters``, awaited."""


class Changes(Awaited, _Changes):
    """``Admin.changes``, awaited."""


class Admin:
    """Asks a cluster about its topics and groups from an event loop; to be closed.

    Every service of ``rocketstream.admin.Admin`` is here, with the same operations, which are
    awaited. Up to eight run at a time and the others wait; none blocks the loop.

    A cancelled question raises at once and, in its thread, ends before its next request; the
    answer under way is still read, so its connection stays good. A change that is cancelled before
    its turn never happens; a change under way is completed, and ``close`` waits for it. Sending
    dead letters again is the exception: it ends between two letters and remembers its place.

    Callbacks, such as ``on_sent`` of a redrive, are called on the thread of the call.

    Args:
        namesrv_addr: ``host:port``, several separated by ``;``; None takes NAMESRV_ADDR.
        **settings: those of ``rocketstream.admin.Admin``.

    Example:
        >>> async with Admin("127.0.0.1:9876") as admin:    # doctest: +SKIP
        ...     for row in await admin.groups.lag("orders"):
        ...         print(row.topic, row.queue_id, row.lag)
    """

    @_like(_Admin.__init__)
    def __init__(self, *args: Any, **settings: Any) -> None:
        self._admin = _Admin(*args, **settings)
        self._threads = ThreadPoolExecutor(
            limits.ADMIN_CALLS_AT_ONCE_MAX, thread_name_prefix="rocketstream-admin"
        )
        self._under_way: dict[Future[Any], Stop | None] = {}
        self._closed = False
        self.cluster: Cluster = Cluster(self._call, self._admin.cluster)
        self.brokers: Brokers = Brokers(self._call, self._admin.brokers)
        self.topics: Topics = Topics(self._call, self._admin.topics)
        self.groups: Groups = Groups(self._call, self._admin.groups)
        self.producers: Producers = Producers(self._call, self._admin.producers)
        self.messages: Messages = Messages(self._call, self._admin.messages)
        self.letters: Letters = Letters(self._call, self._admin.letters)
        self.changes: Changes = Changes(self._call, self._admin.changes)

    def __repr__(self) -> str:
        closed = ", closed" if self._closed else f", {len(self._under_way)} calls under way"
        return f"aio.{self._admin!r}"[:-1] + f"{closed})"

    # --- life cycle ------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection; calling it again does nothing.

        Waits for changes under way; questions end before their next request. A caller that is
        cancelled waits no longer, and all is closed all the same.
        """
        self._closed = True
        for stop in list(self._under_way.values()):
            if stop is not None:
                stop.ask()
        await to_the_end(self._close(), "ended its calls")

    async def _close(self) -> None:
        under_way = [asyncio.wrap_future(each) for each in list(self._under_way)]
        for each in under_way:
            # The caller that awaits gets the error; here it only has to count as retrieved.
            each.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        try:
            if under_way:
                await asyncio.wait(under_way)
        finally:
            # The threads are idle and end at once, unless the loop itself ends amid a change.
            self._threads.shutdown(cancel_futures=True)
            self._admin.close()

    # --- parts -----------------------------------------------------------------------------------

    async def _call(self, is_change: bool, call: Callable[[], R]) -> R:
        if self._closed:
            raise ClientStateError("this Admin is closed; make a new one")
        stop = None if is_change else Stop()
        run = call if stop is None else functools.partial(call_until, stop, call)
        future: Future[R] = self._threads.submit(copy_context().run, run)
        self._under_way[future] = stop
        cancellation = Cancellation()
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if self._closed and not cancellation.has_come:
                raise ClientStateError("this Admin was closed before it had an answer") from None
            if stop is not None:
                stop.ask()
            raise
        finally:
            self._forget(future)

    def _forget(self, future: Future[Any]) -> None:
        """Forget a call that is over; a call whose caller left stays known until it ends."""
        if future.done():
            self._under_way.pop(future, None)
        else:
            # Called on the call's thread; a dict removes a key in one step, whichever thread asks.
            future.add_done_callback(lambda ended: self._under_way.pop(ended, None))
