"""The keys and TLS settings in a driver's environment, as options: executors have another one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from rocketstream.client.credentials import environment_credentials
from rocketstream.transport.tls import is_tls_wanted

_KEYS: Final = ("accessKey", "secretKey", "keyFile")
_TLS: Final = {
    "tlsCaFile": "ROCKETMQ_TLS_CA_FILE",
    "tlsCertFile": "ROCKETMQ_TLS_CERT_FILE",
    "tlsKeyFile": "ROCKETMQ_TLS_KEY_FILE",
    "tlsKeyPassword": "ROCKETMQ_TLS_KEY_PASSWORD",
    "tlsVerify": "ROCKETMQ_TLS_VERIFY",
    "tlsCheckHostname": "ROCKETMQ_TLS_CHECK_HOSTNAME",
}


def with_environment(
    given: Mapping[str, str], environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return a source's or sink's options plus the keys and TLS settings of the environment.

    Keys or TLS settings in ``given`` are left as they are.

    Args:
        given: options of ``format("rocketmq")``.
        environment: the environment variables; by default those of this process.

    Raises:
        ConfigurationError: the environment's keys or its switch for TLS cannot be used.
    """
    environment = os.environ if environment is None else environment
    found: dict[str, str] = {}
    keys = None if any(name in given for name in _KEYS) else environment_credentials(environment)
    if keys is not None:
        found |= {"accessKey": keys.access_key, "secretKey": keys.secret_key}
        found |= {"securityToken": keys.security_token} if keys.security_token else {}
    if "useTls" not in given and is_tls_wanted(environment):
        found["useTls"] = "true"
        found |= {option: text for option, name in _TLS.items() if (text := environment.get(name))}
    return {**found, **given}
