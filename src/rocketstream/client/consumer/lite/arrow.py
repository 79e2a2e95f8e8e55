"""Polls for record batches: what is lent of the cache, decoded outside its lock, then handed out.

Law: what is lent counts as handed out with its last batch, not before; where it cannot be decoded,
or the poll is cut short, it is pulled again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rocketstream import limits
from rocketstream.client.consumer.lite.batches import Batches, Doubtful, nothing
from rocketstream.client.consumer.lite.impl import LitePullConsumerImpl
from rocketstream.columns.table import Column
from rocketstream.protocol.message_ext import MessageExt

if TYPE_CHECKING:
    import pyarrow as pa


class ArrowPolls:
    """The polls of one consumer for record batches, one after the other.

    Args:
        impl: the consumer's machine.
        pull_rows: how many messages a broker is asked for at a time.
        check_crc: whether bodies are compared with their CRCs.
    """

    def __init__(self, impl: LitePullConsumerImpl, pull_rows: int, *, check_crc: bool) -> None:
        self._impl = impl
        self._pull_rows = pull_rows
        self._check_crc = check_crc
        self._batches: Batches | None = None
        """The part that this poll handed out."""
        self._failed: bool = False
        """Whether the last batch could not be decoded: pulls are tried one by one then."""

    def gathers(self, max_rows: int) -> int:
        """Return how many rows are worth waiting for a moment; 0 where all there is has come.

        Fewer than brokers are asked for in one pull take as long to be made into columns; Apache's
        brokers give 32 of them at a time.
        """
        impl = self._impl
        if self._batches is not None or self._failed or not impl.undecoded:
            return 0
        with impl.lock:
            rows = min(max_rows, self._pull_rows)
            return 0 if impl.cache.has(rows) or not impl.cache.is_behind() else rows

    def begin(self, max_rows: int, columns: Sequence[Column], *, undecoded: bool) -> Batches | None:
        """Settle what the caller got last, and take what is there; the machine's lock is held.

        Args:
            max_rows: the most messages.
            columns: the columns wanted.
            undecoded: whether answers are to be kept as they are; hooks want messages.

        Returns:
            The batches to ``read``; None where nothing is there.
        """
        self._impl.in_columns = True
        self._impl.undecoded = undecoded
        rest = self._batches
        if rest is not None:
            if rest.counts and rest.columns == columns:
                return rest
            self._put_back(rest)
        cache = self._impl.cache
        cache.settle()
        lent = cache.lend(max_rows, 1 if self._failed else limits.COLUMNS_BYTES_MAX)
        if lent:
            self._batches = Batches(lent, columns, self._check_crc)
        return self._batches

    def read(self, batches: Batches) -> tuple[pa.RecordBatch, list[list[MessageExt]]]:
        """Return the next batch, maybe without rows, and the messages it ends, of each queue.

        On any thread: one that begins late, of a poll that was cut short, reads nothing of the
        poll that followed.

        Raises:
            RemoteProtocolError: a record cannot be decoded, and ``error`` is not wanted.
            NotSupportedError: likewise, of a codec that is not installed.
        """
        batch, columns = None, batches.columns
        self._failed = True
        try:
            batch = batches.read()
            self._failed = False
        except Doubtful as doubtful:
            with self._impl.lock:
                self._impl.cache.look_into(doubtful.queue, batches.lent)
                self._put_back(batches)
            return nothing(columns), []
        except BaseException:
            with self._impl.lock:
                self._put_back(batches)
            raise
        messages: list[list[MessageExt]] = []
        if batches.is_done:
            with self._impl.lock:
                self._forget(batches)
                self._impl.cache.hand_out(batches.lent)
            messages = [part.found for part in batches.lent if isinstance(part.found, list)]
        return nothing(columns) if batch is None else batch, messages

    @staticmethod
    def nothing(columns: Sequence[Column]) -> pa.RecordBatch:
        """Return a batch without rows."""
        return nothing(columns)

    def cut_short(self) -> None:
        """The caller gets nothing: what was taken is pulled again."""
        with self._impl.lock:
            if self._batches is not None:
                self._put_back(self._batches)
            self._impl.hand_back()  # nobody has heard of them

    def _forget(self, batches: Batches) -> None:
        if self._batches is batches:  # and not those of a poll that followed one cut short
            self._batches = None

    def _put_back(self, batches: Batches) -> None:
        self._forget(batches)
        for queue in self._impl.cache.take_back(batches.lent):
            self._impl.pulls.pull_soon(queue, queue.epoch)
