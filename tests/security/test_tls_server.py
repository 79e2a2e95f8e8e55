"""TLS of a whole embedded cluster: its three modes, clients that must show who they are."""

from __future__ import annotations

import socket
import ssl
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rocketstream import ClientConfig, Message, Producer
from rocketstream.admin import Admin
from rocketstream.errors import ConfigurationError, TransportError
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.signing import sign
from rocketstream.server.broker.acl import guard
from rocketstream.server.embedded import EmbeddedCluster, EmbeddedSettings
from rocketstream.testing import CertificateFiles, make_test_certificates
from tests.kits.peer import WAIT_S, Peer

MakeCluster = Callable[..., EmbeddedCluster]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> CertificateFiles:
    return make_test_certificates(tmp_path_factory.mktemp("certificates"))


def works(cluster: EmbeddedCluster, context: ssl.SSLContext | None) -> bool:
    """Whether a client is served by the name server, and by the broker."""
    try:
        with Admin(cluster.namesrv_addr, ssl_context=context) as admin:
            admin.brokers.all()
            admin.topics.create("orders")
    except TransportError:
        return False
    config = ClientConfig(namesrv_addr=cluster.namesrv_addr, ssl_context=context)
    with Producer("till", config=config) as producer:
        producer.send(Message("orders", b"body"))
    return True


@pytest.mark.parametrize(
    ("mode", "plain", "tls"),
    [("disabled", True, False), ("permissive", True, True), ("enforcing", False, True)],
)
def test_each_mode_serves_whom_it_says(
    rocketmq_cluster_factory: MakeCluster, files: CertificateFiles, mode: str, plain: bool,
    tls: bool,
) -> None:  # fmt: skip
    """Name server and broker alike; with ``enforcing`` the broker reaches the name server too."""
    cluster = rocketmq_cluster_factory(tls=files.server_tls(mode=mode))
    assert works(cluster, None) is plain
    assert works(cluster, files.client_context()) is tls


def test_a_client_must_show_a_certificate_where_it_is_required(
    rocketmq_cluster_factory: MakeCluster, files: CertificateFiles, tmp_path: Path
) -> None:
    tls = files.server_tls(mode="enforcing", client_auth="require")
    cluster = rocketmq_cluster_factory(tls=tls)
    strangers = make_test_certificates(tmp_path)
    stranger = files.client_context()
    stranger.load_cert_chain(strangers.client_cert_file, strangers.client_key_file)

    assert works(cluster, files.client_context(with_certificate=True))
    assert not works(cluster, files.client_context())
    assert not works(cluster, stranger)


def test_an_address_others_reach_needs_accounts_and_tls_for_everybody(
    files: CertificateFiles, tmp_path: Path
) -> None:
    accounts = tmp_path / "plain_acl.yml"
    enforcing, permissive = files.server_tls(mode="enforcing"), files.server_tls()
    for settings, lacking in (
        ({}, r"no access control \(.*\) and no TLS for everybody"),
        ({"acl": accounts}, "no TLS for everybody"),
        ({"acl": accounts, "tls": permissive}, "no TLS for everybody"),
        ({"tls": enforcing}, "no access control"),
    ):
        with pytest.raises(ConfigurationError, match=lacking):
            EmbeddedSettings(host="0.0.0.0", **settings).check()
        EmbeddedSettings(host="0.0.0.0", insecure=True, **settings).check()
    EmbeddedSettings(host="0.0.0.0", acl=accounts, tls=enforcing).check()


def test_a_certificate_that_cannot_be_used_keeps_the_cluster_from_starting(
    files: CertificateFiles, tmp_path: Path
) -> None:
    missing = tmp_path / "none.pem"
    with pytest.raises(ConfigurationError, match=r"none\.pem"):
        EmbeddedCluster(tls=files.server_tls().__class__(cert_file=missing)).start()


def test_a_certificate_that_is_no_clients_is_refused_where_clients_must_show_one(
    files: CertificateFiles, tmp_path: Path
) -> None:
    """The broker is a client of its name server."""
    strangers = make_test_certificates(tmp_path)
    tls = files.server_tls(
        mode="enforcing", client_auth="require", client_ca_file=strangers.ca_file
    )
    with pytest.raises(ConfigurationError, match="cannot reach its own name server"):
        EmbeddedCluster(tls=tls).start()


class Elsewhere(Peer):
    """A peer that signs what it asks, at another address than the server's."""

    def __init__(
        self, address: str, keys: tuple[str, str], context: ssl.SSLContext | None = None
    ) -> None:
        super().__init__(address)
        self.close()
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), WAIT_S, ("127.0.0.2", 0))
        if context is not None:
            self._socket = context.wrap_socket(self._socket, server_hostname=host)
        self._keys = keys

    def remark(self, code: RequestCode) -> str:
        ext = {"topic": "orders", "brokerName": "broker-a"}
        command = RemotingCommand(code, ext_fields=ext | sign(ext, b"", *self._keys))
        return self.answer(self.submit(command)).remark or ""


@pytest.mark.skipif(sys.platform != "linux", reason="needs a second loopback address")
def test_an_admin_is_served_where_nobody_can_see_its_signature(
    rocketmq_cluster_factory: MakeCluster, files: CertificateFiles, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """It covers neither code nor time: a question seen on its way can be sent again as a change."""
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text(
        "accounts:\n- {accessKey: operator, secretKey: secret-of-operator, admin: true}\n"
        "- {accessKey: salesdesk, secretKey: secret-of-sales}\n"
    )
    admin, sales = ("operator", "secret-of-operator"), ("salesdesk", "secret-of-sales")
    given = {"acl": accounts, "tls": files.server_tls(mode="permissive")}
    # The test's addresses are loopback; the one that differs from the server's stands for afar.
    monkeypatch.setattr(guard, "is_loopback", lambda host: False)
    cluster = rocketmq_cluster_factory(**given)
    asked = RequestCode.GET_BROKER_RUNTIME_INFO
    changes = RequestCode.WIPE_WRITE_PERM_OF_BROKER
    with Elsewhere(cluster.broker_addr, admin) as peer:
        assert "refused without TLS from another machine" in peer.remark(asked)
    with Elsewhere(cluster.namesrv_addr, admin) as peer:
        assert "refused without TLS from another machine" in peer.remark(changes)
    with Elsewhere(cluster.broker_addr, sales) as peer:
        assert peer.remark(asked) == ""
    context = files.client_context()
    for address, code in ((cluster.broker_addr, asked), (cluster.namesrv_addr, changes)):
        with Elsewhere(address, admin, context) as peer:
            assert peer.remark(code) == ""
    with Admin(cluster.namesrv_addr, access_key=admin[0], secret_key=admin[1]) as here:
        here.topics.create("orders")
    cluster = rocketmq_cluster_factory(**given, admin_without_tls=True)
    with Elsewhere(cluster.broker_addr, admin) as peer:
        assert peer.remark(asked) == ""
