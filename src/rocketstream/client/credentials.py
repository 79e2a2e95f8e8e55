"""Keys of a client, from arguments or the environment, and the signature of each request.

Law: no key is ever in a text, a repr or a command line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from rocketstream.errors import ConfigurationError

if TYPE_CHECKING:
    from rocketstream.protocol.command import RemotingCommand

ACCESS_KEY_VARIABLE: Final = "ROCKETMQ_ACCESS_KEY"
SECRET_KEY_VARIABLE: Final = "ROCKETMQ_SECRET_KEY"
SECURITY_TOKEN_VARIABLE: Final = "ROCKETMQ_SECURITY_TOKEN"
KEY_FILE_VARIABLE: Final = "ROCKETMQ_KEY_FILE"
FILE_BYTES_MAX: Final = 65_536
_LINE: Final = re.compile(r"\s*(access_?key|secret_?key|security_?token)\s*[:=](.*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Credentials:
    """The keys of an account.

    Attributes:
        access_key: its name.
        secret_key: what it signs with.
        security_token: of a temporary account.
    """

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)


def environment_credentials(environment: Mapping[str, str] | None = None) -> Credentials | None:
    """Return the keys of the environment, None when it has none.

    They are in the file ROCKETMQ_KEY_FILE where one is named; else in ROCKETMQ_ACCESS_KEY and
    ROCKETMQ_SECRET_KEY, with ROCKETMQ_SECURITY_TOKEN where there is one.

    Args:
        environment: instead of this process's own.

    Raises:
        ConfigurationError: one of the two keys is missing, or the file cannot be used.
    """
    get = (os.environ if environment is None else environment).get
    path = get(KEY_FILE_VARIABLE)
    if path:
        return read_credentials(path)
    access_key, secret_key = get(ACCESS_KEY_VARIABLE), get(SECRET_KEY_VARIABLE)
    token = get(SECURITY_TOKEN_VARIABLE)
    if access_key and secret_key:
        return Credentials(access_key, secret_key, token or None)
    if access_key or secret_key or token:
        missing = SECRET_KEY_VARIABLE if access_key else ACCESS_KEY_VARIABLE
        raise ConfigurationError(
            f"{ACCESS_KEY_VARIABLE} and {SECRET_KEY_VARIABLE} go together; {missing} is not set"
        )
    return None


def read_credentials(path: str | os.PathLike[str]) -> Credentials:
    """Return the keys a file holds: mqadmin's ``tools.yml`` (``accessKey: NAME``), or the file of
    Java's ``rocketmq.client.keyFile`` (``AccessKey=NAME``).

    Raises:
        ConfigurationError: it cannot be read, or has no such lines; the text names the file.
    """
    name = os.path.expanduser(path)
    try:
        with open(name, "rb") as file:
            text = file.read(FILE_BYTES_MAX).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigurationError(
            f"the key file {name!r} cannot be read: {why}", file=name
        ) from None
    found = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is not None:
            found[match[1].lower().replace("_", "")] = _scalar(match[2])
    access_key, secret_key = found.get("accesskey"), found.get("secretkey")
    if not access_key or not secret_key:
        raise ConfigurationError(
            f"the key file {name!r} does not name both keys: it needs two lines, accessKey: ... "
            "and secretKey: ... (or with =)",
            file=name,
        )
    return Credentials(access_key, secret_key, found.get("securitytoken") or None)


def signer(
    access_key: str | None, secret_key: str | None, security_token: str | None = None
) -> Callable[[str, RemotingCommand], None] | None:
    """Return the hook that signs each request, None without keys.

    Where none is given, those of the environment are taken (``environment_credentials``); an
    empty text for a key wants none.

    Raises:
        ConfigurationError: only one of the two keys is given, or the environment's cannot be used.
    """
    if access_key is None and secret_key is None:
        found = environment_credentials()
        if found is not None:
            access_key, secret_key = found.access_key, found.secret_key
            security_token = security_token or found.security_token
    if not access_key and not secret_key:
        return None
    if not access_key or not secret_key:
        missing = "secret_key" if access_key else "access_key"
        raise ConfigurationError(f"access_key and secret_key go together; {missing} is missing")
    from rocketstream.protocol.signing import sign  # hashing is not needed without keys

    user, secret = access_key, secret_key

    def sign_request(_address: str, command: RemotingCommand) -> None:
        ext = command.ext_fields if command.ext_fields is not None else {}
        # A retried command already carries a signature; it must not be signed over.
        ext = {name: value for name, value in ext.items() if name != "Signature"}
        command.ext_fields = {
            **ext,
            **sign(ext, bytes(command.body), user, secret, security_token),
        }

    return sign_request


def _scalar(text: str) -> str:
    """Return a value as YAML has it on one line: bare up to a comment, or in quotes."""
    text = text.strip()
    for quote in ("'", '"'):
        if text.startswith(quote):
            return text[1:].partition(quote)[0]
    return text.partition(" #")[0].strip()
