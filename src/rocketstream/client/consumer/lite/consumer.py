"""The lite pull consumer on threads (upstream's DefaultLitePullConsumer): poll or iterate over it.

Messages are handed out where the caller is, under the machine's lock: that is the hot path.
Everything else is the asyncio face's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from threading import TIMEOUT_MAX
from typing import TYPE_CHECKING, Any, ClassVar, Final

from rocketstream._util.waiting import interrupting, wait_until
from rocketstream.checks import checks_calls
from rocketstream.client.consumer.lite.aio_consumer import (
    COLUMNS_ROWS,
    GATHER_S,
    AsyncLitePullConsumer,
    LitePullConsumerBase,
)
from rocketstream.client.consumer.lite.impl import LitePullConsumerImpl
from rocketstream.client.instance.engine import Engine
from rocketstream.client.instance.life_cycle import (
    IN_PEACE,
    ServiceState,
    Started,
    SyncClient,
    blocking,
    starting,
    weakly,
)
from rocketstream.model import MessageQueue
from rocketstream.protocol.message_ext import MessageExt

if TYPE_CHECKING:
    import pyarrow as pa

    from rocketstream.client.consumer.lite.arrow import ArrowPolls
    from rocketstream.client.consumer.lite.batches import Batches


@checks_calls("poll", "subscribe")
class LitePullConsumer(LitePullConsumerBase, SyncClient[LitePullConsumerImpl]):
    """Hands out messages when asked; a ``with`` block starts it and shuts it down. Thread safe.

    Either ``subscribe`` topics, and share their queues with the other members of the group, or
    ``assign`` queues; both before the block or inside. ``poll`` again and again, or iterate.

    Each message is handed out at least once. Messages ``poll`` returned count as consumed when the
    caller comes back: with the next ``poll``, a commit, or ``shutdown``. In iteration a message
    counts once the next one was asked for. With ``auto_commit`` such offsets are stored every
    ``auto_commit_interval_ms``, when a queue is given up, and at shutdown; without it only what
    ``commit`` and ``commit_sync`` were told. Threads that share a consumer share this too: any
    thread's next ``poll`` counts for what any of them got.

    Args:
        group: consumer group, 1 to 248 characters of ``[%|a-zA-Z0-9_-]``.
        namesrv_addr: ``host:port``, several joined by ``;``; None takes NAMESRV_ADDR.
        config: settings shared by all clients; ``namesrv_addr`` overrides its address.
        subscription: topics with their expressions, the same as calls of ``subscribe``.
        clock: where time comes from.
        **settings: upstream's, among them ``auto_commit`` (True), ``auto_commit_interval_ms``
            (5000, at least 1000), ``pull_batch_size`` (10: most messages of one poll),
            ``pull_threshold_for_all`` (10000 messages cached), ``pull_threshold_for_queue``
            (1000), ``pull_threshold_size_for_queue`` (100 MiB), ``consume_max_span`` (2000),
            ``poll_timeout_ms`` (5000), ``topic_metadata_check_interval_ms`` (30000),
            ``consume_from_where`` (LAST_OFFSET), ``consume_timestamp``, ``message_model``,
            ``allocate_message_queue_strategy``, ``broker_suspend_max_time_ms`` (20000),
            ``consumer_timeout_ms_when_suspend`` (30000), ``message_queue_listener``,
            ``offset_store``, ``unit_mode``, ``check_crc`` (True: a damaged message is pulled again
            until it is whole). ``pull_thread_nums`` is accepted and needed for
            nothing: no queue occupies a thread.

    Raises:
        ConfigurationError: a setting out of its range; the text names it and the range.
    """

    _arrived: threading.Condition
    _arrow_lock: Any
    """Whose turn it is to poll for record batches."""

    start: ClassVar[Callable[[Any], None]] = starting(AsyncLitePullConsumer.start)
    subscribe: Final = blocking(AsyncLitePullConsumer.subscribe)
    unsubscribe: Final = blocking(AsyncLitePullConsumer.unsubscribe)
    assign: Final = blocking(AsyncLitePullConsumer.assign)
    register_topic_message_queue_change_listener: Final = blocking(
        AsyncLitePullConsumer.register_topic_message_queue_change_listener
    )
    fetch_message_queues: Final = blocking(AsyncLitePullConsumer.fetch_message_queues)
    seek: Final = blocking(AsyncLitePullConsumer.seek)
    seek_to_begin: Final = blocking(AsyncLitePullConsumer.seek_to_begin)
    seek_to_end: Final = blocking(AsyncLitePullConsumer.seek_to_end)
    seek_to_timestamp: Final = blocking(AsyncLitePullConsumer.seek_to_timestamp)
    offset_for_timestamp: Final = blocking(AsyncLitePullConsumer.offset_for_timestamp)
    commit_sync: Final = blocking(AsyncLitePullConsumer.commit_sync)
    committed: Final = blocking(AsyncLitePullConsumer.committed)

    def _running(self) -> Started[LitePullConsumerImpl]:
        started = super()._running()
        # By this thread, which a signal handler interrupted.
        if started.machine.lock._is_owned() or self._arrow_lock._is_owned():
            raise interrupting()
        return started

    def _before_start(self, impl: LitePullConsumerImpl, engine: Engine) -> None:
        self._arrow_lock = threading.RLock()
        engine.locks.add(impl.lock)
        self._arrived = threading.Condition(impl.lock)
        impl.has_arrived = weakly(self._wake)  # whom nobody polls any more is not held here

    def _wake(self) -> None:
        if self._waiting:
            with self._arrived:
                self._arrived.notify_all()

    def shutdown(self, *, commit: bool | None = None) -> None:
        """Stop, store what was committed, leave the group. Does nothing unless running.

        With ``auto_commit`` that includes what the last ``poll`` returned, if it was this thread's;
        never the last message of an iteration.

        Args:
            commit: whether what the last ``poll`` returned counts as consumed; None: if this thread
                polled it. Leaving a ``with`` block by an exception says no.
        """
        started = self._begin_shutdown()
        if started is not None:
            closer = threading.current_thread()
            self._end_threaded(started, self._close(started.machine, commit=commit, closer=closer))

    def __exit__(self, kind: object = None, *_: object) -> None:
        with IN_PEACE:
            self.shutdown(commit=None if kind is None else False)

    # --- messages ---------------------------------------------------------------------------------

    def poll(self, timeout_ms: float | None = None) -> list[MessageExt]:
        """Return the next messages: at most ``pull_batch_size``, all of one queue.

        What the last call returned counts as consumed now, whichever thread made it:
        let only one thread poll.

        Args:
            timeout_ms: how long to wait for some; by default ``poll_timeout_ms``.

        Returns:
            The messages; none when none came in time, or the consumer was shut down meanwhile.

        Raises:
            ClientStateError: not running.
            ConfigurationError: a negative timeout.
        """
        impl = self._machine
        timeout = self._timeout_ms(timeout_ms)
        cache = impl.cache
        began_ms = self._clock.now_ms() if self.consume_hooks else None
        try:
            with impl.lock:
                self._poller = threading.current_thread()  # its number may be another's later
                cache.settle()
                messages = impl.take(self._batch)
                if not messages:
                    impl.commit_if_due()
                    if self._wait_for_some(impl, timeout):
                        messages = impl.take(self._batch)
                if cache.pull_ended or not messages:
                    self._look_around(impl)
            if began_ms is not None and messages:
                self._tell_hooks(messages, began_ms)
            return messages
        except BaseException:  # such as Ctrl-C: the next poll would count what nobody got
            impl.hand_back()
            raise

    def poll_arrow(
        self,
        max_rows: int = COLUMNS_ROWS,
        columns: Sequence[str] | None = None,
        timeout_ms: float | None = None,
    ) -> pa.RecordBatch:
        """Return the next messages, of any queues, as a record batch; needs ``pyarrow``.

        Its columns have the names and types of a read by Spark. Messages in order of each queue;
        what the last call returned counts as consumed now, as with ``poll``. Brokers are asked for
        1,024 messages a pull. ``poll`` and iteration do as well in between, at the price of a pull.

        Args:
            max_rows: the most rows. A poll takes what is there; where brokers have more, it waits
                20 ms at most for 1,000 rows to be there, since fewer cost as much.
            columns: names of columns, in the order wanted; None for all. Where ``error`` is among
                them a message that cannot be decoded is a row: ``error`` says why, ``body`` is the
                whole record.
            timeout_ms: how long to wait for some; by default ``poll_timeout_ms``.

        Returns:
            The batch; without rows when none came in time, or the consumer was shut down meanwhile.

        Raises:
            RemoteProtocolError: a message cannot be decoded, and ``error`` is not among the
                columns. It and what was pulled with it come again with the next poll.
            NotSupportedError: likewise; or pyarrow or numpy is missing.
            ConfigurationError: an unknown column, or a bad number.
            ClientStateError: not running.
        """
        return self._poll_arrow(max_rows, columns, self._timeout_ms(timeout_ms) / 1000)

    def arrow_batches(
        self, max_rows: int = COLUMNS_ROWS, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Iterate over record batches until the consumer is shut down; see ``poll_arrow``.

        A batch counts as consumed once the next one is asked for; the last never does.

        Raises:
            As ``poll_arrow``.
        """
        self._check_arrow(max_rows, columns)
        return self._arrow_batches(max_rows, columns)

    def _arrow_batches(
        self, max_rows: int, columns: Sequence[str] | None
    ) -> Iterator[pa.RecordBatch]:
        while self.state is not ServiceState.SHUTDOWN_ALREADY:
            batch = self._poll_arrow(max_rows, columns, TIMEOUT_MAX, iterated=True)
            if batch.num_rows:
                yield batch

    def _poll_arrow(
        self,
        max_rows: int,
        columns: Sequence[str] | None,
        timeout_s: float,
        *,
        iterated: bool = False,
    ) -> pa.RecordBatch:
        chosen = self._check_arrow(max_rows, columns)
        impl = self._machine
        polls, hooks = self._arrow_polls(impl), self.consume_hooks
        timeout_s = min(timeout_s, TIMEOUT_MAX)
        deadline = time.monotonic() + timeout_s
        if not self._arrow_lock.acquire(timeout=timeout_s):
            return polls.nothing(chosen)
        try:
            while True:
                began_ms, left = self._clock.now_ms(), max(0.0, deadline - time.monotonic())
                with impl.lock:
                    self._poller = None if iterated else threading.current_thread()
                    if rows := polls.gathers(max_rows):
                        self._wait_for_some(impl, min(left, GATHER_S) * 1000, rows)
                    found = polls.begin(max_rows, chosen, undecoded=not hooks)
                    self._look_around(impl)
                    if not found:
                        self._wait_for_some(impl, left * 1000)
                if found and (batch := self._read(polls, found, began_ms)).num_rows:
                    return batch
                if not impl.running or time.monotonic() >= deadline:
                    return polls.nothing(chosen)
        finally:
            self._arrow_lock.release()

    def _read(self, polls: ArrowPolls, found: Batches, began_ms: int) -> pa.RecordBatch:
        try:
            batch, messages = polls.read(found)
            self._tell_all(messages, began_ms)
            return batch
        except BaseException:
            polls.cut_short()
            raise

    def _look_around(self, impl: LitePullConsumerImpl) -> None:
        """Commit if it is time, and have pulled again what was held; the lock is held."""
        impl.cache.pull_ended = False
        impl.commit_if_due()
        impl.pull_freed_soon()

    def __iter__(self) -> Iterator[MessageExt]:
        """Iterate over the messages, one by one, until the consumer is shut down.

        Raises:
            ClientStateError: not started.
        """
        if self.state is ServiceState.SHUTDOWN_ALREADY:
            return
        engine, impl = self._running()
        cache, lock, hooks = impl.cache, impl.lock, self.consume_hooks
        while True:
            engine.check_process()
            try:
                with lock:
                    if self._poller is not None:
                        self._poller = None
                    if impl.in_columns:
                        impl.leave_columns()
                    message = cache.next_one()
                    if message is None:
                        self._look_around(impl)
                        if not self._wait_for_some(impl, None):
                            return
                        continue
                    if cache.pull_ended:
                        self._look_around(impl)
                if hooks:
                    self._tell_hooks([message])
            except BaseException:
                impl.hand_back()
                raise
            yield message

    def _wait_for_some(
        self, impl: LitePullConsumerImpl, timeout_ms: float | None, count: int = 1
    ) -> bool:
        """Wait for messages, or the end; the lock is held."""
        self._waiting += 1
        impl.awaited = count
        try:
            wait_until(self._arrived, lambda: impl.cache.has(count) or not impl.running, timeout_ms)
        finally:
            self._waiting -= 1
            impl.awaited = 1
        return impl.cache.has(1)

    # --- commits ----------------------------------------------------------------------------------

    def commit(
        self,
        offsets: Collection[MessageQueue] | dict[MessageQueue, int] | None = None,
        persist: bool = False,
    ) -> None:
        """Commit what was handed out, the last messages included; stored by the timer.

        Args:
            offsets: queues to commit where the caller is in them, or offsets by queue; None: all
                queues. Queues that are not ours now are passed over.
            persist: have the store keep them now, as ``commit_sync`` does.

        Raises:
            RocketMQError: with ``persist``: the store did not take all of them.
            ClientStateError: not running.
        """
        impl = self._machine
        mqs = self._noted(impl, offsets)
        if persist:
            self._wait(impl.store.persist_now(mqs))
        else:
            self._running()  # the shutdown by another thread may have stored what there was before
