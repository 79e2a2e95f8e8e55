"""The connections of a read, to name servers and to brokers.

Options in, clients and pools out, each for its caller to close; no request is sent here.
"""

from __future__ import annotations

from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.client.credentials import read_credentials, signer
from rocketstream.spark.options import ConnectOptions
from rocketstream.spark.tls import tls_context
from rocketstream.transport.blocking_connection import BlockingConnection
from rocketstream.transport.blocking_pool import BlockingPool


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
