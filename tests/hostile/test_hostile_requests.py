"""Requests of a broker that are not what they should be harm nobody (C-133)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rocketstream import ClientConfig
from rocketstream.client.instance.api import MQClientAPI
from rocketstream.client.instance.background import Background
from rocketstream.client.instance.groups import Groups
from rocketstream.client.instance.outage_log import OutageLog
from rocketstream.client.instance.remote_control import (
    REMOTE_HANDLERS,
    AwaitedReplies,
    RemoteControl,
)
from rocketstream.protocol.codes import ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.testing import ManualClock
from rocketstream.transport.client import RemotingClient
from tests.kits.client.fake_broker import found

NAMES = st.sampled_from(
    [
        "topic",
        "group",
        "consumerGroup",
        "clientId",
        "msgId",
        "brokerName",
        "timestamp",
        "isForce",
        "jstackEnable",
        "tranStateTableOffset",
        "commitLogOffset",
        "transactionId",
        "sysFlag",
        "queueId",
        "bornTimestamp",
        "properties",
        "storeTimestamp",
        "flag",
        "producerGroup",
    ]
)
TEXTS = st.one_of(st.text(max_size=12), st.integers().map(str), st.sampled_from(["true", "g"]))
RECORD = bytes(found([3], properties="PGROUP\x01g\x02A\x01").body)
BODIES = st.one_of(
    st.binary(max_size=200),
    st.just(RECORD),
    st.binary(max_size=4).map(lambda tail: RECORD + tail),
    st.sampled_from(
        [
            b"{}",
            b"[]",
            b'{"offsetTable":{}}',
            b'{"offsetTable":5}',
            b'{"offsetTable":[{"offset":"x"}]}',
            b'{"offsetTable":{{"brokerName":"b","queueId":"q","topic":"t"}:1}}',
        ]
    ),
)


class Connection:
    """Stands for the broker's connection."""

    peer = "broker:1"

    def __init__(self) -> None:
        self.replies: list[RemotingCommand] = []

    def reply(self, request: RemotingCommand, response: RemotingCommand) -> None:
        self.replies.append(response)


@pytest.mark.parametrize("code", sorted(REMOTE_HANDLERS))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ext=st.dictionaries(NAMES, TEXTS, max_size=9), body=BODIES)
def test_whatever_a_broker_asks_there_is_an_answer_or_none(
    code: int, ext: dict[str, str], body: bytes
) -> None:
    """Covers C-133: at most one answer, and nothing is raised into the connection."""
    connection: Any = Connection()

    async def run() -> None:
        config, clock, groups = ClientConfig(namesrv_addr="a:1"), ManualClock(), Groups()
        outages = OutageLog(clock, "id", groups)
        background = Background("id", outages)
        api = MQClientAPI(RemotingClient(), config, outages)
        control = RemoteControl(config, clock, groups, api, AwaitedReplies(), background)
        control.serve(connection, RemotingCommand(code, ext_fields=ext, body=body))
        await asyncio.gather(*background.tasks)

    asyncio.run(run())
    assert len(connection.replies) <= 1
    for reply in connection.replies:
        assert reply.code in (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR)
