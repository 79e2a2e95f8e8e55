"""The addresses and keys of name servers and brokers: options that every format of ours has.

Pure: text in, a frozen value out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rocketstream.errors import ConfigurationError
from rocketstream.protocol.addresses import parse_addresses
from rocketstream.spark.options.parsing import bad, flag, number, required

CONNECT_OPTIONS: Final = (
    "nameServer",
    "requestTimeoutMs",
    "connectTimeoutMs",
    "retryTimeoutMs",
    "accessKey",
    "secretKey",
    "securityToken",
    "keyFile",
    "useTls",
    "tlsCaFile",
    "tlsCertFile",
    "tlsKeyFile",
    "tlsKeyPassword",
    "tlsVerify",
    "tlsCheckHostname",
)
"""Every option of a connection, spelled as documented."""


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """How a cluster is reached.

    Attributes:
        name_server: the addresses, separated by ``;``.
        request_timeout_ms: bound of one request.
        connect_timeout_ms: bound of one connect.
        retry_timeout_ms: how long failures that may pass are retried.
        access_key: the user's access key; None takes the keys of each process's own environment, if
            any.
        secret_key: the user's secret key.
        security_token: the user's token, None for none.
        key_file: a file with these three instead, at the same path on driver and executors.
        use_tls: whether all connections speak TLS.
        tls_ca_file: PEM file of trusted certificates, None for the system's.
        tls_cert_file: PEM file of this client's certificate, None for none.
        tls_key_file: PEM file of its key, None when it is in ``tls_cert_file``.
        tls_key_password: the password of the key.
        tls_verify: whether servers must show a trusted certificate.
        tls_check_hostname: whether the certificate must name the address connected to.
    """

    name_server: str
    request_timeout_ms: int
    connect_timeout_ms: int
    retry_timeout_ms: int
    access_key: str | None
    secret_key: str | None
    security_token: str | None
    key_file: str | None
    use_tls: bool
    tls_ca_file: str | None
    tls_cert_file: str | None
    tls_key_file: str | None
    tls_key_password: str | None
    tls_verify: bool
    tls_check_hostname: bool

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name_server={self.name_server!r})"


def connect_options(values: Mapping[str, str]) -> ConnectOptions:
    """Parse the options of a connection, given under their documented names.

    Raises:
        ConfigurationError: an option is missing or unusable.
    """
    _check_keys(values)
    return ConnectOptions(
        name_server=_name_server(values),
        request_timeout_ms=number(values, "requestTimeoutMs", 10_000, 1),
        connect_timeout_ms=number(values, "connectTimeoutMs", 3_000, 1),
        retry_timeout_ms=number(values, "retryTimeoutMs", 30_000, 0),
        access_key=values.get("accessKey"),
        secret_key=values.get("secretKey"),
        security_token=values.get("securityToken"),
        key_file=values.get("keyFile"),
        use_tls=_use_tls(values),
        tls_ca_file=values.get("tlsCaFile"),
        tls_cert_file=values.get("tlsCertFile"),
        tls_key_file=values.get("tlsKeyFile"),
        tls_key_password=values.get("tlsKeyPassword"),
        tls_verify=flag(values, "tlsVerify", True),
        tls_check_hostname=flag(values, "tlsCheckHostname", False),
    )


def connect_settings(values: Mapping[str, str]) -> dict[str, Any]:
    """Return the attributes of ``connect_options`` by name, for options that add to them.

    Raises:
        ConfigurationError: as ``connect_options`` does.
    """
    connect = connect_options(values)
    return {field.name: getattr(connect, field.name) for field in dataclasses.fields(connect)}


def _name_server(values: Mapping[str, str]) -> str:
    accepted = "host:port of the name server, or of several, separated by ';'"
    text = required(values, "nameServer", accepted)
    try:
        parse_addresses(text)
    except ConfigurationError:
        raise bad("nameServer", text, accepted) from None
    return text


def _check_keys(values: Mapping[str, str]) -> None:
    for name in ("accessKey", "secretKey", "securityToken"):
        if name in values and "keyFile" in values:
            raise ConfigurationError(
                f"options {name!r} and 'keyFile' are both given; give one", option=name
            )


def _use_tls(values: Mapping[str, str]) -> bool:
    used = flag(values, "useTls", False)
    for name in values:
        if name.startswith("tls") and not used:
            raise ConfigurationError(
                f"option {name!r} needs option 'useTls' to be true", option=name
            )
    for name in ("tlsKeyFile", "tlsKeyPassword"):
        if name in values and "tlsCertFile" not in values:
            raise ConfigurationError(f"option {name!r} needs option 'tlsCertFile'", option=name)
    return used
