"""The gate every change passes: refused when read-only, written down before and after.

The requests that change a cluster stand here, so that looking cannot change anything, and the plans
that were shown and may be carried out: once, soon, and by those who saw them.

Law: requests that change a cluster are made through ``Change`` only, and a change that cannot be
recorded is not made. The audit file never holds secrets or message bodies, only what an operation
names as its arguments.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import secrets
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream._util.home import state_directory, user_name
from rocketstream.admin.wire.looking import Wire
from rocketstream.admin.wire.questions import CLIENT_TIMEOUT_MS
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.client.config import new_uuid
from rocketstream.client.instance.questions import Question
from rocketstream.errors import BrokerError, ClientStateError
from rocketstream.model import MessageQueue
from rocketstream.protocol import fastjson
from rocketstream.protocol.bodies import (
    ConsumeMessageDirectlyResult,
    ResetOffsetBody,
    SubscriptionGroupConfig,
)
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    CreateTopicRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    DeleteTopicRequestHeader,
    Header,
    ResetOffsetRequestHeader,
)

if sys.platform != "win32":
    import fcntl

logger: logging.Logger = logging.getLogger("rocketstream.admin")

FILE_NAME: Final = "audit.jsonl"
OWNER_ONLY: Final = 0o600
_UNWRITTEN: Final = {
    "begin": "no change is made that cannot be recorded there; give another file, or free space",
    "done": "the change was made; the file has its beginning alone",
    "failed": "the change failed, and some of it may have been made; the file has its beginning "
    "alone",
}
"""Told where a line cannot be written, by its phase."""


def default_audit_path() -> Path:
    """Return ``$XDG_STATE_HOME/rocketstream/audit.jsonl`` (below ``~/.local/state`` if not set)."""
    return state_directory() / FILE_NAME


class AuditLog:
    """Appends one line before each change and one after it; thread safe.

    Lines are JSON objects: ``id`` (the same before and after), ``at`` (ms since 1970), ``phase``
    (``begin``, ``done`` or ``failed``), ``operation``, ``who``, ``host``, ``face``, ``cluster``,
    ``arguments``, ``approved`` where a face has a change approved, and ``before``, ``after`` or
    ``error``. A ``begin`` without an end is a change whose outcome is not known: the process was
    killed.

    Args:
        path: the file; made with its directories, readable by its owner alone. None is
            ``default_audit_path()``.
        who: the name of the person who makes the change; None is the user of this process.
        face: the face it is made through: ``command line``, ``dashboard``, ``agents``, ``library``.
        approved: by whom the change was approved; None where ``who`` alone decides.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        who: str | None = None,
        face: str = "library",
        approved: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.path: Path = Path(path) if path is not None else default_audit_path()
        self.who: str = who or user_name()
        self.face = face
        self.approved = approved
        self._clock = clock
        self._lock = threading.Lock()

    def begin(
        self, operation: str, cluster: str, arguments: Mapping[str, Any], before: Any
    ) -> dict[str, Any]:
        """Write down a change before it is made; return the entry to pass to ``end``.

        Raises:
            ClientStateError: the file cannot be written; the change must not be made.
        """
        entry = {
            "id": new_uuid(),
            "operation": operation,
            "who": self.who,
            "host": socket.gethostname(),
            "face": self.face,
            "cluster": cluster,
            "arguments": dict(arguments),
        }
        if self.approved is not None:
            entry["approved"] = self.approved
        self._write({"phase": "begin", **entry, "before": before})
        return entry

    def end(self, entry: Mapping[str, Any], *, after: Any = None, error: str | None = None) -> None:
        """Write down how the change ended.

        Raises:
            ClientStateError: the file cannot be written, although the change, or a part of it, was
                made.
        """
        phase = "done" if error is None else "failed"
        outcome = {} if error is None else {"error": error}
        self._write({"phase": phase, **entry, "after": after, **outcome})

    def _write(self, line: Mapping[str, Any]) -> None:
        text = json.dumps({"at": self._clock.now_ms(), **line}, ensure_ascii=False, default=str)
        data = text.encode("utf-8", "backslashreplace") + b"\n"
        try:
            with self._lock:
                self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                _append(self.path, data)
        except OSError as error:
            raise ClientStateError(
                f"the audit file {self.path} cannot be written ({error.strerror}): "
                f"{_UNWRITTEN[line['phase']]}",
                path=str(self.path),
            ) from error


class ReadOnlyError(ClientStateError):
    """This ``Admin`` is read-only."""


class Change:
    """One change under way.

    Attributes:
        wire: the requests that change something.
        after: the state afterwards, for the audit file; the code that makes the change sets it.
    """

    def __init__(self, wire: ChangingWire) -> None:
        self.wire = wire
        self.after: Any = None


class ChangeGate:
    """Admits changes, or refuses them.

    Args:
        timeout_ms: bound of one request.
        audit: where changes are written down; None writes nothing.
        read_only: whether every change is refused.
    """

    def __init__(
        self,
        client: BlockingAdminClient,
        timeout_ms: int,
        audit: AuditLog | None = None,
        *,
        read_only: bool = False,
    ) -> None:
        self._wire = ChangingWire(client, timeout_ms)
        self._cluster = ";".join(client.name_servers)
        self.audit = audit
        self.read_only = read_only

    def check(self, operation: str) -> None:
        """Raise if changes are refused; for operations that do a lot before they change anything.

        Raises:
            ReadOnlyError: this Admin is read-only.
        """
        if self.read_only:
            raise ReadOnlyError(
                f"{operation} would change the cluster, and this Admin is read-only: make it "
                "without read_only=True (the dashboard and the agents' server: start with --write)",
                operation=operation,
            )

    @contextmanager
    def open(
        self, operation: str, arguments: Mapping[str, Any], before: Any = None
    ) -> Iterator[Change]:
        """Make one change: written down before it begins and after it ends, also when it fails.

        Args:
            operation: the operation's name, such as ``topic.delete``.
            arguments: the arguments of the operation, never secrets or bodies.
            before: the state before, as far as it is known.

        Raises:
            ReadOnlyError: this Admin is read-only.
            ClientStateError: the audit file cannot be written: before the change, which is then not
                made, or after it. Where the change failed too, its own error is raised.
        """
        self.check(operation)
        entry = None
        if self.audit is not None:
            entry = self.audit.begin(operation, self._cluster, arguments, before)
        change = Change(self._wire)
        try:
            yield change
        except BaseException as error:
            if self.audit is not None and entry is not None:
                self._record_failure(self.audit, entry, error, change.after)
            raise
        if self.audit is not None and entry is not None:
            self.audit.end(entry, after=change.after)

    @staticmethod
    def _record_failure(
        audit: AuditLog, entry: Mapping[str, Any], error: BaseException, after: Any
    ) -> None:
        try:
            audit.end(entry, error=f"{type(error).__name__}: {error}", after=after)
        except ClientStateError as unwritten:
            # The change's own error is the one to act on; neither may hide the other.
            logger.warning("%s", unwritten.message)
            error.add_note(unwritten.message)


def _append(path: Path, data: bytes) -> None:
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, OWNER_ONLY)
    try:
        _alone(handle)
        size = os.lseek(handle, 0, os.SEEK_END)
        if size:
            os.lseek(handle, size - 1, os.SEEK_SET)
            if os.read(handle, 1) != b"\n":  # a line cut off by a full disk or a power failure
                data = b"\n" + data
        if os.write(handle, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(handle)
    finally:
        os.close(handle)


def _alone(handle: int) -> None:
    """Keep other processes from writing until the file is closed, if the system supports it."""
    if sys.platform != "win32":
        with contextlib.suppress(OSError):  # a file system that has no locks
            fcntl.flock(handle, fcntl.LOCK_EX)


TO_END_MS = -1
DEFAULT_TOPIC = "TBW102"
"""Upstream names the topic that new ones are copied from; brokers ignore it in this request."""


class ChangingWire(Wire):
    """Changes one cluster; blocking, and as thread safe as its client."""

    def _change(
        self,
        address: str,
        code: RequestCode,
        header: Header | None = None,
        body: bytes = b"",
        *,
        timeout_ms: int | None = None,
    ) -> bytes:
        question = Question(code, header, lambda answer: bytes(answer.body), body=body)
        return self.ask(address, question, timeout_ms=timeout_ms)

    # --- offsets ---------------------------------------------------------------------------------

    def store_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """UPDATE_CONSUMER_OFFSET (15) at the queue's master."""
        self._client.update_consumer_offset(group, queue, offset)

    def store_offset_making_group(self, group: str, queue: MessageQueue, offset: int) -> None:
        """``store_offset`` for a group that may have no settings yet.

        Since 5.x a broker stores nothing for a group it does not know, so the group is made there.
        """
        try:
            self.store_offset(group, queue, offset)
        except BrokerError as error:
            if error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                raise
            self.make_group(queue.broker_name, group)
            self.store_offset(group, queue, offset)

    def tell_stored(self, address: str, group: str, topic: str) -> dict[MessageQueue, int]:
        """INVOKE_BROKER_TO_RESET_OFFSET (222): send members to the stored offsets; returns these.

        Asks to skip to the end, but without force: a broker then tells members (220) the stored
        offsets.

        Raises:
            ConsumerNotOnlineError: nobody is connected there.
        """
        header = ResetOffsetRequestHeader(
            topic=topic, group=group, timestamp=TO_END_MS, is_force=False
        )
        return self._reset(address, header)

    def send_to(
        self, address: str, group: str, queue: MessageQueue, offset: int
    ) -> dict[MessageQueue, int]:
        """INVOKE_BROKER_TO_RESET_OFFSET (222) of one queue, at brokers that reset themselves."""
        header = ResetOffsetRequestHeader(
            topic=queue.topic,
            group=group,
            timestamp=TO_END_MS,
            is_force=False,
            queue_id=queue.queue_id,
            offset=offset,
        )
        return self._reset(address, header)

    def _reset(self, address: str, header: ResetOffsetRequestHeader) -> dict[MessageQueue, int]:
        body = self._change(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
        return ResetOffsetBody.decode(body).offset_table

    # --- topics ----------------------------------------------------------------------------------

    def put_topic(
        self, address: str, topic: str, settings: Mapping[str, Any], attributes: str | None = None
    ) -> None:
        """UPDATE_AND_CREATE_TOPIC (17) on one broker: settings by upstream's names.

        ``attributes`` is the change of the attributes, which brokers of 4.x ignore.
        """
        header = CreateTopicRequestHeader(
            topic=topic,
            default_topic=DEFAULT_TOPIC,
            read_queue_nums=settings["readQueueNums"],
            write_queue_nums=settings["writeQueueNums"],
            perm=settings["perm"],
            topic_filter_type=settings["topicFilterType"],
            topic_sys_flag=settings["topicSysFlag"],
            order=settings["order"],
            attributes=attributes,
        )
        self._change(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    def delete_topic(self, address: str, topic: str) -> None:
        """DELETE_TOPIC_IN_BROKER (215) on one broker."""
        self._change(
            address, RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic=topic)
        )

    def delete_route(self, name_server: str, topic: str) -> None:
        """DELETE_TOPIC_IN_NAMESRV (216) on one name server."""
        header = DeleteTopicFromNamesrvRequestHeader(topic=topic)
        self._change(name_server, RequestCode.DELETE_TOPIC_IN_NAMESRV, header)

    # --- groups ----------------------------------------------------------------------------------

    def put_group(self, address: str, config: Mapping[str, Any]) -> None:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200): the whole settings, by upstream's names."""
        body = fastjson.dumps(dict(config), standard=True).encode()
        self._change(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)

    def make_group(self, broker_name: str, group: str) -> None:
        """``put_group`` with upstream's defaults, at a broker's master."""
        config = SubscriptionGroupConfig(group_name=group).to_json()
        self.put_group(self._client.master(broker_name), config)

    def delete_group(self, address: str, group: str, *, offsets: bool) -> None:
        """DELETE_SUBSCRIPTIONGROUP (207), with the group's offsets if wanted."""
        # 4.9 calls it removeOffset, 5.x cleanOffset.
        header = DeleteSubscriptionGroupRequestHeader(
            group_name=group, remove_offset=offsets, clean_offset=offsets
        )
        self._change(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)

    # --- members ---------------------------------------------------------------------------------

    def consume_directly(
        self, address: str, group: str, client_id: str, offset_msg_id: str
    ) -> ConsumeMessageDirectlyResult:
        """CONSUME_MESSAGE_DIRECTLY (309) on the broker that stores the message."""
        header = ConsumeMessageDirectlyResultRequestHeader(
            consumer_group=group, client_id=client_id, msg_id=offset_msg_id
        )
        code = RequestCode.CONSUME_MESSAGE_DIRECTLY
        body = self._change(address, code, header, timeout_ms=CLIENT_TIMEOUT_MS)
        return ConsumeMessageDirectlyResult.decode(body)


Plan = TypeVar("Plan")

GOOD_FOR_MS: Final = 10 * 60_000
KEPT_MAX: Final = 64
"""How many plans are kept; beyond that the oldest is dropped."""


class PreviewGoneError(ClientStateError):
    """A change cannot be carried out by this token: its preview is not kept, or no longer good."""


@dataclass(frozen=True, slots=True)
class _Kept(Generic[Plan]):
    plan: Plan
    shown_to: str
    until_ms: float


class Previews(Generic[Plan]):
    """Plans by the tokens that those who saw them were given; used on one event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[str, _Kept[Plan]] = {}

    def keep(self, plan: Plan, shown_to: str = "") -> str:
        """Keep a plan and return its token, which nobody can guess.

        Args:
            shown_to: the session that saw it, and alone may carry it out.
        """
        while len(self._kept) >= KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        token = secrets.token_urlsafe(18)
        self._kept[token] = _Kept(plan, shown_to, self._clock.monotonic_ms() + GOOD_FOR_MS)
        return token

    def find(self, token: str, shown_to: str = "") -> Plan:
        """Return a plan, and keep it.

        Raises:
            PreviewGoneError: it was carried out already, has expired, was shown to another, or was
                never kept.
        """
        return self._find(token, shown_to).plan

    def take(self, token: str, shown_to: str = "") -> Plan:
        """Return a plan and forget it: a token is good once.

        Raises:
            PreviewGoneError: as in ``find``.
        """
        found = self._find(token, shown_to)
        del self._kept[token]
        return found.plan

    def left_s(self, token: str, shown_to: str = "") -> float:
        """Return for how many seconds a plan may still be carried out.

        Raises:
            PreviewGoneError: as in ``find``.
        """
        left_ms = self._find(token, shown_to).until_ms - self._clock.monotonic_ms()
        return left_ms / 1_000

    def _find(self, token: str, shown_to: str) -> _Kept[Plan]:
        found = self._kept.get(token)
        if found is None or found.shown_to != shown_to:
            raise PreviewGoneError(
                "no preview has this token: its change was carried out already, newer previews "
                "pushed it out, or the token is mistyped. Look at the change again first"
            )
        if self._clock.monotonic_ms() > found.until_ms:
            del self._kept[token]
            raise PreviewGoneError(
                f"this preview is older than {GOOD_FOR_MS // 60_000} minutes and no longer good. "
                "Look at the change again first"
            )
        return found
