"""One request at a time to one server: the base of every set of requests here.

Law: a peer's refusal is raised as the error of its code.
"""

from __future__ import annotations

from typing import Any, TypeVar

from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.client.instance.questions import Question
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand

T = TypeVar("T")

CLIENT_TIMEOUT_MS = 15_000
"""A broker waits up to 10 s for a client it passes a question on to."""


class Wire:
    """Asks single servers; blocking, and as thread safe as its client."""

    def __init__(self, client: BlockingAdminClient, timeout_ms: int) -> None:
        self._client = client
        self._timeout_ms = timeout_ms

    def _ask(self, address: str, question: Question[T], *, timeout_ms: int | None = None) -> T:
        patience_ms = timeout_ms or self._timeout_ms * question.patience
        return question.read(self._client.request(address, question.command(), patience_ms))

    def _body(
        self,
        address: str,
        code: RequestCode,
        header: Any = None,
        body: bytes = b"",
        *,
        timeout_ms: int | None = None,
    ) -> bytes:
        command = RemotingCommand.request(code, header, body=body)
        answer = self._client.request(address, command, timeout_ms or self._timeout_ms)
        return bytes(answer.body)
