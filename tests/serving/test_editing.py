"""Settings of running servers: codes 25, 26, 318 and 319."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketstream.errors import StoreDamagedError
from rocketstream.protocol.bodies import TopicRouteData
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.server.broker.editing import EDITABLE, edited, shown
from rocketstream.server.embedded import SMALL_STORE, EmbeddedCluster, EmbeddedSettings
from tests.kits.peer import Peer

SETTINGS = EmbeddedSettings(store_config=SMALL_STORE, auto_create_topics=False)

NUMBERS = (
    "transactionTimeOut",
    "transactionCheckInterval",
    "transactionCheckMax",
    "fileReservedTime",
    "diskMaxUsedSpaceRatio",
)
"""Settings that upstream keeps as numbers of 32 or 64 bits; greater ones overflow at a start."""


def told(answer: RemotingCommand) -> dict[str, str]:
    assert answer.code == 0
    lines = bytes(answer.body).decode().splitlines()
    return dict(line.split("=", 1) for line in lines)


def change(
    server: Peer, text: str, code: int = RequestCode.UPDATE_BROKER_CONFIG
) -> tuple[int, str]:
    answer = server.call(code, body=text.encode())
    return answer.code, answer.remark or ""


def test_what_is_shown_can_be_given_back() -> None:
    before = EmbeddedSettings()
    after = edited(before, shown(before))
    assert shown(after) == shown(before)
    assert set(shown(before)) == set(EDITABLE)


def test_changes_count_at_once_and_after_a_restart(tmp_path: Path) -> None:
    """A restart is given the first settings, and goes by the changed ones."""
    changes = "# by hand\nautoCreateTopicEnable=true\nfileReservedTime=5\ndeleteWhen=04;16"
    with EmbeddedCluster(tmp_path, SETTINGS) as cluster, Peer(cluster.broker_addr) as broker:
        assert broker.send("new").code == 17
        assert change(broker, changes) == (0, "")
        assert broker.send("new").code == 0
        assert change(broker, "transactionTimeOut=3000") == (0, "")
    with EmbeddedCluster(tmp_path, SETTINGS) as cluster, Peer(cluster.broker_addr) as broker:
        assert broker.send("newer").code == 0
        settings = told(broker.call(RequestCode.GET_BROKER_CONFIG))
        assert settings["transactionTimeOut"] == "3000"
        assert (settings["fileReservedTime"], settings["deleteWhen"]) == ("5", "04;16")
        assert cluster.broker.store.config.retention.file_reserved_ms == 5 * 3_600_000
        assert change(broker, "autoCreateTopicEnable=false") == (0, "")
        assert broker.send("newest").code == 17


@pytest.mark.parametrize(
    ("text", "code", "named"),
    [
        (
            "brokerName=x\nautoCreateTopicEnable=true",
            16,
            "change only autoCreateSubscriptionGroup, auto",
        ),
        ("autoCreateTopicEnable=true\nfileReservedTime=-1", 1, "fileReservedTime=-1"),
        ("autoCreateTopicEnable=yes", 1, "give true or false"),
        ("deleteWhen=25", 1, "deleteWhen=25"),
        *((f"{name}=1{'0' * 400}", 1, " is not accepted: out of ") for name in NUMBERS),
        ("transactionCheckMax=many", 1, "transactionCheckMax=many"),
        ("autoCreateTopicEnable", 1, "give name=value"),
    ],
)
def test_what_is_not_allowed_changes_nothing(
    tmp_path: Path, text: str, code: int, named: str
) -> None:
    with EmbeddedCluster(tmp_path, SETTINGS) as cluster, Peer(cluster.broker_addr) as broker:
        before = broker.call(RequestCode.GET_BROKER_CONFIG).body
        answered, remark = change(broker, text)
        assert answered == code
        assert named in remark
        assert broker.call(RequestCode.GET_BROKER_CONFIG).body == before


def test_settings_that_cannot_be_used_are_named_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "brokerSettings.json").write_text('{"listenPort":"1"}')
    with pytest.raises(StoreDamagedError, match=r"brokerSettings\.json.*listenPort"):
        EmbeddedCluster(tmp_path, SETTINGS).start()


def test_name_server_tells_the_order_of_topics_when_told_to(tmp_path: Path) -> None:
    code = RequestCode.UPDATE_NAMESRV_CONFIG
    with EmbeddedCluster(tmp_path, SETTINGS) as cluster, Peer(cluster.namesrv_addr) as namesrv:
        cluster.create_topic("T1")
        order = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T1", "value": "broker-a:4"}
        assert namesrv.call(RequestCode.PUT_KV_CONFIG, ext=order).code == 0
        assert order_of(namesrv) is None
        answered, remark = change(namesrv, "listenPort=1", code)
        assert answered == 16
        assert "orderMessageEnable" in remark
        assert change(namesrv, "orderMessageEnable=1", code)[0] == 1
        assert change(namesrv, "orderMessageEnable=true", code) == (0, "")
        assert order_of(namesrv) == "broker-a:4"
    with EmbeddedCluster(tmp_path, SETTINGS) as cluster, Peer(cluster.namesrv_addr) as namesrv:
        assert order_of(namesrv) == "broker-a:4"
        settings = told(namesrv.call(RequestCode.GET_NAMESRV_CONFIG))
        assert settings["orderMessageEnable"] == "true"


def test_name_server_that_keeps_no_more_settings_refuses_its_own(tmp_path: Path) -> None:
    """It answered that all was well."""
    code = RequestCode.UPDATE_NAMESRV_CONFIG
    with EmbeddedCluster(tmp_path, SETTINGS) as cluster, Peer(cluster.namesrv_addr) as namesrv:
        cluster.nameserver.settings._count_max = 0
        answered, remark = change(namesrv, "orderMessageEnable=true", code)
        assert answered == ResponseCode.SYSTEM_ERROR
        assert "keeps 0 settings" in remark


def order_of(namesrv: Peer) -> str | None:
    answer = namesrv.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": "T1"})
    return TopicRouteData.decode(bytes(answer.body)).order_topic_conf
