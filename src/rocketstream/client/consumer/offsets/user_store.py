"""Users' stores as consumers use them, and a consumer's offsets as its user looks at them.

Users' code is called with no lock of ours held, and not on the network thread, but
for reads of its memory: what consumers note while they hold a queue's lock is told soon after.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from typing import Any, Final, TypeVar

from rocketstream._util.ending import to_the_end
from rocketstream._util.user_code import called, result_of
from rocketstream._util.waiting import Locks, interrupting
from rocketstream.client.config import ClientConfig
from rocketstream.client.consumer.offsets.local_store import LocalFileOffsetStore
from rocketstream.client.consumer.offsets.store import (
    NO_OFFSET,
    UNREADABLE,
    Offsets,
    OffsetStore,
    ReadOffsetType,
    RemoteBrokerOffsetStore,
)
from rocketstream.client.instance.engine import Engine
from rocketstream.client.instance.life_cycle import blocking
from rocketstream.errors import ClientStateError, ConfigurationError, RocketMQError
from rocketstream.model import MessageModel, MessageQueue

logger: logging.Logger = logging.getLogger("rocketstream.client")


def checked_store(store: object) -> OffsetStore | None:
    """Return the store a consumer was given.

    Raises:
        ConfigurationError: it lacks methods of a store.
    """
    if store is None or isinstance(store, OffsetStore):
        return store
    raise ConfigurationError(
        f"offset_store must be an instance of a subclass of rocketstream.OffsetStore, not {store!r}"
    )


_FORGET = None
_Told = tuple[int, bool] | None
"""An offset and whether it only increases, or ``_FORGET``."""


class UserOffsets(Offsets):
    """Offsets kept by a store of the user's own, or by the local file (C-44).

    Args:
        store: where they are kept.
        run_soon: runs a coroutine on the loop; without it the store, which then is ours, is told
            of each offset at once.
        locks: those that the loop's thread and users' threads take by turns.
    """

    def __init__(
        self,
        store: OffsetStore,
        run_soon: Callable[[Coroutine[None, None, None]], None] | None = None,
        locks: Locks | None = None,
    ) -> None:
        self.store = store
        self._run_soon = run_soon
        self._loop = asyncio.get_running_loop() if run_soon is not None else None
        self._writing = asyncio.Lock()
        self._lock = (locks or Locks()).make()
        self._noted: dict[MessageQueue, int] = {}
        self._untold: dict[MessageQueue, list[_Told]] = {}
        """By queue what the store does not know yet, oldest first."""
        self._is_telling = False

    async def load(self) -> None:
        """Have the store read what it keeps; what it raises fails the start."""
        await _waiting(self.store.load)

    def update_offset(self, mq: MessageQueue, offset: int, *, increase_only: bool = True) -> None:
        """Note an offset; the store is told soon, and what it raises is logged.

        Raises:
            ClientStateError: a signal handler interrupted who was noting one.
        """
        if self._loop is None:
            self._update(mq, offset, increase_only)
            return
        self._check_not_amid()
        with self._lock:
            known = self._noted.get(mq)
            if increase_only and known is not None and offset <= known:
                return
            self._noted[mq] = offset
            is_first = not self._untold
            untold = self._untold.setdefault(mq, [])
            if increase_only and untold and (before := untold[-1]) is not _FORGET:
                increase_only = before[1]
                untold.pop()
            untold.append((offset, increase_only))
        if is_first:
            self._tell_soon(self._loop)

    def _check_not_amid(self) -> None:
        if self._lock._is_owned():  # by this thread, which a signal handler interrupted
            raise interrupting()

    def _update(self, mq: MessageQueue, offset: int, increase_only: bool) -> None:
        try:
            self.store.update_offset(mq, offset, increase_only)
        except BaseException:  # such as SystemExit, which would end what waits for this thread
            logger.exception("the offset store failed to take offset %d of %s", offset, mq)

    def _remove(self, mq: MessageQueue) -> None:
        try:
            self.store.remove_offset(mq)
        except BaseException:
            logger.exception("the offset store failed to remove the offset of %s", mq)

    # --- telling the store ------------------------------------------------------------------------

    def _tell_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing counts any more
            loop.call_soon_threadsafe(self._begin_telling)

    def _begin_telling(self) -> None:
        if self._untold and self._run_soon is not None and not self._is_telling:
            self._is_telling = True
            self._run_soon(self._tell_all())

    async def _tell_all(self) -> None:
        try:
            while self._untold:
                await self._tell()
        finally:
            self._is_telling = False

    async def _tell(self) -> None:
        """Tell the store what was noted since it was last told."""
        await self._one_by_one(self._tell_now)

    async def _one_by_one(self, work: Callable[..., Awaitable[None]], *args: Any) -> None:
        """Have the store written to by one at a time, whose caller may be cancelled meanwhile.

        A thread cannot be cancelled: others must not overtake the one that still tells the store.
        """

        async def whole() -> None:
            async with self._writing:
                await work(*args)

        await to_the_end(whole(), "wrote to its offset store")

    async def _tell_now(self) -> None:
        if self._untold:
            await asyncio.to_thread(self._tell_here)

    def _tell_here(self) -> None:
        with self._lock:  # only here: a thread that is never begun takes nothing away
            untold, self._untold = self._untold, {}
        for mq, steps in untold.items():
            for step in steps:
                if step is _FORGET:
                    self._remove(mq)
                else:
                    self._update(mq, *step)

    # --- asking it --------------------------------------------------------------------------------

    def read_memory(self, mq: MessageQueue) -> int | None:
        """Return what is noted, None when nothing is."""
        with self._lock:
            noted = self._noted.get(mq)
            if noted is not None or mq in self._untold:
                return noted
        try:
            offset = called(self.store.read_offset, mq, ReadOffsetType.READ_FROM_MEMORY)
        except Exception:
            logger.exception("the offset store failed to tell the offset it has of %s", mq)
            return None
        return offset if isinstance(offset, int) and offset >= 0 else None

    async def read_store(self, mq: MessageQueue) -> int | None:
        """Ask the store; None when it says -1.

        Raises:
            RocketMQError: it says another negative number, or raises (C-302, C-561).
        """
        await self._tell()
        try:
            offset = await _waiting(self.store.read_offset, mq, ReadOffsetType.READ_FROM_STORE)
        except RocketMQError:
            raise
        except Exception as error:
            raise ClientStateError(f"the offset store failed for {mq}: {error!r}") from error
        if offset == NO_OFFSET:
            return None
        if not isinstance(offset, int) or offset < 0:
            raise ClientStateError(
                f"read_offset() of the offset store returned {offset!r} for {mq}; it must "
                "return an offset from 0 on, or -1 for none"
            )
        return offset

    async def persist(self, mqs: Iterable[MessageQueue]) -> None:
        """Have offsets kept; what the store raises is logged, and tried again next time."""
        queues = list(mqs)
        if not queues:
            return
        await self._one_by_one(self._persist, queues)

    async def _persist(self, queues: list[MessageQueue]) -> None:
        await self._tell_now()
        try:
            await _waiting(self.store.persist_all, queues)
        except (Exception, SystemExit):
            logger.exception("the offset store failed to persist the offsets of %s", queues)

    def remove_offset(self, mq: MessageQueue) -> None:
        """Forget a queue; the store is told soon.

        Raises:
            ClientStateError: a signal handler interrupted who was noting an offset.
        """
        if self._loop is None:
            self._remove(mq)
            return
        self._check_not_amid()
        with self._lock:
            self._noted.pop(mq, None)
            self._untold[mq] = [_FORGET]
        self._tell_soon(self._loop)

    async def update_consume_offset_to_broker(
        self, mq: MessageQueue, offset: int, is_oneway: bool = False
    ) -> None:
        """Let the store do it; the local file has no broker to tell (C-309)."""
        await self._one_by_one(self._update_at_broker, mq, offset, is_oneway)

    async def _update_at_broker(self, mq: MessageQueue, offset: int, is_oneway: bool) -> None:
        await self._tell_now()
        await _waiting(self.store.update_consume_offset_to_broker, mq, offset, is_oneway)

    def clone_offset_table(self, topic: str | None = None) -> dict[MessageQueue, int]:
        """Return what is noted of a topic."""
        table = dict(self.store.clone_offset_table(topic))
        with self._lock:
            for mq in self._untold:
                table.pop(mq, None)
            noted = {mq: at for mq, at in self._noted.items() if topic in (None, "", mq.topic)}
        return table | noted


async def open_store(
    engine: Engine,
    group: str,
    message_model: MessageModel,
    user_store: OffsetStore | None = None,
) -> Offsets:
    """Return a consumer's offsets, loaded: the user's store, or the one its model has (C-111).

    Raises:
        RocketMQError: what is kept cannot be read.
    """
    instance = engine.instance
    store: Offsets
    if user_store is not None:
        store = UserOffsets(user_store, instance.background.run_soon, engine.locks)
    elif message_model is MessageModel.BROADCASTING:
        local = LocalFileOffsetStore(instance.client_id, group)
        store = UserOffsets(local, locks=engine.locks)
    else:
        store = RemoteBrokerOffsetStore(instance, group)
    await store.load()
    return store


async def _waiting(function: Callable[..., Any], *args: Any) -> Any:
    """Call what may wait on a thread; if it is a coroutine function, await it here."""
    if inspect.iscoroutinefunction(function):
        return await result_of(function(*args))
    result = await asyncio.to_thread(called, function, *args)
    return await result_of(result) if inspect.isawaitable(result) else result


T = TypeVar("T")


class _View:
    """Both faces: the calls that wait for nothing."""

    def __init__(self, offsets: Offsets, config: ClientConfig) -> None:
        self._offsets = offsets
        self._config = config

    def update_offset(
        self, message_queue: MessageQueue, offset: int, increase_only: bool = True
    ) -> None:
        """Note an offset; with ``increase_only`` not one below the one noted (C-300)."""
        self._offsets.update_offset(self._queue(message_queue), offset, increase_only=increase_only)

    def remove_offset(self, message_queue: MessageQueue) -> None:
        """Forget what is noted of a queue; what is stored stays."""
        self._offsets.remove_offset(self._queue(message_queue))

    def clone_offset_table(self, topic: str | None = None) -> dict[MessageQueue, int]:
        """Return what is noted of a topic's queues; of all when it is None or blank (C-320)."""
        name = self._config.with_namespace(topic) if topic and topic.strip() else None
        table = self._offsets.clone_offset_table(name)
        return {self._config.queue_without_namespace(mq): offset for mq, offset in table.items()}

    def _queue(self, message_queue: MessageQueue) -> MessageQueue:
        return self._config.queue_with_namespace(message_queue)


class AsyncOffsetStoreView(_View):
    """As ``OffsetStore``, with coroutines for what asks a broker or writes a file."""

    async def read_offset(self, message_queue: MessageQueue, read_type: ReadOffsetType) -> int:
        """Return an offset, -1 when there is none, -2 when it cannot be found out (C-302)."""
        queue = self._queue(message_queue)
        if read_type is not ReadOffsetType.READ_FROM_STORE:
            noted = self._offsets.read_memory(queue)
            if noted is not None or read_type is ReadOffsetType.READ_FROM_MEMORY:
                return NO_OFFSET if noted is None else noted
        try:
            stored = await self._offsets.read_store(queue)
        except RocketMQError:
            return UNREADABLE
        return NO_OFFSET if stored is None else stored

    async def persist_all(self, message_queues: Collection[MessageQueue]) -> None:
        """Store what is noted of these queues; failures are logged."""
        await self._offsets.persist([self._queue(mq) for mq in message_queues])

    async def persist(self, message_queue: MessageQueue) -> None:
        """Store what is noted of one queue."""
        await self.persist_all([message_queue])

    async def update_consume_offset_to_broker(
        self, message_queue: MessageQueue, offset: int, is_oneway: bool = False
    ) -> None:
        """Store an offset now (C-319).

        Raises:
            RocketMQError: the broker is unknown or did not take it.
        """
        queue = self._queue(message_queue)
        await self._offsets.update_consume_offset_to_broker(queue, offset, is_oneway)


class OffsetStoreView(_View, OffsetStore):
    """The same for threads: each waiting call blocks for a request."""

    read_offset: Final = blocking(AsyncOffsetStoreView.read_offset)
    persist_all: Final = blocking(AsyncOffsetStoreView.persist_all)
    update_consume_offset_to_broker: Final = blocking(
        AsyncOffsetStoreView.update_consume_offset_to_broker
    )

    def __init__(self, offsets: Offsets, engine: Engine) -> None:
        super().__init__(offsets, engine.instance.config)
        self._engine = engine

    def _call(self, body: Coroutine[Any, Any, T]) -> T:
        return self._engine.run(body)

    def _queue(self, message_queue: MessageQueue) -> MessageQueue:
        self._engine.check_process()
        return super()._queue(message_queue)
