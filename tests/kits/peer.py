"""A peer on a raw socket that sees everything a server sends, requests included.

Law: knows frames and headers, not the client library, so that the server is judged on bytes.
"""

from __future__ import annotations

import itertools
import socket
from types import TracebackType
from typing import Self

from rocketstream.protocol.bodies import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
)
from rocketstream.protocol.codes import PullSysFlag, RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.framing import FrameDecoder
from rocketstream.protocol.headers import (
    ConsumerSendMsgBackRequestHeader,
    Header,
    PullMessageRequestHeader,
    QueryConsumerOffsetRequestHeader,
    SendMessageRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rocketstream.protocol.message_ext import MessageExt, decode_messages
from rocketstream.protocol.properties import encode_properties
from rocketstream.protocol.subscription import build_subscription

WAIT_S = 10.0
BORN_MS = 1_700_000_000_000


class Peer:
    """One connection; answers come back by opaque, requests of the server are kept in ``asked``."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), WAIT_S)
        self._decoder = FrameDecoder()
        self._opaque = itertools.count(1)
        self._answers: dict[int, RemotingCommand] = {}
        self.asked: list[RemotingCommand] = []
        self.is_ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    # --- frames -------------------------------------------------------------------------------

    def submit(self, command: RemotingCommand) -> int:
        command.opaque = next(self._opaque)
        self._socket.sendall(command.frame())
        return command.opaque

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def answer(self, opaque: int, wait_s: float = WAIT_S) -> RemotingCommand:
        while opaque not in self._answers:
            self._receive(wait_s)
        return self._answers.pop(opaque)

    def has_answer(self, opaque: int) -> bool:
        return opaque in self._answers

    def next_asked(self, code: int) -> RemotingCommand:
        """Return the next request of the server with a code, waiting for it."""
        while True:
            for command in self.asked:
                if command.code == code:
                    self.asked.remove(command)
                    return command
            self._receive(WAIT_S)

    def reply(
        self, request: RemotingCommand, code: int = 0, body: bytes = b"", remark: str | None = None
    ) -> None:
        """Answer a request of the server."""
        answer = RemotingCommand.response(code, remark, None, body)
        request.answer(answer)
        self._socket.sendall(answer.frame())

    def wait_end(self) -> None:
        """Wait until the server closes the connection."""
        while not self.is_ended:
            try:
                self._receive(WAIT_S)
            except ConnectionError:
                return

    def _receive(self, wait_s: float) -> None:
        self._socket.settimeout(wait_s)
        data = self._socket.recv(1 << 18)
        if not data:
            self.is_ended = True
            raise ConnectionResetError("the server closed the connection")
        for command in self._decoder.feed(data):
            if command.is_response:
                self._answers[command.opaque] = command
            else:
                self.asked.append(command)

    def call(
        self,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        ext: dict[str, str] | None = None,
        version: int | None = None,
    ) -> RemotingCommand:
        command = RemotingCommand.request(code, header, body)
        if ext is not None:
            command.ext_fields = ext
        if version is not None:
            command.version = version
        return self.answer(self.submit(command))

    # --- what tests say often -----------------------------------------------------------------

    def send(
        self,
        topic: str,
        body: bytes = b"hello",
        *,
        queue_id: int = 0,
        tags: str = "",
        properties: dict[str, str] | None = None,
        reconsume_times: int = 0,
        max_reconsume_times: int | None = None,
        batch: bool = False,
        default_topic: str = "TBW102",
        sys_flag: int = 0,
        born_ms: int = BORN_MS,
    ) -> RemotingCommand:
        given = {"WAIT": "true", **(properties or {})}
        if tags:
            given["TAGS"] = tags
        header = SendMessageRequestHeader(
            "pg", topic, default_topic, 4, queue_id, sys_flag, born_ms, 0,
            encode_properties(given), reconsume_times, False, max_reconsume_times, batch,
        )  # fmt: skip
        code = RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2
        return self.call(code, ext=header.to_ext_v2(), body=body)

    def submit_send(self, topic: str, body: bytes = b"hello") -> int:
        """Send to queue 0 and return what the answer is known by."""
        header = SendMessageRequestHeader(
            "pg", topic, "TBW102", 4, 0, 0, BORN_MS, 0, encode_properties({"WAIT": "true"}),
            0, False, None, False,
        )  # fmt: skip
        command = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, None, body)
        command.ext_fields = header.to_ext_v2()
        return self.submit(command)

    def send_oneway(self, topic: str, body: bytes) -> None:
        """Send to queue 0 without waiting for an answer."""
        header = SendMessageRequestHeader(
            "pg", topic, "TBW102", 4, 0, 0, BORN_MS, 0, encode_properties({"WAIT": "true"}),
            0, False, None, False,
        )  # fmt: skip
        command = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, None, body, oneway=True)
        command.ext_fields = header.to_ext_v2()
        self.submit(command)

    def submit_pull(
        self,
        topic: str,
        offset: int,
        *,
        group: str = "cg",
        queue_id: int = 0,
        count: int = 32,
        expression: str | None = "*",
        expression_type: str | None = None,
        suspend_ms: int = 0,
        commit: int | None = None,
        sub_version: int = 0,
        code: int = RequestCode.PULL_MESSAGE,
        extra_flags: int = 0,
    ) -> int:
        flags = extra_flags
        flags |= PullSysFlag.SUBSCRIPTION if expression is not None else 0
        flags |= PullSysFlag.SUSPEND if suspend_ms else 0
        flags |= PullSysFlag.COMMIT_OFFSET if commit is not None else 0
        header = PullMessageRequestHeader(
            group, topic, queue_id, offset, count, flags, commit or 0, suspend_ms, sub_version,
            expression, expression_type,
        )  # fmt: skip
        return self.submit(RemotingCommand.request(code, header))

    def pull(self, topic: str, offset: int, **given: object) -> RemotingCommand:
        return self.answer(self.submit_pull(topic, offset, **given))  # type: ignore[arg-type]

    def wait_message(self, topic: str, offset: int, *, queue_id: int = 0) -> MessageExt:
        """Return one message, holding the pull until it is there."""
        answer = self.pull(topic, offset, queue_id=queue_id, count=1, suspend_ms=9_000)
        assert answer.code == 0, answer
        return decode_messages(bytes(answer.body))[0]

    def messages(self, topic: str, *, queue_id: int = 0) -> list[MessageExt]:
        """Return what a queue holds now."""
        found: list[MessageExt] = []
        while True:
            answer = self.pull(topic, len(found), queue_id=queue_id)
            if answer.code != 0:
                return found
            found += decode_messages(bytes(answer.body))

    def offset(
        self,
        group: str,
        topic: str,
        queue_id: int = 0,
        *,
        set_zero_if_not_found: bool | None = None,
    ) -> int | None:
        header = QueryConsumerOffsetRequestHeader(
            group, topic, queue_id, None, set_zero_if_not_found
        )
        answer = self.call(RequestCode.QUERY_CONSUMER_OFFSET, header)
        return int((answer.ext_fields or {})["offset"]) if answer.code == 0 else None

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> RemotingCommand:
        header = UpdateConsumerOffsetRequestHeader(group, topic, queue_id, offset)
        return self.call(RequestCode.UPDATE_CONSUMER_OFFSET, header)

    def heartbeat(
        self,
        client_id: str,
        group: str = "cg",
        topics: dict[str, str] | None = None,
        *,
        model: str = "CLUSTERING",
        consume_type: str = "CONSUME_PASSIVELY",
        producer: str | None = None,
        version_ms: int = 1,
        expression_type: str = "TAG",
    ) -> RemotingCommand:
        subscriptions: list[SubscriptionData] = [
            build_subscription(topic, expression, version_ms, expression_type)
            for topic, expression in (topics or {}).items()
        ]
        consumer = ConsumerData(
            group, consume_type, model, "CONSUME_FROM_LAST_OFFSET", subscriptions, False
        )
        data = HeartbeatData(
            client_id,
            [ProducerData(producer)] if producer else [],
            [consumer] if topics is not None else [],
        )
        return self.call(RequestCode.HEART_BEAT, body=data.encode())

    def send_back(
        self,
        group: str,
        message: MessageExt,
        *,
        level: int = 0,
        most: int | None = None,
        version: int | None = None,
    ) -> RemotingCommand:
        header = ConsumerSendMsgBackRequestHeader(
            message.commit_log_offset, group, level, None, message.topic, False, most
        )
        return self.call(RequestCode.CONSUMER_SEND_MSG_BACK, header, version=version)


def ext(answer: RemotingCommand) -> dict[str, str]:
    """The ext map of an answer, empty when there is none."""
    return answer.ext_fields or {}
