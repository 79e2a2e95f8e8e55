"""Keys from the environment or a file: found, refused, and never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketstream import ClientConfig
from rocketstream.client.credentials import (
    Credentials,
    environment_credentials,
    read_credentials,
    signer,
)
from rocketstream.errors import ConfigurationError
from rocketstream.protocol.command import RemotingCommand

KEYS = {"ROCKETMQ_ACCESS_KEY": "salesdesk", "ROCKETMQ_SECRET_KEY": "secret-of-sales"}


@pytest.mark.parametrize(
    "text",
    [
        "accessKey: salesdesk\nsecretKey: secret-of-sales\n",
        "# mqadmin's\r\naccessKey: 'salesdesk'\r\nsecretKey: \"secret-of-sales\" # mine\r\n",
        "AccessKey=salesdesk\nSecretKey=secret-of-sales\n",
        "\ufeffsecretKey:   secret-of-sales   # mine\naccessKey: salesdesk\nother: x\n",
    ],
    ids=["plain", "quoted", "Java's", "bare with a comment"],
)
def test_a_file_of_keys_is_mqadmins(tmp_path: Path, text: str) -> None:
    file = tmp_path / "tools.yml"
    file.write_text(text, encoding="utf-8", newline="")
    assert read_credentials(file) == Credentials("salesdesk", "secret-of-sales")


def test_the_keys_of_a_file_that_is_named_come_before_those_of_variables(tmp_path: Path) -> None:
    file = tmp_path / "tools.yml"
    file.write_text("accessKey: of-file\nsecretKey: secret-of-file\nsecurityToken: token\n")
    named = {"ROCKETMQ_KEY_FILE": str(file)}
    assert environment_credentials({}) is None
    assert environment_credentials(named) == Credentials("of-file", "secret-of-file", "token")
    both = environment_credentials(named | KEYS)
    assert both == Credentials("of-file", "secret-of-file", "token")
    assert environment_credentials(KEYS) == Credentials("salesdesk", "secret-of-sales")


def test_half_a_pair_and_a_file_without_keys_are_refused_without_showing_a_secret(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigurationError, match="ROCKETMQ_ACCESS_KEY is not set") as refused:
        environment_credentials({"ROCKETMQ_SECRET_KEY": "secret-of-sales"})
    assert "secret-of-sales" not in str(refused.value)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        environment_credentials({"ROCKETMQ_KEY_FILE": str(tmp_path / "none")})
    file = tmp_path / "tools.yml"
    file.write_text("secretKey: secret-of-sales\n")
    with pytest.raises(ConfigurationError, match="does not name both keys") as refused:
        read_credentials(file)
    assert "secret-of-sales" not in str(refused.value)
    assert "secret" not in repr(Credentials("salesdesk", "secret-of-sales", "secret-token"))


def test_clients_sign_with_the_environments_keys_unless_given_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)

    def key_of(config: ClientConfig) -> str | None:
        command = RemotingCommand(105, ext_fields={"topic": "orders"})
        before = config.before_request()
        if before is not None:
            before("127.0.0.1:1", command)
        return (command.ext_fields or {}).get("AccessKey")

    assert key_of(ClientConfig()) == "salesdesk"
    assert key_of(ClientConfig(access_key="operator", secret_key="another-secret")) == "operator"
    assert key_of(ClientConfig(access_key="", secret_key="")) is None
    monkeypatch.delenv("ROCKETMQ_SECRET_KEY")
    with pytest.raises(ConfigurationError, match="ROCKETMQ_SECRET_KEY is not set"):
        signer(None, None)
