"""TLS settings of servers: certificate, mode, and whether clients must show certificates.

The transport decides by which byte TLS begins.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rocketstream.errors import ConfigurationError
from rocketstream.transport.tls import (
    TLS_MODES,
    ClientAuth,
    TlsMode,
    client_context,
    load_trusted,
    server_context,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """TLS settings of servers (upstream's tls.server.*).

    Attributes:
        cert_file: PEM file with the certificate (chain).
        key_file: PEM file with its private key; None when it is in ``cert_file``.
        key_password: password of the private key.
        mode: ``permissive`` accepts TLS and plain connections on the same port, ``enforcing`` only
            TLS, ``disabled`` only plain ones (tls.server.mode).
        client_auth: whether clients ``none``, ``optional`` or ``require`` show a certificate
            (tls.server.need.client.auth). A certificate that is shown is always verified; upstream
            does so only with tls.server.authClient.
        client_ca_file: PEM file with the certificates clients are checked against; None takes the
            system's authorities (tls.server.trustCertPath).
    """

    cert_file: str | Path
    key_file: str | Path | None = None
    key_password: str | None = field(default=None, repr=False)
    mode: TlsMode = "permissive"
    client_auth: ClientAuth = "none"
    client_ca_file: str | Path | None = None

    def check(self) -> None:
        """Check the values, as far as possible without reading a file.

        Raises:
            ConfigurationError: the mode is unknown, or ``client_ca_file`` is given although no
                client is asked for a certificate.
        """
        if self.mode not in TLS_MODES:
            raise ConfigurationError(
                f"the TLS mode {self.mode!r} is not accepted: give one of {', '.join(TLS_MODES)}"
            )
        if self.client_ca_file is not None and self.client_auth == "none":
            raise ConfigurationError(
                "client_ca_file is given, but no client is asked for a certificate: give "
                "client_auth='require' or 'optional' (--tls-client-auth)"
            )

    def context(self) -> ssl.SSLContext:
        """Return the context of a server.

        Raises:
            ConfigurationError: a file cannot be read, or key and certificate do not match.
        """
        return server_context(
            str(self.cert_file),
            _path(self.key_file),
            key_password=self.key_password,
            client_auth=self.client_auth,
            client_ca_file=_path(self.client_ca_file),
        )

    def own_client_context(self) -> ssl.SSLContext | None:
        """Return the context for connections to the server's own name server; None for plain ones.

        It trusts the server's own certificate, and shows it: where clients must show a certificate,
        the server's must be valid for a client too.

        Raises:
            ConfigurationError: as in ``context``, or the two contexts would refuse each other.
        """
        if self.mode != "enforcing":
            return None
        cert_file = str(self.cert_file)
        context = client_context(
            ca_file=cert_file,
            cert_file=cert_file,
            key_file=_path(self.key_file),
            key_password=self.key_password,
        )
        # The certificate itself is trusted, whichever authority signed it.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        if self.client_ca_file is not None:
            load_trusted(context, _path(self.client_ca_file))
        try:
            _shake_hands(self.context(), context)
        except ssl.SSLError as error:
            raise ConfigurationError(
                f"the broker cannot reach its own name server with the certificate {cert_file!r} "
                f"({error.reason}): it shows it as a client too, so it must be one of "
                "--tls-client-ca where --tls-client-auth asks for that, and its extended key "
                "usage, where it has some, must name clientAuth",
                file=cert_file,
            ) from error
        return context


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Make two contexts shake hands in memory; raises ssl.SSLError when either refuses."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    waiting = [
        client.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(_FLIGHTS_MAX):
        for side in list(waiting):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(side)
        if not waiting:
            return
    raise ssl.SSLError("the handshake did not end")


_FLIGHTS_MAX: Final = 10


def _path(path: str | Path | None) -> str | None:
    return None if path is None else str(path)
