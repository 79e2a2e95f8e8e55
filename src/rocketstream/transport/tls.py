"""SSL contexts for both roles (W 1.6).

Law: only builds contexts; which byte starts TLS is the server's business.
"""

from __future__ import annotations

import ssl
from typing import Literal

from rocketstream.errors import ConfigurationError

TlsMode = Literal["disabled", "permissive", "enforcing"]
ClientAuth = Literal["none", "optional", "require"]

_CLIENT_AUTH = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "require": ssl.CERT_REQUIRED,
}


def client_context(
    *,
    ca_file: str | None = None,
    cert_file: str | None = None,
    key_file: str | None = None,
    key_password: str | None = None,
    verify: bool = True,
    check_hostname: bool = False,
) -> ssl.SSLContext:
    """Return a context for connecting to name servers and brokers.

    Args:
        ca_file: PEM file with the certificates to trust; without it the system's are trusted.
        cert_file: PEM file with this client's certificate, when the server asks for one.
        key_file: PEM file with its private key, when it is not in ``cert_file``.
        key_password: password of the private key.
        verify: whether the server must show a trusted certificate. Upstream clients in their
            default test mode do not ask; that protects against listeners only.
        check_hostname: whether the certificate must name the address connected to. Upstream never
            checks, since brokers are reached by addresses their certificates do not name.

    Raises:
        ConfigurationError: a file cannot be read, or key and certificate do not belong together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = verify and check_hostname
    context.verify_mode = ssl.CERT_REQUIRED if verify else ssl.CERT_NONE
    if verify:
        _load_trusted(context, ca_file)
    if cert_file is not None:
        _load_own(context, cert_file, key_file, key_password)
    return context


def server_context(
    cert_file: str,
    key_file: str | None = None,
    *,
    key_password: str | None = None,
    client_auth: ClientAuth = "none",
    client_ca_file: str | None = None,
) -> ssl.SSLContext:
    """Return a context for a server that shows the certificate of ``cert_file``.

    Args:
        cert_file: PEM file with the certificate (chain).
        key_file: PEM file with its private key, when it is not in ``cert_file``.
        key_password: password of the private key.
        client_auth: whether clients may or must show a certificate.
        client_ca_file: PEM file with the certificates clients are checked against.

    Raises:
        ConfigurationError: a file cannot be read, or ``client_auth`` is unknown.
    """
    if client_auth not in _CLIENT_AUTH:
        raise ConfigurationError(
            f"client_auth={client_auth!r}: give one of {', '.join(_CLIENT_AUTH)}",
            client_auth=client_auth,
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_own(context, cert_file, key_file, key_password)
    context.verify_mode = _CLIENT_AUTH[client_auth]
    if client_auth != "none":
        _load_trusted(context, client_ca_file)
    return context


def _load_trusted(context: ssl.SSLContext, ca_file: str | None) -> None:
    if ca_file is None:
        context.load_default_certs()
        return
    try:
        context.load_verify_locations(cafile=ca_file)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigurationError(
            f"cannot load trusted certificates from {ca_file!r}: {error}; give a PEM file",
            file=ca_file,
        ) from error


def _load_own(
    context: ssl.SSLContext, cert_file: str, key_file: str | None, key_password: str | None
) -> None:
    try:
        context.load_cert_chain(cert_file, key_file, key_password)
    except OSError as error:
        raise ConfigurationError(
            f"cannot load certificate {cert_file!r} with key {key_file or cert_file!r}: {error};"
            " give PEM files that belong together",
            file=cert_file,
        ) from error
