"""Every error this package raises: one tree, each saying whose fault it is and if a retry can help.

Law: errors cross process boundaries (Spark ships them between Python workers), so each one pickles
with its parameters and attributes.
"""

from __future__ import annotations

import enum
import re
from typing import Any, ClassVar, Self

from rocketstream import limits

__all__ = [
    "AccessDeniedError",
    "BrokerError",
    "ClientStateError",
    "ConfigurationError",
    "ConnectError",
    "ConnectionLostError",
    "ConsumerNotOnlineError",
    "DamagedMessageError",
    "DataLossError",
    "DiskFullError",
    "FlushFailedError",
    "ForkedClientError",
    "FrameTooLargeError",
    "InternalError",
    "LiteSubscriptionQuotaError",
    "LiteTopicQuotaError",
    "LiteTopicSetupError",
    "LocalProtocolError",
    "MalformedFrameError",
    "MessageInvalidError",
    "NoPermissionError",
    "NotSupportedError",
    "OffsetNotFoundError",
    "PortInUseError",
    "ProtocolError",
    "RecordTooLargeError",
    "RemoteProtocolError",
    "ReplyTimeoutError",
    "RequestNotSupportedError",
    "RequestTimeoutError",
    "RocketMQError",
    "RouteNotFoundError",
    "SendConnectError",
    "SendError",
    "SendManyError",
    "SendOutcome",
    "SendRouteError",
    "ServerError",
    "SparkQueryError",
    "StoreDamagedError",
    "StoreError",
    "StoreLockedError",
    "SubscriptionError",
    "SystemBusyError",
    "TooManyRequestsError",
    "TopicNotExistError",
    "TransportError",
    "broker_error",
]


def _rebuild(cls: type[RocketMQError], message: str, state: dict[str, Any]) -> RocketMQError:
    error = cls.__new__(cls)
    Exception.__init__(error, message)
    error.__dict__.update(state)
    return error


def _cut(text: str, chars_max: int) -> str:
    """Return a text with its middle left out where it is too long; both ends say something."""
    if len(text) <= chars_max:
        return text
    half = chars_max // 2
    return f"{text[:half]} … ({len(text) - 2 * half} characters left out) … {text[-half:]}"


class RocketMQError(Exception):
    """Base of every error of this package.

    Attributes:
        condition: stable name of the error kind; tests and programs match on this, not on the text.
        retriable: whether the same call may succeed later without anything being changed.
        parameters: what the message was built from (names and values as given by the raiser).
    """

    condition: ClassVar[str] = "ROCKETMQ_ERROR"
    retriable: bool = False

    def __init__(self, message: str, **parameters: Any) -> None:
        super().__init__(_cut(message, limits.ERROR_TEXT_CHARS_MAX))
        self.parameters: dict[str, Any] = parameters

    @property
    def message(self) -> str:
        """The text of the error, one line, without the class name."""
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, dict(self.__dict__))


class ConfigurationError(RocketMQError, ValueError):
    """The caller gave a value that is not accepted; the text names it and what is accepted."""

    condition = "CONFIGURATION"


class SubscriptionError(ConfigurationError):
    """A subscription expression that cannot be used (C-99 to C-101)."""

    condition = "SUBSCRIPTION"


class NotSupportedError(RocketMQError):
    """This version cannot do it; the text names a substitute."""

    condition = "NOT_SUPPORTED"


class InternalError(RocketMQError):
    """A mistake of this package, never of the caller or a peer."""

    condition = "INTERNAL"


class SimulationError(RocketMQError):
    """A simulation of ``rocketstream.testing.sim`` cannot go on; the text says why."""

    condition = "SIMULATION"


# --- client life cycle ------------------------------------------------------------------------


class ClientStateError(RocketMQError):
    """The client is not in a state that allows the call (not started, started twice, shut down)."""

    condition = "CLIENT_STATE"


class ForkedClientError(ClientStateError):
    """The client was created in another process; create a new one after fork()."""

    condition = "CLIENT_FORKED"


class RouteNotFoundError(RocketMQError):
    """No route: the topic is unknown to the name server, or no broker of it can take the call."""

    condition = "ROUTE_NOT_FOUND"
    retriable = True


# --- protocol ---------------------------------------------------------------------------------


class ProtocolError(RocketMQError):
    """Bytes or values that do not obey the remoting protocol."""

    condition = "PROTOCOL"


class LocalProtocolError(ProtocolError):
    """This side tried to send something the protocol cannot carry."""

    condition = "PROTOCOL_LOCAL"


class RemoteProtocolError(ProtocolError):
    """The peer sent something that is not valid; the connection is closed, as upstream does."""

    condition = "PROTOCOL_REMOTE"


class DamagedMessageError(RemoteProtocolError):
    """A message whose body does not match its CRC; it is neither handed out nor passed over."""

    condition = "DAMAGED_MESSAGE"


class MalformedFrameError(RemoteProtocolError):
    """A frame whose lengths, header or serialize type are impossible."""

    condition = "MALFORMED_FRAME"


class FrameTooLargeError(RemoteProtocolError):
    """A frame longer than the accepted maximum (limits.FRAME_BYTES_MAX)."""

    condition = "FRAME_TOO_LARGE"


# --- transport --------------------------------------------------------------------------------


class TransportError(RocketMQError):
    """The network failed, not the peer's answer."""

    condition = "TRANSPORT"
    retriable = True


class ConnectError(TransportError):
    """No connection could be made: nothing was sent. The text lists every address tried."""

    condition = "CONNECT"


class ConnectionLostError(TransportError):
    """The connection ended while a request was on its way: whether it was executed is unknown."""

    condition = "CONNECTION_LOST"


class RequestTimeoutError(TransportError, TimeoutError):
    """No answer within the deadline: whether the request was executed is unknown."""

    condition = "REQUEST_TIMEOUT"


class TooManyRequestsError(TransportError):
    """A local bound on requests in flight was reached: nothing was sent."""

    condition = "TOO_MANY_REQUESTS"


# --- answers of a broker or name server -------------------------------------------------------


class BrokerError(RocketMQError):
    """A broker or name server answered with an error code.

    Attributes:
        code: response code as received (protocol.codes.ResponseCode lists the known ones).
        remark: the peer's text, possibly empty.
        address: ``host:port`` of the peer, possibly empty.
    """

    condition = "BROKER"

    def __init__(self, code: int, remark: str | None, address: str = "") -> None:
        text = _cut(remark, limits.REMARK_CHARS_MAX) if remark else "no remark"
        where = f" from {address}" if address else ""
        super().__init__(
            f"CODE: {code}{where}: {text}", code=code, remark=text if remark else remark,
            address=address,
        )  # fmt: skip
        self.code = code
        self.remark: str = remark or ""
        self.address = address


class SystemBusyError(BrokerError):
    """Code 2: the broker refuses work for now."""

    condition = "SYSTEM_BUSY"
    retriable = True


class RequestNotSupportedError(BrokerError):
    """Code 3: the peer does not know this request."""

    condition = "REQUEST_NOT_SUPPORTED"


class NoPermissionError(BrokerError):
    """Code 16: broker, topic or group does not allow it."""

    condition = "NO_PERMISSION"


class AccessDeniedError(NoPermissionError):
    """The broker's access control (ACL) refused: code 1 of 4.x, 16 of 5.x, recognised by its
    remark.

    The text names the missing right or key. The remark is kept as it came.

    Attributes:
        knows_who: whether the broker took the keys for those of an account, which then lacks a
            right; without, it answers these keys nothing at all.
    """

    knows_who: bool

    condition = "ACCESS_DENIED"

    def __init__(self, code: int, remark: str | None, address: str = "", asked: str = "") -> None:
        super().__init__(code, remark, address)
        said, hint, self.knows_who = _denial(self.remark)
        where = f"{address} refused" if address else "refused"
        what = f" for {asked}" if asked else ""
        text = _cut(
            f"{where}: {said} (access control, code {code}{what}); {hint}", limits.REMARK_CHARS_MAX
        )
        self.args: tuple[Any, ...] = (text,)


class TopicNotExistError(BrokerError):
    """Code 17: the topic is unknown there."""

    condition = "TOPIC_NOT_EXIST"


class OffsetNotFoundError(BrokerError):
    """Code 22: nothing stored under what was asked for (an offset, a message, a key)."""

    condition = "OFFSET_NOT_FOUND"


class LiteTopicSetupError(BrokerError):
    """Parent topic or group are not made for lite topics at this broker; the text says how to."""

    condition = "LITE_TOPIC_SETUP"

    def __init__(self, refusal: BrokerError, topic: str, group: str) -> None:
        super().__init__(refusal.code, refusal.remark, refusal.address)
        self.parameters.update(topic=topic, group=group)
        self.args: tuple[Any, ...] = (
            f"lite topics of {topic!r} were asked for as group {group!r}, and refused: {refusal}; "
            f"the broker must have the topic with the attribute +message.type=LITE, and the group "
            f"with +lite.bind.topic={topic} (mqadmin updateTopic -a, updateSubGroup -a)",
        )


class LiteTopicQuotaError(BrokerError):
    """Code 2017: the broker has as many lite topics as it may; the message is not stored."""

    condition = "LITE_TOPIC_QUOTA"


class LiteSubscriptionQuotaError(BrokerError):
    """Code 2018: the broker's clients together have subscribed as many lite topics as they may.

    Unsubscribe topics that are not needed, or raise the broker's ``maxLiteSubscriptionCount``.
    """

    condition = "LITE_SUBSCRIPTION_QUOTA"


class ConsumerNotOnlineError(BrokerError):
    """Code 206: no member of the group is connected."""

    condition = "CONSUMER_NOT_ONLINE"


_BROKER_ERRORS: dict[int, type[BrokerError]] = {
    2: SystemBusyError,
    3: RequestNotSupportedError,
    16: NoPermissionError,
    17: TopicNotExistError,
    22: OffsetNotFoundError,
    206: ConsumerNotOnlineError,
    2017: LiteTopicQuotaError,
    2018: LiteSubscriptionQuotaError,
}


# Marks of Apache's access control: the plain one of 4.9 to 5.2, and that of 5.3 on.
_ACL_MARK = re.compile(r"\bAclException: |\b(?:Authentication|Authorization)Exception: ")
_ACL_BARE = re.compile(
    r"username cannot be null|User:.+ not found|User:.+ is disabled|check signature failed|"
    r".+ has no permission to access .+ from |Authentication failed\. Please verify"
)
"""How remarks of code 16 begin that 5.x's authentication and authorization (RIP-53) make."""
_ACL_PLACE = re.compile(r",\s[\w.$]+\.[\w$<>]+\([^()]*\)\s*$")
_KEYS_HINT = (
    "give the keys of an account: access_key and secret_key, at the command line the variables "
    "ROCKETMQ_ACCESS_KEY and ROCKETMQ_SECRET_KEY or --key-file FILE"
)
_DENIALS: tuple[tuple[str, str, bool], ...] = (
    (r"No accessKey is configured|username.*null", _KEYS_HINT, False),
    (
        r"No acl config for|[Uu]ser.* not found",
        "the broker has no account of this access key",
        False,
    ),
    (r"[Cc]heck signature failed", "the secret key does not match the access key", False),
    (r"User:.* is disabled", "whoever keeps the broker's accounts can enable it", False),
    (r"Authentication failed", "the broker knows no account with these keys", False),
    (r"Need admin permission", "only an administrator's account may do this", True),
    (r"", "the account lacks this right; whoever keeps the broker's accounts can give it", True),
)


def _denial(remark: str) -> tuple[str, str, bool]:
    """Return what access control says without where in its code, what to do, and if it knew who."""
    said = _ACL_PLACE.sub("", _ACL_MARK.split(remark)[-1]).strip().rstrip(".")
    hint, knows_who = next((h, k) for pattern, h, k in _DENIALS if re.search(pattern, said))
    return said, hint, knows_who


def broker_error(code: int, remark: str | None, address: str = "", asked: str = "") -> BrokerError:
    """Return the error that stands for a response code (a subclass where one exists).

    Args:
        asked: the request, for a refusal to name: which right it takes depends on that.
    """
    marked = code in (1, 16) and remark and _ACL_MARK.search(remark)
    if remark and (marked or (code == 16 and _ACL_BARE.match(remark))):
        return AccessDeniedError(code, remark, address, asked)
    return _BROKER_ERRORS.get(code, BrokerError)(code, remark, address)


# --- sending ----------------------------------------------------------------------------------


class SendOutcome(enum.Enum):
    """The fate of a message whose send raised, as far as it is known."""

    NOT_SENT = "NOT_SENT"
    """Nothing left this process: sending again cannot duplicate."""
    REJECTED = "REJECTED"
    """A broker refused it and did not store it."""
    UNKNOWN = "UNKNOWN"
    """It may or may not be stored: sending again may duplicate; UNIQ_KEY tells duplicates."""


class SendError(RocketMQError):
    """A send failed; ``outcome`` says what happened to the message."""

    condition = "SEND"

    def __init__(self, message: str, outcome: SendOutcome, **parameters: Any) -> None:
        super().__init__(message, outcome=outcome, **parameters)
        self.outcome = outcome

    def with_retriable(self, retriable: bool) -> Self:
        """Return this error marked as worth retrying or not."""
        self.retriable = retriable
        return self


class SendManyError(SendError):
    """Of the messages of one ``send_many`` some are not known to be stored.

    Attributes:
        result: tells of each message; ``result.rest`` are those to be sent again.
        outcome: the most doubtful among them.
    """

    condition = "SEND_MANY"

    def __init__(
        self, message: str, outcome: SendOutcome, *, result: Any, **parameters: Any
    ) -> None:
        super().__init__(message, outcome, **parameters)
        self.result = result


class SendRouteError(SendError, RouteNotFoundError):
    """No queue to send to is known for the topic; nothing was sent."""

    condition = "ROUTE_NOT_FOUND"

    def __init__(self, message: str, **parameters: Any) -> None:
        super().__init__(message, SendOutcome.NOT_SENT, **parameters)
        self.retriable = True


class SendConnectError(SendError, ConnectError):
    """No broker, or no name server, could be reached; nothing was sent."""

    condition = "CONNECT"


class ReplyTimeoutError(SendError, RequestTimeoutError):
    """No reply to a ``request`` in time (C-479); the receiver may have handled it, or may yet.

    Attributes:
        sent: whether the broker has confirmed that it stored the request.
    """

    condition = "REPLY_TIMEOUT"

    def __init__(self, message: str, *, sent: bool, **parameters: Any) -> None:
        super().__init__(message, SendOutcome.UNKNOWN, sent=sent, **parameters)
        self.sent = sent


class FlushTimeoutError(RocketMQError, TimeoutError):
    """Messages begun before a ``flush`` are still on their way; each tells its own sender.

    Attributes:
        under_way: how many.
    """

    condition = "FLUSH_TIMEOUT"

    def __init__(self, message: str, *, under_way: int, **parameters: Any) -> None:
        super().__init__(message, under_way=under_way, **parameters)
        self.under_way = under_way


class MessageInvalidError(SendError, ValueError):
    """The message itself is not acceptable (C-453); nothing was sent."""

    condition = "MESSAGE_INVALID"

    def __init__(self, message: str, **parameters: Any) -> None:
        super().__init__(message, SendOutcome.NOT_SENT, **parameters)


# --- server and store -------------------------------------------------------------------------


class ServerError(RocketMQError):
    """The embedded server cannot carry out a call."""

    condition = "SERVER"


class PortInUseError(ServerError):
    """The port to listen on is taken; the text names it."""

    condition = "PORT_IN_USE"


class StoreError(ServerError):
    """The message store cannot carry out a call."""

    condition = "STORE"


class StoreLockedError(StoreError):
    """Another process has the store directory open."""

    condition = "STORE_LOCKED"


class StoreDamagedError(StoreError):
    """A file of the store holds bytes that cannot be right; nothing was deleted."""

    condition = "STORE_DAMAGED"


class DiskFullError(StoreError):
    """No room for another file of the store."""

    condition = "DISK_FULL"
    retriable = True


class RecordTooLargeError(StoreError):
    """A message, or what must be stored undivided, is larger than a file of the log; not stored."""

    condition = "RECORD_TOO_LARGE"


class FlushFailedError(StoreError):
    """fsync failed; unflushed bytes are in doubt, and the store takes no more writes."""

    condition = "FLUSH_FAILED"


class DataLossError(RocketMQError):
    """Offsets that were to be read are no longer (or not any more) in the queue."""

    condition = "DATA_LOSS"


# --- Spark ------------------------------------------------------------------------------------


class SparkQueryError(RocketMQError):
    """A Spark query this package runs ended with an error; the checkpoint is as it was before.

    ``parameters["spark_text"]`` holds Spark's full account.
    """

    condition = "SPARK_QUERY"
