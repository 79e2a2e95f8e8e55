"""The broker that does what a test says, at the moment the test says it."""

from __future__ import annotations

from typing import Any

import pytest

from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from tests.kits.client.fake_broker import FakeBroker, ok


def test_a_request_is_answered_as_was_said_before_it_was_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A test that saw a request it leaves unanswered says how the next one is answered."""
    broker = FakeBroker()
    broker.on[RequestCode.ACK_MESSAGE] = lambda _: None
    answers: list[Any] = []

    class Peer:
        def reply(self, *answer: Any) -> None:
            answers.append(answer)

    def seen_and_changed() -> None:
        broker.on[RequestCode.ACK_MESSAGE] = lambda _: ok()

    monkeypatch.setattr(broker._changed, "notify_all", seen_and_changed)
    request = RemotingCommand.request(RequestCode.ACK_MESSAGE)
    for answered in (0, 1):
        broker._serve(Peer(), request)  # type: ignore[arg-type]
        assert len(answers) == answered
