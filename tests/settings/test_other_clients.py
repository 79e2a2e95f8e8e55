"""A setting given to a client that does not have it is said to be another's."""

from __future__ import annotations

from typing import Any

import pytest

import rocketstream
from rocketstream import aio
from rocketstream.errors import ConfigurationError

MISPLACED = [
    ("LitePullConsumer", "listener", "PushConsumer and LitePushConsumer have"),
    ("LitePullConsumer", "consume_thread_max", "PushConsumer and LitePushConsumer have"),
    (
        "Producer",
        "pull_batch_size",
        "PushConsumer, LitePullConsumer and LitePushConsumer have",
    ),
    ("Producer", "transaction_listener", "TransactionProducer has"),
    ("Producer", "subscription", "PushConsumer and LitePullConsumer have"),
    ("PushConsumer", "poll_timeout_ms", "LitePullConsumer has"),
    ("PullConsumer", "send_msg_timeout_ms", "Producer has"),
]


@pytest.mark.parametrize("face", [rocketstream, aio])
@pytest.mark.parametrize(("client", "setting", "said"), MISPLACED)
def test_the_clients_that_have_it_are_named(
    face: Any, client: str, setting: str, said: str
) -> None:
    """Before settings that are spelled alike, and rather than all there are."""
    with pytest.raises(ConfigurationError) as raised:
        getattr(face, client)("g", namesrv_addr="127.0.0.1:9", **{setting: 5})
    text = str(raised.value)
    assert text.startswith(f"{client} has no setting {setting!r}, which {said}")
    assert "settings are" not in text


@pytest.mark.parametrize("setting", ["pull_size", "consumer_group"])
def test_what_no_client_has_is_nobodys(setting: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        rocketstream.LitePullConsumer("g", namesrv_addr="127.0.0.1:9", **{setting: 5})  # type: ignore[arg-type]
    assert ", which " not in str(raised.value)
