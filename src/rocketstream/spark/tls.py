"""TLS for the connections of a read, built where it is needed, because contexts do not pickle.

The named files must be at the same path on every machine.
"""

from __future__ import annotations

import ssl

from rocketstream.spark.options import ConnectOptions
from rocketstream.transport.tls import client_context, environment_context


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
