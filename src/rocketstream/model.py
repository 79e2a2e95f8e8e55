"""The values users hold: messages, queues, results, and the enumerations they choose from.

Pure: plain values. A received message is ``protocol.message_ext.MessageExt``, a lazy view of the
stored record.
"""

from __future__ import annotations

import enum
import reprlib
import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from rocketstream import limits
from rocketstream.checks import accepted, fits
from rocketstream.errors import ConfigurationError

PROPERTY_KEYS = "KEYS"
PROPERTY_TAGS = "TAGS"
PROPERTY_DELAY = "DELAY"
PROPERTY_WAIT = "WAIT"
PROPERTY_UNIQ_KEY = "UNIQ_KEY"
PROPERTY_LITE_TOPIC = "__LITE_TOPIC"
PROPERTY_TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
PROPERTY_TIMER_DELAY_MS = "TIMER_DELAY_MS"
PROPERTY_TIMER_DELIVER_MS = "TIMER_DELIVER_MS"

RESERVED_PROPERTIES = frozenset(
    {
        "KEYS", "TAGS", "WAIT", "DELAY", "RETRY_TOPIC", "REAL_TOPIC", "REAL_QID", "TRAN_MSG",
        "PGROUP", "MIN_OFFSET", "MAX_OFFSET", "BUYER_ID", "ORIGIN_MESSAGE_ID", "TRANSFER_FLAG",
        "CORRECTION_FLAG", "MQ2_FLAG", "RECONSUME_TIME", "MSG_REGION", "UNIQ_KEY",
        "MAX_RECONSUME_TIMES", "CONSUME_START_TIME", "TRAN_PREPARED_QUEUE_OFFSET",
        "TRANSACTION_CHECK_TIMES", "CHECK_IMMUNITY_TIME_IN_SECONDS", "TRACE_ON", "INSTANCE_ID",
        "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL", "ARRIVE_TIME", "PUSH_REPLY_TIME", "CLUSTER",
        "MSG_TYPE", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET", "EXTEND_UNIQ_INFO",
        "__transactionId__", PROPERTY_TIMER_DELAY_SEC, PROPERTY_TIMER_DELAY_MS,
        PROPERTY_TIMER_DELIVER_MS, PROPERTY_LITE_TOPIC,
    }
)  # fmt: skip
"""Names user code may not set (C-98, C-629)."""

_BODY_BYTES_SHOWN_MAX = 32
_LITE_TOPIC_CHARACTERS = frozenset(string.ascii_letters + string.digits + "%|_-")
_PROPERTIES_SHOWN_MAX = 8

TIMER_PROPERTIES = frozenset(
    {PROPERTY_TIMER_DELAY_SEC, PROPERTY_TIMER_DELAY_MS, PROPERTY_TIMER_DELIVER_MS}
)


class MessageQueue(NamedTuple):
    """One queue of a topic on one broker; sorts as upstream does (C-161)."""

    topic: str
    broker_name: str
    queue_id: int


class MessageModel(enum.Enum):
    """How a group shares a topic: each message once per group, or once per member."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


class ConsumeFromWhere(enum.Enum):
    """Where a queue without a stored offset begins (C-189).

    The last three are deprecated and mean LAST_OFFSET.
    """

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"
    LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = (
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    )
    MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"


class ConsumeConcurrentlyStatus(enum.Enum):
    """The answer of a concurrent listener for its batch."""

    CONSUME_SUCCESS = "CONSUME_SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"


class ConsumeOrderlyStatus(enum.Enum):
    """The answer of an orderly listener for its batch (C-285)."""

    SUCCESS = "SUCCESS"
    SUSPEND_CURRENT_QUEUE_A_MOMENT = "SUSPEND_CURRENT_QUEUE_A_MOMENT"
    COMMIT = "COMMIT"
    """With auto_commit off: everything taken since the last commit is finished."""
    ROLLBACK = "ROLLBACK"
    """With auto_commit off: everything taken since the last commit comes again."""


class SendStatus(enum.Enum):
    """All four mean: stored on the master (C-473)."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


class LocalTransactionState(enum.Enum):
    """The outcome of the local transaction a message belongs to (C-484)."""

    COMMIT_MESSAGE = "COMMIT_MESSAGE"
    ROLLBACK_MESSAGE = "ROLLBACK_MESSAGE"
    UNKNOW = "UNKNOW"


class PullStatus(enum.Enum):
    """Outcome of a pull (C-218)."""

    FOUND = "FOUND"
    NO_NEW_MSG = "NO_NEW_MSG"
    NO_MATCHED_MSG = "NO_MATCHED_MSG"
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"


class Message:
    """A message to send.

    Its first send gives it an id, ``msg_id``, and it keeps that: sent again, the same object is
    stored a second time under the same id, as with the original. Make a new message for each thing
    you report.

    Args:
        topic: where it goes; 1 to 127 characters of ``[%|a-zA-Z0-9_-]``.
        body: payload, 1 byte to 4 MiB; ``str`` is encoded as UTF-8, all else is the caller's to
            encode.
        tags: the one tag consumers filter by.
        keys: words the message can be found by: several, or one str in which blanks part them.
        properties: user properties; reserved names are refused (C-98).
        delay_level: 0 for none, else the broker's delay level from 1: a number of its list, not
            seconds. A broker takes one beyond its longest, usually 18 for 2 h, for that.
        flag: 32-bit user flag, carried unchanged.
        delay_time_sec: deliver so many seconds after it is stored; a broker of 5.0 or later.
        delay_time_ms: the same in milliseconds.
        deliver_time_ms: deliver at this time, ms since 1970; a broker of 5.0 or later.
        lite_topic: which lite topic below ``topic`` it goes to; 1 to 64 characters of
            ``[%|a-zA-Z0-9_-]``. It exists as soon as something is sent to it; ``topic`` must be of
            the kind LITE, on brokers from 5.5 on. Neither delayed nor in a transaction nor a batch.
        wait_store_msg_ok: whether the answer waits until the message is flushed and replicated as
            the broker's settings say, not only stored (upstream's ``waitStoreMsgOK``, C-476).

    Raises:
        ConfigurationError: an argument of another type, a property that cannot be set, a blank in
            one of several keys, more than one of the ways to delay, a time or level that is not a
            whole number from 0 on, a flag of more than 32 bits, a name that no lite topic can have,
            or one together with a delay.
    """

    __slots__ = ("body", "flag", "properties", "topic")

    properties: dict[str, str]

    def __init__(
        self,
        topic: str,
        body: bytes | str,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        properties: Mapping[str, str] | None = None,
        delay_level: int = 0,
        flag: int = 0,
        delay_time_sec: int = 0,
        delay_time_ms: int = 0,
        deliver_time_ms: int = 0,
        lite_topic: str | None = None,
        wait_store_msg_ok: bool = True,
    ) -> None:
        # One comparison each where all is usual: every send makes a message.
        self.topic: str | Any = topic if type(topic) is str else _checked("topic", topic, str)
        if type(body) is not bytes:
            body = _encoded(body) if isinstance(body, str) else _body_bytes(body)
        self.body: bytes = body
        self.flag: Any = 0
        if flag:
            self.flag = _checked("flag", flag, int)
            if not -(2**31) <= flag < 2**31:  # it is four bytes of a record
                raise _wrong("flag", flag, "a whole number of 32 bits")
        self.properties = own = {
            PROPERTY_WAIT: "true"
            if wait_store_msg_ok is True or _checked("wait_store_msg_ok", wait_store_msg_ok, bool)
            else "false"
        }
        if tags is not None:
            if type(tags) is not str:
                _checked("tags", tags, str, "one str (only keys may be several)")
            if tags:
                own[PROPERTY_TAGS] = tags
        if keys is not None:
            words = keys if isinstance(keys, str) else _joined(keys)
            if words:
                own[PROPERTY_KEYS] = words
        if delay_level:
            level = _checked("delay_level", delay_level, int)
            if not 0 < level < 2**31:  # below, brokers deliver at once; above, Java cannot read it
                raise _wrong("delay_level", level, "a whole number from 0 on, a broker's level")
            own[PROPERTY_DELAY] = str(level)
        if delay_time_sec or delay_time_ms or deliver_time_ms:
            self._set_timer(delay_level, delay_time_sec, delay_time_ms, deliver_time_ms)
        if lite_topic is not None:
            self._set_lite_topic(lite_topic)
        if properties:
            if not isinstance(properties, Mapping):
                raise _wrong("properties", properties, "a dict of str to str")
            put = self.put_user_property
            for name, value in properties.items():
                put(name, value)

    def _set_timer(self, level: int, delay_sec: int, delay_ms: int, deliver_ms: int) -> None:
        ways = {
            "delay_time_sec": (PROPERTY_TIMER_DELAY_SEC, delay_sec),
            "delay_time_ms": (PROPERTY_TIMER_DELAY_MS, delay_ms),
            "deliver_time_ms": (PROPERTY_TIMER_DELIVER_MS, deliver_ms),
        }
        given = {argument: way for argument, way in ways.items() if way[1]}
        if len(given) + bool(level) > 1:
            raise ConfigurationError(
                "give one of delay_level, delay_time_sec, delay_time_ms and deliver_time_ms"
            )
        for argument, (name, value) in given.items():
            if type(value) is not int or value < 0:
                raise _wrong(argument, value, "a whole number from 0 on")
            self.properties[name] = str(value)

    def _set_lite_topic(self, name: str) -> None:
        check_lite_topic(name)
        if self.is_timed or self.delay_level:
            raise ConfigurationError("a message of a lite topic cannot be delayed", lite_topic=name)
        self.properties[PROPERTY_LITE_TOPIC] = name

    def put_user_property(self, name: str, value: str) -> None:
        """Set a user property.

        Raises:
            ConfigurationError: a reserved name, or an empty name or value (C-98).
        """
        if name in RESERVED_PROPERTIES:
            raise ConfigurationError(
                f"property {name} is RocketMQ's own; choose another name", property=name
            )
        # Not by all(...): a generator would take longer than everything else here.
        if not (
            isinstance(name, str) and isinstance(value, str) and name.strip() and value.strip()
        ):
            raise ConfigurationError(
                "name and value of a property must be str and not blank; "
                f"given is {name!r}: {value!r}",
                property=name,
                value=value,
            )
        self.properties[name] = value

    @property
    def tags(self) -> str | None:
        """The tag, or None."""
        return self.properties.get(PROPERTY_TAGS)

    @property
    def keys(self) -> str | None:
        """The keys as one string separated by spaces, or None."""
        return self.properties.get(PROPERTY_KEYS)

    @property
    def lite_topic(self) -> str | None:
        """The lite topic it goes to, or None."""
        return self.properties.get(PROPERTY_LITE_TOPIC)

    @property
    def delay_level(self) -> int:
        """Delay level, 0 for none.

        Raises:
            ConfigurationError: the properties hold another text than a level.
        """
        text = self.properties.get(PROPERTY_DELAY, "0")
        if not (text.isascii() and text.isdigit() and len(text) < 11):
            raise _wrong(f"property {PROPERTY_DELAY}", text, "a whole number from 0 on, in digits")
        return int(text)

    @property
    def wait_store_msg_ok(self) -> bool:
        """Whether the broker answers only when it is flushed and replicated as configured."""
        return self.properties.get(PROPERTY_WAIT) != "false"

    @property
    def is_timed(self) -> bool:
        """Whether it has a delivery time; only brokers from 5.0 on support that."""
        return not TIMER_PROPERTIES.isdisjoint(self.properties)

    @property
    def transaction_id(self) -> str | None:
        """The id of its transaction: the same as ``msg_id`` (C-484)."""
        return self.properties.get(PROPERTY_UNIQ_KEY)

    @property
    def msg_id(self) -> str | None:
        """The client message id (UNIQ_KEY), set when the message is sent."""
        return self.properties.get(PROPERTY_UNIQ_KEY)

    def __repr__(self) -> str:
        own = {name: reprlib.repr(value) for name, value in list(self.properties.items())}
        tags, keys = own.pop(PROPERTY_TAGS, None), own.pop(PROPERTY_KEYS, None)
        named = "" if tags is None else f", tags={tags}"
        named += "" if keys is None else f", keys={keys}"
        rest = ", ".join(f"{name!r}: {own[name]}" for name in list(own)[:_PROPERTIES_SHOWN_MAX])
        more = ", ..." if len(own) > _PROPERTIES_SHOWN_MAX else ""
        return (
            f"Message(topic={self.topic!r}, body={shown_body(self.body)}{named}, "
            f"properties={{{rest}{more}}})"
        )


def shown_body(body: object) -> str:
    """Return a body as ``repr`` shows it: its first bytes, and how many there are."""
    if not isinstance(body, bytes | bytearray | memoryview):
        return reprlib.repr(body)
    first = bytes(body[:_BODY_BYTES_SHOWN_MAX])
    return repr(first) if len(first) == len(body) else f"{first!r}... {len(body)} bytes"


def check_lite_topic(name: object) -> None:
    """Check the name of a lite topic.

    Raises:
        ConfigurationError: not a str of 1 to 64 characters of ``[%|a-zA-Z0-9_-]``.
    """
    most = limits.LITE_TOPIC_CHARS_MAX
    if (
        not isinstance(name, str)
        or not 0 < len(name) <= most
        or not _LITE_TOPIC_CHARACTERS.issuperset(name)
    ):
        raise _wrong("lite_topic", name, f"a str of 1 to {most} characters of [%|a-zA-Z0-9_-]")


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:  # half a surrogate pair, as of undecodable arguments
        raise _wrong("body", text, f"text that UTF-8 can write ({error})") from None


def _body_bytes(given: object) -> bytes:
    if isinstance(given, memoryview):  # measured in bytes, whatever its elements are
        return given.cast("B") if given.c_contiguous else given.tobytes()  # type: ignore[return-value]
    if isinstance(given, bytes | bytearray):
        return given  # type: ignore[return-value]  # copied when it is sent
    raise _wrong("body", given, "bytes, or a str, sent as UTF-8; encode it, as json.dumps does")


def _joined(keys: Iterable[str]) -> str:
    try:
        several = list(keys)
        words = " ".join(several)
    except TypeError as error:
        raise _wrong("keys", keys, "a str, or several of them: a list, a tuple") from error
    if words.count(" ") >= len(several) > 0:
        odd = next(each for each in several if " " in each)
        raise ConfigurationError(
            f"keys are joined by blanks, so {odd!r} would be {odd.count(' ') + 1} keys; give keys "
            "without blanks, or one str, which is stored as it is",
            argument="keys",
        )
    return words


def _checked(name: str, given: Any, hint: type, words: str = "") -> Any:
    if fits(given, hint):
        return given
    raise _wrong(name, given, words or accepted(hint))


def _wrong(name: str, given: object, accepted: str) -> ConfigurationError:
    shown = reprlib.repr(given)
    return ConfigurationError(f"{name} must be {accepted}; given is {shown}", argument=name)


@dataclass(frozen=True, slots=True)
class MessageSelector:
    """Which messages of a topic a consumer wants: by tag, or by a condition on properties.

    ``consumer.subscribe(topic, MessageSelector.by_sql("price > 5 AND kind IS NOT NULL"))``

    Attributes:
        expression: the text; None or ``*`` for all.
        expression_type: TAG or SQL92.
    """

    expression: str | None
    expression_type: str

    @classmethod
    def by_tag(cls, expression: str | None) -> MessageSelector:
        """Select by tags joined by ``||``; the same as the plain text (C-101)."""
        return cls(expression, "TAG")

    @classmethod
    def by_sql(cls, expression: str) -> MessageSelector:
        """Select by a condition on message properties; it is checked when subscribing."""
        return cls(expression, "SQL92")

    @classmethod
    def of(
        cls, expression: str | MessageSelector | None, expression_type: str = "TAG"
    ) -> MessageSelector:
        """Return the selector that ``subscribe`` was given in any of its forms."""
        if isinstance(expression, MessageSelector):
            return expression
        return cls(expression, expression_type)


# Not frozen, which would be a twentieth of a whole send.
@dataclass(slots=True, repr=False, unsafe_hash=True)
class SendResult:
    """A message the broker has stored.

    Attributes:
        send_status: SEND_OK, or stored with a remark on flush or replication.
        msg_id: the client's id (UNIQ_KEY); for a batch a comma-joined list.
        offset_msg_id: the broker's id (store address and commit log offset); same for a batch.
        message_queue: where it is stored.
        queue_offset: its offset in the queue; the first one's for a batch.
        transaction_id: what the broker named the transaction; brokers do not, up to 5.x.
        recall_handle: with it a timed message can be recalled; from brokers of 5.3 on.
    """

    send_status: SendStatus
    msg_id: str
    offset_msg_id: str
    message_queue: MessageQueue
    queue_offset: int
    region_id: str = "DefaultRegion"
    trace_on: bool = True
    transaction_id: str | None = None
    recall_handle: str | None = None

    def __repr__(self) -> str:
        """One line; not the recall handle, which lets its holder take the message back."""
        queue = self.message_queue
        return (
            f"{type(self).__name__}({self._shown_state()}, {queue.topic}@{queue.broker_name}:"
            f"{queue.queue_id}, queue_offset={self.queue_offset}, msg_id={self.msg_id!r}, "
            f"offset_msg_id={self.offset_msg_id!r})"
        )

    def _shown_state(self) -> str:
        return self.send_status.value


@dataclass(slots=True, kw_only=True, repr=False, unsafe_hash=True)
class TransactionSendResult(SendResult):
    """A half message the broker has stored, and how its local transaction ended.

    ``queue_offset`` is the one in the half topic; ``offset_msg_id`` names the half message (C-412).
    """

    local_transaction_state: LocalTransactionState = LocalTransactionState.UNKNOW

    def _shown_state(self) -> str:
        return f"{self.send_status.value}, {self.local_transaction_state.value}"
