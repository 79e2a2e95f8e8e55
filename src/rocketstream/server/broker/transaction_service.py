"""Transactional messages: half messages, their ends, and checks at producers (C-412 to C-420).

``core.transactions`` knows which messages are undecided and decides when to ask a producer.

Law: the log alone holds this state: what becomes of a half message is stored with the op message
that says so, in one write, so a restart finds the same state.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Iterator

from rocketstream.errors import LocalProtocolError, ProtocolError, StoreError, TransportError
from rocketstream.protocol import names
from rocketstream.protocol.codes import MessageSysFlag, RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import CheckTransactionStateRequestHeader
from rocketstream.protocol.message_id import encode_offset_msg_id
from rocketstream.protocol.properties import (
    PROPERTY_DELAY,
    PROPERTY_PGROUP,
    PROPERTY_REAL_QID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_TRAN_PREPARED_QUEUE_OFFSET,
    PROPERTY_TRANSACTION_CHECK_TIMES,
    PROPERTY_UNIQ_KEY,
    PROPERTY_WAIT,
)
from rocketstream.protocol.record import record_of, unpack_host
from rocketstream.server.broker.controller import BrokerController
from rocketstream.server.broker.core.acl.accounts import PUB
from rocketstream.server.broker.core.acl.rights import to_topic
from rocketstream.server.broker.core.members import Member
from rocketstream.server.broker.core.transactions import (
    BACKLOG_MAX,
    OP_TAG,
    HalfFacts,
    HalfQueue,
    Verdict,
    judge,
    op_body,
    origin_of,
    read_op_body,
)
from rocketstream.server.broker.messages import (
    InnerMessage,
    MessageWriter,
    StoredMessage,
    copy_of,
    draft_of,
    read_own,
    read_stored,
)
from rocketstream.server.store import Place
from rocketstream.transport.connection import Connection

logger: logging.Logger = logging.getLogger("rocketstream.server")

TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
HALF_QUEUE_ID = 0
READ_BATCH = 256
PROPERTY_PUT_BACK = "PUT_BACK_TO"
"""Marks an op message of ours that only says where the message stands now; upstream ignores it."""
CHECKS_AT_ONCE = 64
"""Messages examined before other requests get their turn."""
GIVEN_UP_KEPT_MAX = 10_000
"""Messages given up before a restart whose late ends count; reading them must not take long."""
_Identity = tuple[str | None, int, int]


class TransactionService:
    """Manages the half queue of one broker; belongs to its loop."""

    def __init__(self, controller: BrokerController, writer: MessageWriter) -> None:
        self._controller = controller
        self._store = controller.store
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._is_checking = False
        self._closed = False
        self._undecided: dict[_Identity, int] = {}
        """Where messages that were undecided at the start stood; some had been put back."""
        self._queue = self._load()
        self._given_up = self._load_given_up()

    @property
    def undecided(self) -> int:
        """How many half messages wait for their end."""
        return len(self._queue.pending())

    # --- starting and stopping -------------------------------------------------------------------

    def start(self) -> None:
        """Start to check at every interval."""
        if not self._closed:
            interval_s = self._controller.config.transaction_check_interval_ms / 1000
            self._timer = self._loop.call_later(interval_s, self._tick)

    def close(self) -> None:
        """End the checks."""
        self._closed = True
        if self._timer:
            self._timer.cancel()
        self._commit_offsets()

    def _tick(self) -> None:
        self._controller.spawn(self._check_and_wait())

    async def _check_and_wait(self) -> None:
        try:
            await self.check()
        finally:
            self.start()

    def _load(self) -> HalfQueue:
        """Read the messages that may be undecided, and their ends, from the two queues."""
        begin = self._offset(names.TRANS_HALF_TOPIC)
        queue = HalfQueue(begin, self._offset(names.TRANS_OP_HALF_TOPIC))
        places: dict[_Identity, int] = {}
        now_ms = self._controller.monotonic_ms()
        # Measured as for retention, so that a message is given up before its file is removed. By
        # timestamps alone, a message stored before the wall clock leapt would seem to have waited
        # for the whole leap.
        stamp_now_ms = self._store.retention_now_ms()
        for offset, stored in self._messages(names.TRANS_HALF_TOPIC, begin):
            if stored is None:
                queue.missing(offset)
                continue
            origin = origin_of(stored.properties)
            what = _identity(stored)
            if origin is None and PROPERTY_TRANSACTION_CHECK_TIMES in stored.properties:
                # Put back for a check: the earlier place no longer counts, though a killed broker
                # may not have recorded that.
                origin = places.get(what)
            places[what] = offset
            waited_ms = max(stamp_now_ms - stored.head.store_timestamp, 0)
            queue.stored(offset, origin, now_ms - waited_ms)
        for _, op in self._messages(names.TRANS_OP_HALF_TOPIC, queue.op_begin):
            is_end = op is not None and op.properties.get(PROPERTY_TAGS) == OP_TAG
            offsets = read_op_body(op.body) if op is not None and is_end else ()
            if op is not None and PROPERTY_PUT_BACK in op.properties:
                queue.left(offsets)
            else:
                queue.ended(offsets)
        self._undecided = {what: at for what, at in places.items() if queue.is_pending(at)}
        return queue

    def _load_given_up(self) -> set[_Identity]:
        """Read which messages were given up of late: an end that comes after all is carried out."""
        topic = names.TRANS_CHECK_MAX_TIME_TOPIC
        high = self._store.max_offset(topic, HALF_QUEUE_ID)
        begin = max(self._store.min_offset(topic, HALF_QUEUE_ID), high - GIVEN_UP_KEPT_MAX)
        found = self._messages(topic, begin)
        return {_identity(stored) for _, stored in found if stored is not None}

    def _offset(self, topic: str) -> int:
        stored = self._controller.offsets.query(TRANSACTION_GROUP, topic, HALF_QUEUE_ID)
        low = self._store.min_offset(topic, HALF_QUEUE_ID)
        high = self._store.max_offset(topic, HALF_QUEUE_ID)
        return low if stored is None else min(max(stored, low), high)

    def _messages(self, topic: str, offset: int) -> Iterator[tuple[int, StoredMessage | None]]:
        while True:
            self._store.mend(topic, HALF_QUEUE_ID, offset, offset + READ_BATCH)
            entries = self._store.consume_queue_entries(topic, HALF_QUEUE_ID, offset, READ_BATCH)
            if not entries:
                return
            for physical, _, _ in entries:
                yield offset, self.read(physical)
                offset += 1

    def read(self, physical_offset: int) -> StoredMessage | None:
        """Return the message at a log offset; None when there is none."""
        record = self._store.read(physical_offset) if physical_offset >= 0 else None
        if record is None:
            return None
        try:
            stored = read_stored(record)
        except ProtocolError:
            return None
        return stored if stored.head.physical_offset == physical_offset else None

    # --- half messages and their ends ------------------------------------------------------------

    def put_half(self, message: InnerMessage) -> Place:
        """Store a message where no consumer sees it, until its transaction ends (C-412).

        Raises:
            StoreError: the message was not stored.
            LocalProtocolError: its properties do not fit a record.
        """
        properties = message.properties
        # The broker's own: a restart would believe that this is another message, put back.
        properties.pop(PROPERTY_TRAN_PREPARED_QUEUE_OFFSET, None)
        properties.pop(PROPERTY_TRANSACTION_CHECK_TIMES, None)
        properties[PROPERTY_REAL_TOPIC] = message.topic
        properties[PROPERTY_REAL_QID] = str(message.queue_id)
        # C-420: a delay would be counted from the half message, not from the commit.
        properties.pop(PROPERTY_DELAY, None)
        message.sys_flag &= ~MessageSysFlag.TRANSACTION_MASK
        message.topic, message.queue_id = names.TRANS_HALF_TOPIC, HALF_QUEUE_ID
        self._controller.ensure_topic(names.TRANS_HALF_TOPIC, 1)
        place = self._writer.put(message)
        self._queue.stored(place[1], since_ms=self._controller.monotonic_ms())
        return place

    def has_ended(self, half: StoredMessage) -> bool:
        """Whether a transaction is known to have ended; a further end changes nothing."""
        queue = self._queue
        offset = queue.current(half.head.queue_offset)
        if queue.is_ended(offset):
            return True
        what = _identity(half)
        if not queue.is_before_restart(offset) or what in self._given_up:
            return False
        copy = self._undecided.get(what)
        return copy is None or queue.is_ended(queue.current(copy))

    def commit(self, half: StoredMessage) -> Place:
        """Deliver a half message to its topic (C-415).

        Raises:
            StoreError: the message was not stored, and the transaction has not ended.
            ValueError: it does not name its topic and queue.
        """
        topic = half.properties.get(PROPERTY_REAL_TOPIC, "")
        queue_id = int(half.properties.get(PROPERTY_REAL_QID, ""))
        if not topic or queue_id < 0 or names.is_not_allowed_send_topic(topic):
            raise ValueError(f"topic {topic!r}, queue {queue_id}")
        message = copy_of(half, topic, self._controller.topics.queue_of(topic, queue_id))
        message.sys_flag &= ~MessageSysFlag.TRANSACTION_MASK
        message.sys_flag |= MessageSysFlag.TRANSACTION_COMMIT
        message.prepared_transaction_offset = half.head.physical_offset
        current = self._queue.current(half.head.queue_offset)
        place = self._writer.put_both(message, self._op(current))
        self._queue.ended((current,))
        return place

    def end(self, half_offset: int) -> None:
        """Record that a half message is decided (C-416, C-417)."""
        current = self._queue.current(half_offset)
        self._writer.put(self._op(current))
        self._queue.ended((current,))

    def resume(self, given_up: StoredMessage) -> Place:
        """Make a given-up message a half message again, with a check count of zero.

        Raises:
            StoreError: the message was not stored.
            LocalProtocolError: its properties do not fit a record.
        """
        message = copy_of(given_up, names.TRANS_HALF_TOPIC, HALF_QUEUE_ID)
        message.properties[PROPERTY_TRANSACTION_CHECK_TIMES] = "0"
        place = self._writer.put(message, delayed=False)
        self._queue.stored(place[1], since_ms=self._controller.monotonic_ms())
        return place

    def _op(self, half_offset: int, copy_offset: int | None = None) -> InnerMessage:
        """Return an op message; with ``copy_offset`` it says only where the message stands now."""
        controller = self._controller
        controller.ensure_topic(names.TRANS_OP_HALF_TOPIC, 1)
        properties = {PROPERTY_TAGS: OP_TAG, PROPERTY_WAIT: "true"}
        if copy_offset is not None:
            properties[PROPERTY_PUT_BACK] = str(copy_offset)
        return InnerMessage(
            topic=names.TRANS_OP_HALF_TOPIC,
            queue_id=HALF_QUEUE_ID,
            body=op_body(half_offset),
            properties=properties,
            flag=0,
            sys_flag=0,
            born_timestamp=controller.now_ms(),
            born_host=controller.store_host_bytes,
            store_host=controller.store_host_bytes,
        )

    # --- checking --------------------------------------------------------------------------------

    async def check(self) -> None:
        """Examine every undecided message once; a second call while one runs does nothing."""
        if self._is_checking:
            return
        self._is_checking = True
        try:
            await self._check_round()
        except StoreError as error:
            logger.warning("the check of transactions ends, the store takes no messages: %s", error)
        finally:
            self._is_checking = False
            self._commit_offsets()

    async def _check_round(self) -> None:
        # Messages stored during the round, such as those put back, are left to the next round.
        for number, offset in enumerate(self._queue.pending(), 1):
            if self._closed:
                return
            if self._queue.is_pending(offset):
                try:
                    self._check_one(offset)
                except LocalProtocolError as error:
                    # A failure with one message must not keep the others from being checked.
                    logger.error("half message %d cannot be put back: %s", offset, error)
            if number % CHECKS_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _check_one(self, offset: int) -> None:
        if offset >= self._store.max_offset(names.TRANS_HALF_TOPIC, HALF_QUEUE_ID):
            return  # not on the disk yet, and readable only then: it is left to the next round
        try:
            half = read_own(self._store, names.TRANS_HALF_TOPIC, HALF_QUEUE_ID, offset)
        except ProtocolError:
            half = None
        if half is None:
            logger.warning("half message %d is gone, its transaction cannot end", offset)
            self._queue.missing(offset)
            return
        facts = HalfFacts.of(half.properties, self._queue.since_ms(offset))
        verdict = judge(facts, self._controller.monotonic_ms(), self._controller.config.check_rules)
        if verdict is Verdict.DISCARD:
            self._discard(offset, half)
        elif verdict is Verdict.CHECK:
            self._ask(offset, half, facts.check_times + 1)
        elif self._queue.backlog > BACKLOG_MAX:
            self._put_back(offset, half, is_told=False)

    def _discard(self, offset: int, half: StoredMessage) -> None:
        """Move a message that stays undecided to where an operator finds it."""
        topic = names.TRANS_CHECK_MAX_TIME_TOPIC
        self._controller.ensure_topic(topic, 1)
        logger.error(
            "condition=TRANSACTION_GIVEN_UP group=%s topic=%s id=%s: moved to %s",
            half.properties.get(PROPERTY_PGROUP), half.properties.get(PROPERTY_REAL_TOPIC),
            half.properties.get(PROPERTY_UNIQ_KEY), topic,
        )  # fmt: skip
        self._writer.put_both(copy_of(half, topic, 0), self._op(offset), delayed=False)
        self._queue.discarded(offset)

    def _put_back(self, offset: int, half: StoredMessage, *, is_told: bool) -> Place:
        """Store a message again at the end of the half queue: its old place can be passed then."""
        message = copy_of(half, names.TRANS_HALF_TOPIC, HALF_QUEUE_ID)
        copy_offset = self._store.next_offset(names.TRANS_HALF_TOPIC, HALF_QUEUE_ID)
        op = self._op(offset, copy_offset)
        place = self._writer.put_both(message, op, delayed=False)
        self._queue.put_back(offset, copy_offset, is_told=is_told)
        return place

    def _ask(self, offset: int, half: StoredMessage, times: int) -> None:
        group = half.properties.get(PROPERTY_PGROUP, "")
        topic = half.properties.get(PROPERTY_REAL_TOPIC, "")
        # Each question about one message goes to another member. By one counter for all, which
        # upstream has, those about one of them could all come to the one that does not answer.
        channel = self._controller.producers.channel_for(
            _first_question(half) + times, group, lambda member: self._may_decide(member, topic)
        )
        if not isinstance(channel, Connection):
            # Unlike upstream, a check that no producer could receive does not count.
            logger.info("no producer of group %s to ask about half message %d", group, offset)
            if self._queue.backlog > BACKLOG_MAX:
                self._put_back(offset, half, is_told=False)
            return
        half.properties[PROPERTY_TRANSACTION_CHECK_TIMES] = str(times)
        try:
            place = self._put_back(offset, half, is_told=True)
            channel.oneway(self._check_request(half, place))
        except TransportError as error:
            logger.info("cannot ask %s about a transaction: %s", channel.peer, error)
        except LocalProtocolError as error:
            # The count does not fit beside the user's properties: only the message's age can end
            # it.
            logger.error("cannot ask about half message %d: %s", offset, error)

    def _may_decide(self, member: Member, topic: str) -> bool:
        """Whether a producer can be asked, and may have the message: its group is only a claim."""
        channel, access = member.channel, self._controller.access
        if not isinstance(channel, Connection) or channel.is_closed:
            return False
        return access is None or access.may(channel, member.access_key, to_topic(topic, PUB))

    def _check_request(self, half: StoredMessage, place: Place) -> RemotingCommand:
        """Code 39: the message as the producer sent it, with the offset of its copy (C-419)."""
        head, properties = half.head, half.properties
        unique = properties.get(PROPERTY_UNIQ_KEY)
        message = copy_of(half, properties.get(PROPERTY_REAL_TOPIC, ""), 0)
        message.properties[PROPERTY_WAIT] = "false"
        queue_id = _queue_id(properties.get(PROPERTY_REAL_QID, "0"))
        physical, offset = place
        draft = draft_of(message, message.topic, queue_id)
        record = record_of(draft, offset, physical, head.store_timestamp)
        host, port = unpack_host(head.store_host_bytes)
        header = CheckTransactionStateRequestHeader(
            tran_state_table_offset=offset,
            commit_log_offset=physical,
            msg_id=unique,
            transaction_id=unique,
            offset_msg_id=encode_offset_msg_id(host, port, physical),
        )
        return RemotingCommand.request(
            RequestCode.CHECK_TRANSACTION_STATE, header, record, oneway=True
        )

    def _commit_offsets(self) -> None:
        begin, op_begin = self._queue.advance()
        offsets = self._controller.offsets
        for topic, offset in (
            (names.TRANS_HALF_TOPIC, begin),
            (names.TRANS_OP_HALF_TOPIC, op_begin),
        ):
            before = offsets.query(TRANSACTION_GROUP, topic, HALF_QUEUE_ID)
            if offset and offset != before:
                offsets.commit(TRANSACTION_GROUP, topic, HALF_QUEUE_ID, offset)


def _identity(half: StoredMessage) -> _Identity:
    """Return the fields a message and its copies have in common."""
    head = half.head
    return half.properties.get(PROPERTY_UNIQ_KEY), head.born_timestamp, head.body_crc


def _first_question(half: StoredMessage) -> int:
    """Return a number by which the first question about a message finds its member.

    A copy of the message has the same, and messages are spread over the members.
    """
    return zlib.crc32(half.properties.get(PROPERTY_UNIQ_KEY, "").encode("utf-8", "replace"))


def _queue_id(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return 0
