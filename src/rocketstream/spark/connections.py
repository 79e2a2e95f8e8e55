"""The connections of a read, to name servers and to brokers, with the keys and TLS they need.

Options in, clients and pools out, each for its caller to close; no request is sent here. Keys and
TLS settings of a driver's environment become options: executors have another environment.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from typing import Final

from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.client.credentials import (
    KEY_FILE_VARIABLE,
    environment_credentials,
    read_credentials,
    signer,
)
from rocketstream.spark.options import ConnectOptions
from rocketstream.transport.blocking_connection import BlockingConnection
from rocketstream.transport.blocking_pool import BlockingPool
from rocketstream.transport.tls import client_context, environment_context, is_tls_wanted

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


def tls_context(options: ConnectOptions) -> ssl.SSLContext | None:
    """Return a context for name servers and brokers; None for plain connections.

    Without the option ``useTls`` the environment of this process decides (ROCKETMQ_TLS_ENABLE).

    Raises:
        ConfigurationError: a file cannot be read here, or key and certificate do not match.
    """
    if not options.use_tls:
        return environment_context()
    return client_context(
        ca_file=options.tls_ca_file,
        cert_file=options.tls_cert_file,
        key_file=options.tls_key_file,
        key_password=options.tls_key_password,
        verify=options.tls_verify,
        check_hostname=options.tls_check_hostname,
    )


def tls_settings(options: ConnectOptions) -> tuple[object, ...]:
    """Return the settings two reads must have in common to share connections."""
    return (
        options.use_tls,
        options.tls_ca_file,
        options.tls_cert_file,
        options.tls_key_file,
        options.tls_key_password,
        options.tls_verify,
        options.tls_check_hostname,
    )


def file_marks(options: ConnectOptions) -> tuple[object, ...]:
    """Return what tells the files of keys and certificates from those that take their places.

    Files of the options and of this process's environment count. One that is not there is told by
    whoever reads it.
    """
    variables = (KEY_FILE_VARIABLE, *(name for name in _TLS.values() if name.endswith("_FILE")))
    given = (options.key_file, options.tls_ca_file, options.tls_cert_file, options.tls_key_file)
    paths = (*given, *map(os.environ.get, variables))
    return tuple(_file_mark(path) for path in paths if path)


def _file_mark(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(os.path.expanduser(path))
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def secrets_of(options: ConnectOptions) -> tuple[str | None, str | None, str | None]:
    """Return access key, secret key and token; a key file is read where they are needed.

    Raises:
        ConfigurationError: the file cannot be used on this machine.
    """
    if options.key_file is None:
        return options.access_key, options.secret_key, options.security_token
    found = read_credentials(options.key_file)
    return found.access_key, found.secret_key, found.security_token


def admin_client(options: ConnectOptions) -> BlockingAdminClient:
    """Return a client for the questions of a read, to be closed."""
    access_key, secret_key, security_token = secrets_of(options)
    return BlockingAdminClient(
        options.name_server,
        timeout_ms=options.request_timeout_ms,
        connect_timeout_ms=options.connect_timeout_ms,
        access_key=access_key,
        secret_key=secret_key,
        security_token=security_token,
        ssl_context=tls_context(options),
    )


def new_pool(options: ConnectOptions) -> BlockingPool:
    """Return a pool of connections for some options, to be closed."""
    return BlockingPool(
        connect_timeout_ms=options.connect_timeout_ms,
        ssl_context=tls_context(options),
        before_request=signer(*secrets_of(options)),
    )


def new_connection(options: ConnectOptions, address: str) -> BlockingConnection:
    """Return one connection for requests that stay under way, to be closed.

    Raises:
        ConnectError: no connection can be made.
    """
    return BlockingConnection(
        address,
        connect_timeout_ms=options.connect_timeout_ms,
        ssl_context=tls_context(options),
        before_request=signer(*secrets_of(options)),
    )
