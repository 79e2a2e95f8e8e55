"""Brokers that refuse some requests of a sweep, or stop answering at one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.errors import RequestTimeoutError
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand

Read = Callable[[int, RemotingCommand], None]
Answer = Callable[[RemotingCommand], RemotingCommand | None]


def answer(patch: pytest.MonkeyPatch, instead: Answer) -> None:
    """Have requests of a sweep answered by ``instead``, by the broker where it returns None."""
    ask = BlockingAdminClient.request_each

    def request_each(
        self: BlockingAdminClient,
        address: str,
        commands: Sequence[RemotingCommand],
        read: Read,
        timeout_ms: int | None = None,
    ) -> None:
        left = []
        for place, command in enumerate(commands):
            told = instead(command)
            if told is None:
                left.append(place)
            else:
                read(place, told)
        sent = [commands[place] for place in left]
        ask(self, address, sent, lambda place, told: read(left[place], told), timeout_ms)

    patch.setattr(BlockingAdminClient, "request_each", request_each)


def refuse(patch: pytest.MonkeyPatch, *codes: RequestCode) -> None:
    """Have a broker not support these requests."""

    def told(command: RemotingCommand) -> RemotingCommand | None:
        if command.code not in codes:
            return None
        return RemotingCommand.response(3, f"request type {command.code} not supported")

    answer(patch, told)


def silence(patch: pytest.MonkeyPatch, code: RequestCode) -> list[RemotingCommand]:
    """Have a broker not answer a request; return those that were tried."""
    asked: list[RemotingCommand] = []

    def told(command: RemotingCommand) -> RemotingCommand | None:
        if command.code != code:
            return None
        asked.append(command)
        raise RequestTimeoutError("no answer within 5000 ms")

    answer(patch, told)
    return asked
