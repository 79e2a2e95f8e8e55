"""Accounts and TLS at the command line: ``serve`` with both, and commands with keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.testing import make_test_certificates
from tests.plugins.commands import Quick

ACCOUNTS = """accounts:
- accessKey: salesdesk
  secretKey: secret-of-sales
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
- accessKey: operator
  secretKey: secret-of-operator
  admin: true
"""


def test_commands_take_keys_and_certificates_from_the_environment_or_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text(ACCOUNTS)
    keys = tmp_path / "tools.yml"
    keys.write_text("accessKey: salesdesk\nsecretKey: secret-of-sales\n")
    made = make_test_certificates(tmp_path / "certificates")
    with EmbeddedCluster(acl=accounts, tls=made.server_tls(mode="enforcing")) as cluster:
        run = Quick(cluster.namesrv_addr)
        monkeypatch.setenv("ROCKETMQ_TLS_ENABLE", "true")
        monkeypatch.setenv("ROCKETMQ_TLS_CA_FILE", str(made.ca_file))
        denied = run("topic", "create", "orders")
        assert (denied.code, "No accessKey is configured" in denied.err) == (1, True)

        monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", "operator")
        monkeypatch.setenv("ROCKETMQ_SECRET_KEY", "secret-of-operator")
        run("topic", "create", "orders").worked()

        monkeypatch.setenv("ROCKETMQ_KEY_FILE", str(keys))
        denied = run("topic", "create", "other")
        assert (denied.code, "accessKey=salesdesk is not" in denied.err) == (1, True)
        run("send", "orders", "hello").worked()
        done = run("consume", "orders", "-g", "g", "--from", "earliest", "--max", "1")
        assert done.worked().out == "hello\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--tls-mode", "enforcing"], "--tls-mode enforcing needs --tls-cert"),
        (["--tls-client-auth", "require"], "--tls-client-auth needs --tls-cert"),
        (["--host", "0.0.0.0"], "no access control"),
        (["--acl", "nowhere.yml"], "nowhere.yml"),
    ],
)
def test_serve_says_what_is_lacking(tmp_path: Path, options: list[str], said: str) -> None:
    done = Quick()("serve", "--store", str(tmp_path / "store"), *options)
    assert done.code in (1, 2)
    assert said in done.err
