"""Accounts of a running broker: who is let in, files that change, requests 50 to 54."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from rocketstream import ClientConfig, Message, Producer
from rocketstream.admin import Admin
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.errors import BrokerError, ConfigurationError, RocketMQError
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    ConsumerSendMsgBackRequestHeader,
    CreateAccessConfigRequestHeader,
    DeleteAccessConfigRequestHeader,
    GetBrokerAclConfigResponseHeader,
    Header,
    UpdateGlobalWhiteAddrsConfigRequestHeader,
    ViewMessageRequestHeader,
)
from rocketstream.server.broker import broker
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.server.store import Files
from tests.kits.peer import Peer
from tests.plugins.waiting import wait_until

ACCOUNTS = """# who may do what
accounts:
- accessKey: salesdesk
  secretKey: secret-of-sales
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - orders=PUB|SUB
- accessKey: operator
  secretKey: secret-of-operator
  admin: true
"""
SALES = ("salesdesk", "secret-of-sales")
OPERATOR = ("operator", "secret-of-operator")
Guarded = tuple[EmbeddedCluster, Path]


@pytest.fixture
def guarded(
    rocketmq_cluster_factory: Callable[..., EmbeddedCluster],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Guarded:
    monkeypatch.setattr(broker, "ACL_INTERVAL_S", 0.02)
    file = tmp_path / "plain_acl.yml"
    file.write_text(ACCOUNTS)
    return rocketmq_cluster_factory(acl=file), file


def client(
    cluster: EmbeddedCluster, keys: tuple[str, str] | None = OPERATOR
) -> BlockingAdminClient:
    access, secret = keys or (None, None)
    return BlockingAdminClient(cluster.namesrv_addr, access_key=access, secret_key=secret)


def ask(
    cluster: EmbeddedCluster, code: RequestCode, header: Header | None = None,
    keys: tuple[str, str] | None = OPERATOR,
) -> RemotingCommand:  # fmt: skip
    with client(cluster, keys) as asking:
        return asking.request(cluster.broker_addr, RemotingCommand.request(code, header))


def send(cluster: EmbeddedCluster, topic: str, keys: tuple[str, str]) -> str:
    config = ClientConfig(namesrv_addr=cluster.namesrv_addr, access_key=keys[0], secret_key=keys[1])
    with Producer("till", config=config, retry_times_when_send_failed=0) as producer:
        return producer.send(Message(topic, b"body")).offset_msg_id


def replace(file: Path, text: str) -> None:
    """Give a file another content at once: a reader never sees it empty or in part."""
    fresh = file.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(file)


def is_let_in(cluster: EmbeddedCluster, topic: str, keys: tuple[str, str]) -> bool:
    try:
        send(cluster, topic, keys)
    except RocketMQError as error:
        if "access control" not in str(error):
            raise
        return False
    return True


def test_signed_clients_do_what_their_account_may_and_nothing_else(guarded: Guarded) -> None:
    cluster, _ = guarded
    assert is_let_in(cluster, "orders", SALES)
    assert not is_let_in(cluster, "salaries", SALES)
    assert not is_let_in(cluster, "orders", ("salesdesk", "wrong-secret"))
    assert is_let_in(cluster, "salaries", OPERATOR)
    with pytest.raises(BrokerError, match="Need admin permission for request code=54"):
        ask(cluster, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG, keys=SALES)
    with pytest.raises(BrokerError, match=r"for GET_BROKER_RUNTIME_INFO \(28\)") as refused:
        ask(cluster, RequestCode.GET_BROKER_RUNTIME_INFO, keys=None)
    assert refused.value.code == ResponseCode.SYSTEM_ERROR


def test_an_unknown_code_is_refused_before_it_is_looked_up(guarded: Guarded) -> None:
    with Peer(guarded[0].broker_addr) as peer:
        answer = peer.answer(peer.submit(RemotingCommand(9_999)))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == (
        "org.apache.rocketmq.acl.common.AclException: No accessKey is configured"
    )


def test_a_message_is_shown_by_id_to_those_who_may_have_to_do_with_its_topic(
    guarded: Guarded,
) -> None:
    """Upstream shows any message to any account."""
    cluster, _ = guarded
    theirs = send(cluster, "salaries", OPERATOR)
    ours = send(cluster, "orders", SALES)

    def view(offset_msg_id: str) -> RemotingCommand:
        header = ViewMessageRequestHeader(offset=int(offset_msg_id[16:], 16))
        return ask(cluster, RequestCode.VIEW_MESSAGE_BY_ID, header, SALES)

    assert view(ours).body
    with pytest.raises(BrokerError, match="No default permission for topic:salaries"):
        view(theirs)


def test_a_message_of_another_topic_is_not_read_by_sending_it_back(guarded: Guarded) -> None:
    """Upstream gives any account any message so, in its own retry topic."""
    cluster, _ = guarded
    theirs = int(send(cluster, "salaries", OPERATOR)[16:], 16)
    ours = int(send(cluster, "orders", SALES)[16:], 16)

    def send_back(offset: int) -> RemotingCommand:
        header = ConsumerSendMsgBackRequestHeader(
            offset=offset, group="desk", delay_level=0, max_reconsume_times=16
        )
        return ask(cluster, RequestCode.CONSUMER_SEND_MSG_BACK, header, SALES)

    assert send_back(ours).code == ResponseCode.SUCCESS
    with pytest.raises(BrokerError, match="No default permission for topic:salaries"):
        send_back(theirs)


# --- files that change ---------------------------------------------------------------------------


def test_accounts_change_with_their_file_and_a_broken_one_changes_nothing(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    cluster, file = guarded
    assert not is_let_in(cluster, "prices", SALES)

    replace(file, ACCOUNTS.replace("orders=PUB|SUB", "prices=PUB"))
    wait_until(lambda: is_let_in(cluster, "prices", SALES), "the file to be read again")
    assert not is_let_in(cluster, "orders", SALES)

    replace(file, "accounts:\n- accessKey: [secret-of-sales\n")
    wait_until(lambda: "ACL_FILE_UNUSABLE" in caplog.text, "the broken file to be told")
    assert f"{file}: it is not YAML in line 3" in caplog.text
    assert "secret-of" not in caplog.text
    assert is_let_in(cluster, "prices", SALES)

    file.unlink()
    wait_until(lambda: "cannot be read" in caplog.text, "the missing file to be told")
    assert is_let_in(cluster, "prices", SALES)
    told = [r for r in caplog.records if "ACL_FILE_UNUSABLE" in r.getMessage()]
    assert len(told) == 2, "once for each"


def test_a_file_that_is_being_written_anew_shuts_nobody_out(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    """Who writes it empties it first; no accounts at all are said in words."""
    cluster, file = guarded
    file.write_text("")
    wait_until(lambda: "it is empty now" in caplog.text, "the empty file to be told")
    assert is_let_in(cluster, "orders", SALES)
    replace(file, "accounts: []\n")
    wait_until(lambda: not is_let_in(cluster, "orders", SALES), "the accounts to go")


def test_files_of_the_directory_beside_it_count_too(guarded: Guarded) -> None:
    cluster, file = guarded
    team = file.parent / "acl" / "team" / "desk.yaml"
    team.parent.mkdir(parents=True)
    (file.parent / "acl" / "tools.yml").write_text("accessKey: x\nsecretKey: y\n")
    keys = ("warehouse", "secret-of-warehouse")
    team.write_text(
        "accounts:\n- accessKey: warehouse\n  secretKey: secret-of-warehouse\n"
        "  defaultTopicPerm: PUB\n"
    )
    wait_until(lambda: is_let_in(cluster, "stock", keys), "the new file to be read")
    team.unlink()
    wait_until(lambda: not is_let_in(cluster, "stock", keys), "its accounts to go with it")


@pytest.mark.parametrize("content", [None, "accounts:\n- accessKey: salesdesk\n"])
def test_a_broker_does_not_start_with_accounts_it_cannot_use(
    tmp_path: Path, content: str | None
) -> None:
    file = tmp_path / "plain_acl.yml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigurationError, match=r"plain_acl\.yml"):
        EmbeddedCluster(acl=file).start()


# --- requests 50 to 54 ---------------------------------------------------------------------------


def test_accounts_are_made_changed_and_deleted_by_request(guarded: Guarded) -> None:
    cluster, file = guarded
    file.chmod(0o600)
    keys = ("warehouse", "secret-of-warehouse")
    update = CreateAccessConfigRequestHeader(
        access_key=keys[0], secret_key=keys[1], topic_perms="stock=PUB,returns=SUB"
    )
    ask(cluster, RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, update)
    assert is_let_in(cluster, "stock", keys), "it counts when it is answered"
    assert not is_let_in(cluster, "returns", keys)
    assert is_let_in(cluster, "orders", SALES), "the others stay"
    if os.name == "posix":
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == [file.name]

    ask(cluster, RequestCode.DELETE_ACL_CONFIG, DeleteAccessConfigRequestHeader(keys[0]))
    assert not is_let_in(cluster, "stock", keys)
    with pytest.raises(BrokerError, match="deleted failed") as refused:
        ask(cluster, RequestCode.DELETE_ACL_CONFIG, DeleteAccessConfigRequestHeader(keys[0]))
    assert refused.value.code == ResponseCode.DELETE_ACL_CONFIG_FAILED


def test_an_update_that_cannot_be_used_changes_nothing(guarded: Guarded) -> None:
    cluster, file = guarded
    before = file.read_bytes()
    update = CreateAccessConfigRequestHeader(
        "salesdesk", "secret-of-sales", white_remote_address="somewhere"
    )
    with pytest.raises(BrokerError, match="'somewhere' is not accepted") as refused:
        ask(cluster, RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, update)
    assert refused.value.code == ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED
    assert file.read_bytes() == before
    assert is_let_in(cluster, "orders", SALES)


class FailingFiles(Files):
    """A disk that does not let files of accounts be replaced."""

    def replace(self, source: Path, target: Path) -> None:
        if target.suffix == ".yml":
            raise OSError(errno.EROFS, "read-only file system")
        super().replace(source, target)


def test_an_update_that_cannot_be_written_changes_nothing(
    rocketmq_cluster_factory: Callable[..., EmbeddedCluster], tmp_path: Path
) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(ACCOUNTS)
    cluster = rocketmq_cluster_factory(acl=file, files=FailingFiles())
    with pytest.raises(BrokerError, match=r"cannot be written: .*read-only") as refused:
        ask(cluster, RequestCode.DELETE_ACL_CONFIG, DeleteAccessConfigRequestHeader("salesdesk"))
    assert refused.value.code == ResponseCode.DELETE_ACL_CONFIG_FAILED
    assert [path.name for path in tmp_path.iterdir()] == ["plain_acl.yml"]
    assert file.read_text() == ACCOUNTS
    assert is_let_in(cluster, "orders", SALES)


class UnreadableSince(Files):
    """A disk that keeps what is written, and gives none of it back."""

    def replace(self, source: Path, target: Path) -> None:
        super().replace(source, target)
        self.unreadable = target

    def read_bytes(self, path: Path) -> bytes:
        if path == getattr(self, "unreadable", None):
            raise OSError(errno.EIO, "no reads")
        return super().read_bytes(path)


def test_an_acknowledged_change_holds_though_its_file_cannot_be_read_again(
    rocketmq_cluster_factory: Callable[..., EmbeddedCluster], tmp_path: Path
) -> None:
    """An account that was taken away was let in until the next read."""
    file = tmp_path / "plain_acl.yml"
    file.write_text(ACCOUNTS)
    cluster = rocketmq_cluster_factory(acl=file, files=UnreadableSince())
    assert is_let_in(cluster, "orders", SALES)
    ask(cluster, RequestCode.DELETE_ACL_CONFIG, DeleteAccessConfigRequestHeader("salesdesk"))
    assert not is_let_in(cluster, "orders", SALES)


def test_white_addresses_are_set_by_request_in_files_of_accounts_only(guarded: Guarded) -> None:
    cluster, file = guarded
    elsewhere = file.parent / "other.yml"
    elsewhere.write_text("{}")
    code = RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG
    with pytest.raises(BrokerError, match="is not one of the files of accounts"):
        ask(cluster, code, UpdateGlobalWhiteAddrsConfigRequestHeader("*", str(elsewhere)))
    assert elsewhere.read_text() == "{}"

    ask(cluster, code, UpdateGlobalWhiteAddrsConfigRequestHeader("127.0.0.1,10.0.0.1"))
    assert ask(cluster, RequestCode.GET_BROKER_RUNTIME_INFO, keys=None).body


def test_versions_and_accounts_are_told_as_upstream_tells_them(guarded: Guarded) -> None:
    cluster, file = guarded
    ask(
        cluster,
        RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        UpdateGlobalWhiteAddrsConfigRequestHeader("10.0.0.*", str(file)),
    )
    header = ask(cluster, RequestCode.GET_BROKER_CLUSTER_ACL_INFO, keys=SALES).header(
        GetBrokerAclConfigResponseHeader
    )
    assert json.loads(header.all_acl_file_version or "")[str(file)]["counter"] == 1
    assert json.loads(header.version)["counter"] == 1
    assert header.broker_addr == cluster.broker_addr

    body = json.loads(bytes(ask(cluster, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG).body))
    assert body["globalWhiteAddrs"] == ["10.0.0.*"]
    assert body["plainAccessConfigs"][0] == {
        "accessKey": "salesdesk", "secretKey": "secret-of-sales", "admin": False,
        "defaultTopicPerm": "DENY", "defaultGroupPerm": "SUB", "topicPerms": ["orders=PUB|SUB"],
    }  # fmt: skip


def test_without_accounts_nobody_is_asked_for_keys(
    rocketmq_cluster_factory: Callable[..., EmbeddedCluster],
) -> None:
    cluster = rocketmq_cluster_factory()
    assert ask(cluster, RequestCode.GET_BROKER_RUNTIME_INFO, keys=None).body
    with Admin(cluster.namesrv_addr) as admin:
        admin.topics.create("orders")
    with pytest.raises(BrokerError) as refused:
        ask(cluster, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)
    assert refused.value.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
