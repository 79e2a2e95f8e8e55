"""SSL contexts for both roles.

Law: without TLS ``ssl`` is not imported, since the import takes longer than a typical command. The
server decides by which byte TLS begins.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal

from rocketstream.errors import ConfigurationError

if TYPE_CHECKING:
    import ssl

TlsMode = Literal["disabled", "permissive", "enforcing"]
ClientAuth = Literal["none", "optional", "require"]

TLS_VARIABLE: Final = "ROCKETMQ_TLS_ENABLE"
_VARIABLE_PREFIX: Final = "ROCKETMQ_TLS_"

TLS_MODES: Final = ("disabled", "permissive", "enforcing")

_CLIENT_AUTH = {"none": "CERT_NONE", "optional": "CERT_OPTIONAL", "require": "CERT_REQUIRED"}


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
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = verify and check_hostname
    context.verify_mode = ssl.CERT_REQUIRED if verify else ssl.CERT_NONE
    if verify:
        load_trusted(context, ca_file)
    if cert_file is not None:
        _load_own(context, cert_file, key_file, key_password)
    return context


def environment_context(environment: Mapping[str, str] | None = None) -> ssl.SSLContext | None:
    """Return a context for connecting as the environment says; None when TLS is not switched on.

    ROCKETMQ_TLS_ENABLE switches it on; ROCKETMQ_TLS_CA_FILE, _CERT_FILE, _KEY_FILE and
    _KEY_PASSWORD, _VERIFY (true unless false) and _CHECK_HOSTNAME are ``client_context``'s.

    Args:
        environment: used instead of this process's own.

    Raises:
        ConfigurationError: a file cannot be read, or a switch is neither true nor false.
    """
    environment = os.environ if environment is None else environment
    return settings_context(environment) if is_tls_wanted(environment) else None


def is_tls_wanted(environment: Mapping[str, str]) -> bool:
    """Return whether ROCKETMQ_TLS_ENABLE switches TLS on.

    Raises:
        ConfigurationError: it is neither true nor false.
    """
    return _switch(environment, "ENABLE", False)


def settings_context(environment: Mapping[str, str] | None = None) -> ssl.SSLContext:
    """Return the context of ``environment_context``, whether TLS is switched on or not.

    Raises:
        ConfigurationError: a file cannot be read, or a switch is neither true nor false.
    """
    environment = os.environ if environment is None else environment

    def text(name: str) -> str | None:
        return environment.get(_VARIABLE_PREFIX + name) or None

    return client_context(
        ca_file=text("CA_FILE"),
        cert_file=text("CERT_FILE"),
        key_file=text("KEY_FILE"),
        key_password=text("KEY_PASSWORD"),
        verify=_switch(environment, "VERIFY", True),
        check_hostname=_switch(environment, "CHECK_HOSTNAME", False),
    )


def _switch(environment: Mapping[str, str], name: str, default: bool) -> bool:
    text = environment.get(_VARIABLE_PREFIX + name, "").strip().lower()
    if text not in ("", "true", "false"):
        raise ConfigurationError(
            f"environment variable {_VARIABLE_PREFIX}{name} must be true or false, not {text!r}"
        )
    return text == "true" if text else default


_NOT_TLS: Final = frozenset(
    {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNEXPECTED_EOF_WHILE_READING", "HTTP_REQUEST"}
)
"""How OpenSSL calls bytes other than TLS's, and a peer that sends nothing."""


def is_no_tls(error: OSError) -> bool:
    """Whether a failed connect suggests that the peer does not speak TLS.

    Args:
        error: the error of connecting and the handshake, or of the handshake alone.
    """
    reason = getattr(error, "reason", None)
    return reason in _NOT_TLS or isinstance(error, ConnectionResetError | ConnectionAbortedError)


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
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_own(context, cert_file, key_file, key_password)
    context.verify_mode = ssl.VerifyMode[_CLIENT_AUTH[client_auth]]
    if client_auth != "none":
        load_trusted(context, client_ca_file)
    return context


def load_trusted(context: ssl.SSLContext, ca_file: str | None) -> None:
    """Make a context trust the certificates of a PEM file, or the system's without one.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    if ca_file is None:
        context.load_default_certs()
        return
    try:
        context.load_verify_locations(cafile=ca_file)
    except OSError as error:  # ssl.SSLError is an OSError
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
