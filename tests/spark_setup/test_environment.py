"""Keys and TLS of the driver's environment travel to executors, which have another."""

from __future__ import annotations

import pytest

from rocketstream.errors import ConfigurationError
from rocketstream.spark.connections import _TLS, with_environment
from rocketstream.spark.options.connecting import CONNECT_OPTIONS

BOTH = {"accessKey": "desk", "secretKey": "s=e:cret"}
GIVEN = {"nameServer": "127.0.0.1:1"}


def test_spark_gets_the_keys_of_the_environment_since_its_executors_have_another() -> None:
    named = {"ROCKETMQ_ACCESS_KEY": "desk", "ROCKETMQ_SECRET_KEY": "s=e:cret"}
    assert with_environment(GIVEN, {}) == GIVEN
    assert with_environment(GIVEN, named) == {**BOTH, **GIVEN}
    named["ROCKETMQ_SECURITY_TOKEN"] = "t"
    assert with_environment(GIVEN, named) == {**BOTH, "securityToken": "t", **GIVEN}


@pytest.mark.parametrize("own", [{"keyFile": "f"}, {"accessKey": "a", "secretKey": "b"}])
def test_keys_given_to_spark_are_not_mixed_with_the_environments(own: dict[str, str]) -> None:
    named = {
        "ROCKETMQ_ACCESS_KEY": "desk",
        "ROCKETMQ_SECRET_KEY": "s",
        "ROCKETMQ_SECURITY_TOKEN": "t",
    }
    assert with_environment(own, named) == own


def test_spark_trusts_the_certificates_the_environment_names() -> None:
    named = {"ROCKETMQ_TLS_ENABLE": "true", "ROCKETMQ_TLS_CA_FILE": "ca.pem"}
    found = with_environment(GIVEN, named)
    assert found == {"useTls": "true", "tlsCaFile": "ca.pem", **GIVEN}
    assert with_environment({"useTls": "false"}, named) == {"useTls": "false"}
    for name in set(found) | set(_TLS):
        assert name in CONNECT_OPTIONS


def test_half_an_account_is_refused_before_spark_starts() -> None:
    with pytest.raises(ConfigurationError, match="ROCKETMQ_SECRET_KEY is not set"):
        with_environment(GIVEN, {"ROCKETMQ_ACCESS_KEY": "desk"})
