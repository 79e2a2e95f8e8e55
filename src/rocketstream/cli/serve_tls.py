"""The TLS options of ``serve``, as settings of servers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from rocketstream.cli.declare import BadParameter
from rocketstream.cli.failure import say
from rocketstream.cli.serve_options import ClientAuths, TlsModes

if TYPE_CHECKING:
    from rocketstream.server.tls import ServerTls

PASSWORD_VARIABLE: Final = "ROCKETSTREAM_TLS_KEY_PASSWORD"


class TlsWishes(NamedTuple):
    """The options."""

    mode: TlsModes
    cert: Path | None
    key: Path | None
    client_auth: ClientAuths
    client_ca: Path | None
    test_certificate: Path | None


def tls_of(wishes: TlsWishes, host: str, advertise: str | None) -> ServerTls | None:
    """Return how the servers speak TLS, None when nothing about it was said.

    Raises:
        BadParameter: options that do not go together.
        ConfigurationError: certificates cannot be made.
    """
    _check(wishes)
    if wishes.test_certificate is None and wishes.cert is None:
        return None
    from rocketstream.server.certificates import LOOPBACK, make_test_certificates
    from rocketstream.server.tls import ServerTls

    cert, key, client_ca = wishes.cert, wishes.key, wishes.client_ca
    if wishes.test_certificate is not None:
        hosts = dict.fromkeys((*LOOPBACK, *filter(None, (host, advertise))))
        made = make_test_certificates(wishes.test_certificate.absolute(), tuple(hosts))
        cert, key = made.cert_file, made.key_file
        if wishes.client_auth is not ClientAuths.NONE:
            client_ca = client_ca or made.ca_file
        say(
            "certificates for tests: clients set ROCKETMQ_TLS_ENABLE=true "
            f"ROCKETMQ_TLS_CA_FILE={made.ca_file}"
        )
    assert cert is not None
    return ServerTls(
        cert_file=cert,
        key_file=key,
        key_password=os.environ.get(PASSWORD_VARIABLE) or None,
        mode=wishes.mode.value,
        client_auth=wishes.client_auth.value,
        client_ca_file=client_ca,
    )


def _check(wishes: TlsWishes) -> None:
    if wishes.cert is not None and wishes.test_certificate is not None:
        raise BadParameter("--tls-cert and --tls-test-certificate are both given; give one")
    if wishes.cert is not None or wishes.test_certificate is not None:
        if wishes.key is not None and wishes.cert is None:
            raise BadParameter("--tls-key is the key of --tls-cert, which is not given")
        return
    said = [
        name
        for name, is_said in (
            ("--tls-mode enforcing", wishes.mode is TlsModes.ENFORCING),
            ("--tls-key", wishes.key is not None),
            ("--tls-client-auth", wishes.client_auth is not ClientAuths.NONE),
            ("--tls-client-ca", wishes.client_ca is not None),
        )
        if is_said
    ]
    if said:
        raise BadParameter(f"{said[0]} needs --tls-cert, or --tls-test-certificate")
