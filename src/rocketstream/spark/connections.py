"""The connections of a read, to name servers and to brokers.

Law: options in, clients and pools out, each for its caller to close; nothing is asked here.
"""

from __future__ import annotations

from rocketstream.client.blocking import BlockingAdminClient, signer
from rocketstream.spark.options import ConnectOptions
from rocketstream.spark.tls import tls_context
from rocketstream.transport.blocking import BlockingConnection, BlockingPool


def admin_client(options: ConnectOptions) -> BlockingAdminClient:
    """Return a client for the questions of a read; close it."""
    return BlockingAdminClient(
        options.name_server,
        timeout_ms=options.request_timeout_ms,
        connect_timeout_ms=options.connect_timeout_ms,
        access_key=options.access_key,
        secret_key=options.secret_key,
        security_token=options.security_token,
        ssl_context=tls_context(options),
    )


def new_pool(options: ConnectOptions) -> BlockingPool:
    """Return connections for some options; close it."""
    secrets = (options.access_key, options.secret_key, options.security_token)
    return BlockingPool(
        connect_timeout_ms=options.connect_timeout_ms,
        ssl_context=tls_context(options),
        before_request=signer(*secrets),
    )


def new_connection(options: ConnectOptions, address: str) -> BlockingConnection:
    """Return one connection for requests that stay under way; close it.

    Raises:
        ConnectError: there is none to be had.
    """
    secrets = (options.access_key, options.secret_key, options.security_token)
    return BlockingConnection(
        address,
        connect_timeout_ms=options.connect_timeout_ms,
        ssl_context=tls_context(options),
        before_request=signer(*secrets),
    )
