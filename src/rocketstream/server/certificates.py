"""Certificates for tests, in one directory: an authority, and a server and a client it has signed.

The package ``cryptography`` makes the keys.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.errors import ConfigurationError
from rocketstream.server.store import Files
from rocketstream.server.tls import ServerTls
from rocketstream.transport.tls import client_context

if TYPE_CHECKING:
    import ssl

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    _IS_INSTALLED = True
except ImportError:  # only users who want certificates made need it
    _IS_INSTALLED = False

DAYS: Final = 365
LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_HOUR: Final = datetime.timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """PEM files in one directory.

    Attributes:
        ca_file: certificate of the authority that clients trust, and servers too where clients show
            certificates.
        cert_file: the server's certificate.
        key_file: its key.
        client_cert_file: a client's certificate.
        client_key_file: the client's key.
    """

    ca_file: Path
    cert_file: Path
    key_file: Path
    client_cert_file: Path
    client_key_file: Path

    def server_tls(self, **changes: Any) -> ServerTls:
        """Return TLS settings for servers with these files; ``changes`` are ``ServerTls``'s.

        With ``client_auth`` clients are checked against the authority.
        """
        if changes.get("client_auth", "none") != "none":
            changes.setdefault("client_ca_file", self.ca_file)
        return ServerTls(cert_file=self.cert_file, key_file=self.key_file, **changes)

    def client_context(self, *, with_certificate: bool = False) -> ssl.SSLContext:
        """Return a context for clients that trust this authority and no other.

        Args:
            with_certificate: whether to show the client's certificate.
        """
        return client_context(
            ca_file=str(self.ca_file),
            cert_file=str(self.client_cert_file) if with_certificate else None,
            key_file=str(self.client_key_file) if with_certificate else None,
            check_hostname=True,
        )


def make_test_certificates(
    directory: Path | str,
    hosts: Sequence[str] = LOOPBACK,
    clock: Clock = SYSTEM_CLOCK,
    files: Files | None = None,
) -> CertificateFiles:
    """Make an authority, a server's certificate for some hosts and a client's; valid for a year.

    Existing files are kept while they are valid for another hour and for these hosts. Anybody who
    can read the directory can pose as the server: for tests only.

    Raises:
        ConfigurationError: ``cryptography`` is not installed, or a file cannot be written.
    """
    if not _IS_INSTALLED:
        raise ConfigurationError(
            "making certificates needs the package cryptography: install rocketstream[tls]"
        )
    folder, files = Path(directory), files or Files()
    made = CertificateFiles(
        ca_file=folder / "ca.pem",
        cert_file=folder / "server.pem",
        key_file=folder / "server.key",
        client_cert_file=folder / "client.pem",
        client_key_file=folder / "client.key",
    )
    now = datetime.datetime.fromtimestamp(clock.now_ms() / 1000, datetime.UTC)
    try:
        if not _are_good(made, hosts, now, files):
            files.make_directory(folder)
            _make(made, hosts, now, files)
    except OSError as error:
        raise ConfigurationError(
            f"certificates cannot be made in {str(folder)!r}: {error}", directory=str(folder)
        ) from error
    return made


def _are_good(
    made: CertificateFiles, hosts: Iterable[str], now: datetime.datetime, files: Files
) -> bool:
    paths = (made.ca_file, made.key_file, made.client_cert_file, made.client_key_file)
    if not all(files.is_file(path) for path in (made.cert_file, *paths)):
        return False
    try:
        certificate = x509.load_pem_x509_certificate(files.read_bytes(made.cert_file))
        named = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return False
    known = {str(name) for name in named.get_values_for_type(x509.DNSName)}
    known |= {str(name) for name in named.get_values_for_type(x509.IPAddress)}
    return set(hosts) <= known and certificate.not_valid_after_utc > now + _HOUR


def _make(
    made: CertificateFiles, hosts: Sequence[str], now: datetime.datetime, files: Files
) -> None:
    # Written last: an unfinished set is replaced.
    files.unlink(made.ca_file, missing_ok=True)
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca_name = _name("rocketstream test authority")
    ca = (
        _certificate(ca_name, ca_name, ca_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), False)
        .sign(ca_key, hashes.SHA256())
    )
    both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    for name, usages, cert_file, key_file in (
        ("rocketstream test server", both, made.cert_file, made.key_file),
        ("rocketstream test client", both[1:], made.client_cert_file, made.client_key_file),
    ):
        key = ec.generate_private_key(ec.SECP256R1())
        signed = (
            _certificate(_name(name), ca_name, key.public_key(), now)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), False
            )
            .sign(ca_key, hashes.SHA256())
        )
        files.write_secret(key_file, _text_of(key))
        files.write_bytes(cert_file, signed.public_bytes(serialization.Encoding.PEM))
    files.write_bytes(made.ca_file, ca.public_bytes(serialization.Encoding.PEM))


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _HOUR)
        .not_valid_after(now + datetime.timedelta(days=DAYS))
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _text_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
