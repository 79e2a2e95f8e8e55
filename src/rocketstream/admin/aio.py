"""The asyncio face of ``Admin``: the same calls, awaited.

Law: one line per operation and no operation of its own. Calls run on a few threads, on purpose: an
operation is a chain of questions whose joins are written once, in blocking code that the command
line starts with in milliseconds; a second version of them on the event loop would drift from the
first, and an operator's question waits for brokers, not for threads.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from rocketstream import limits
from rocketstream._util.stopping import Stop, call_until
from rocketstream.admin.admin import Admin as _Admin
from rocketstream.errors import ClientStateError

P = ParamSpec("P")
R = TypeVar("R")


def _like(
    init: Callable[Concatenate[Any, P], None],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Give a constructor the parameters of another one."""
    return functools.wraps(init)


def _asks(
    method: Callable[Concatenate[_Admin, P], R],
) -> Callable[Concatenate[Admin, P], Coroutine[Any, Any, R]]:
    """Return the awaitable form of a question, which ends early when it is cancelled."""

    @functools.wraps(method)
    async def ask(self: Admin, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._call(Stop(), functools.partial(method, self._admin, *args, **kwargs))

    return ask


def _changes(
    method: Callable[Concatenate[_Admin, P], R],
) -> Callable[Concatenate[Admin, P], Coroutine[Any, Any, R]]:
    """Return the awaitable form of a change, which once begun is always completed."""

    @functools.wraps(method)
    async def change(self: Admin, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._call(None, functools.partial(method, self._admin, *args, **kwargs))

    return change


class Admin:
    """Asks a cluster about its topics and groups from an event loop; to be closed.

    Every operation of ``rocketstream.admin.Admin`` is here, with the same name and arguments, and
    is awaited. Up to eight run at a time and the others wait; none blocks the loop.

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
        ...     for row in await admin.group_lag("orders"):
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

    def __repr__(self) -> str:
        closed = ", closed" if self._closed else f", {len(self._under_way)} calls under way"
        return f"aio.{self._admin!r}"[:-1] + f"{closed})"

    # Everything at one moment.
    cluster_state = _asks(_Admin.cluster_state)
    group_state = _asks(_Admin.group_state)
    group_states = _asks(_Admin.group_states)
    topic_state = _asks(_Admin.topic_state)
    broker_states = _asks(_Admin.broker_states)

    # Brokers, name servers, producers.
    broker_status = _asks(_Admin.broker_status)
    broker_config = _asks(_Admin.broker_config)
    delay_levels = _asks(_Admin.delay_levels)
    topic_names = _asks(_Admin.topic_names)
    group_names = _asks(_Admin.group_names)
    name_servers = _asks(_Admin.name_servers)
    producer_connections = _asks(_Admin.producer_connections)
    producer_list = _asks(_Admin.producer_list)

    # Cluster and topics.
    cluster_info = _asks(_Admin.cluster_info)
    topic_list = _asks(_Admin.topic_list)
    topic_route = _asks(_Admin.topic_route)
    topic_status = _asks(_Admin.topic_status)
    topic_consumers = _asks(_Admin.topic_consumers)
    topic_create = _changes(_Admin.topic_create)

    # Groups and how far they are.
    progress = _asks(_Admin.progress)
    group_list = _asks(_Admin.group_list)
    group_lag = _asks(_Admin.group_lag)
    group_verdict = _asks(_Admin.group_verdict)
    group_why = _asks(_Admin.group_why)
    watch_group = _asks(_Admin.watch_group)
    group_members = _asks(_Admin.group_members)
    group_connections = _asks(_Admin.group_connections)
    running_info = _asks(_Admin.running_info)
    consumer_status = _asks(_Admin.consumer_status)
    consume_time_span = _asks(_Admin.consume_time_span)

    # Moving groups.
    group_begin = _changes(_Admin.group_begin)
    reset_plan = _asks(_Admin.reset_plan)
    reset_apply = _changes(_Admin.reset_apply)
    undo = _asks(_Admin.undo)

    # Changing topics and groups.
    topic_create_plan = _asks(_Admin.topic_create_plan)
    topic_update_plan = _asks(_Admin.topic_update_plan)
    topic_delete_plan = _asks(_Admin.topic_delete_plan)
    group_settings = _asks(_Admin.group_settings)
    group_create_plan = _asks(_Admin.group_create_plan)
    group_update_plan = _asks(_Admin.group_update_plan)
    group_pause_plan = _asks(_Admin.group_pause_plan)
    group_resume_plan = _asks(_Admin.group_resume_plan)
    group_delete_plan = _asks(_Admin.group_delete_plan)
    export = _asks(_Admin.export)
    import_plan = _asks(_Admin.import_plan)
    change_apply = _changes(_Admin.change_apply)

    # Messages and dead letters.
    message_view = _asks(_Admin.message_view)
    message_query = _asks(_Admin.message_query)
    message_search = _asks(_Admin.message_search)
    message_tail = _asks(_Admin.message_tail)
    message_track = _asks(_Admin.message_track)
    trace = _asks(_Admin.trace)
    shown = _asks(_Admin.shown)
    consume_message_plan = _asks(_Admin.consume_message_plan)
    consume_message = _changes(_Admin.consume_message)
    letters_by_cause = _asks(_Admin.letters_by_cause)
    letters_of_cause = _asks(_Admin.letters_of_cause)
    redrive_plan = _asks(_Admin.redrive_plan)
    redrive = _asks(_Admin.redrive)

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

        Waits for changes under way; questions end before their next request.
        """
        self._closed = True
        under_way = dict(self._under_way)
        for stop in under_way.values():
            if stop is not None:
                stop.ask()
        if under_way:
            ended, _ = await asyncio.wait([asyncio.wrap_future(each) for each in under_way])
            for each in ended:
                # The caller that awaits gets the error; here it only has to count as retrieved.
                each.cancelled() or each.exception()
        # No call runs any more: the threads are idle and end at once.
        self._threads.shutdown(cancel_futures=True)
        self._admin.close()

    # --- parts -----------------------------------------------------------------------------------

    async def _call(self, stop: Stop | None, call: Callable[[], R]) -> R:
        if self._closed:
            raise ClientStateError("this Admin is closed; make a new one")
        run = call if stop is None else functools.partial(call_until, stop, call)
        future: Future[R] = self._threads.submit(copy_context().run, run)
        self._under_way[future] = stop
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
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
