"""The ACL signature of a request: HMAC-SHA1 over its ext values and body.

Pure: bytes in, signature out; the broker decides who may do what.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from typing import Final

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
SECURITY_TOKEN: Final = "SecurityToken"
UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"


def sign(
    ext: Mapping[str, str],
    body: bytes | memoryview,
    access_key: str,
    secret_key: str,
    security_token: str | None = None,
    *,
    exclude: frozenset[str] = frozenset(),
) -> dict[str, str]:
    """Return the entries to add to the ext map: AccessKey, Signature and, if given, SecurityToken.

    Args:
        ext: the final ext map without these entries; changing it afterwards breaks the signature.
        body: payload, empty for none.
        exclude: names left out of the content; ``{"_UNIQUE_KEY_QUERY"}`` for brokers before 5.0.
    """
    added = {ACCESS_KEY: access_key}
    if security_token is not None:
        added[SECURITY_TOKEN] = security_token
    added[SIGNATURE] = _signature({**ext, **added}, body, secret_key, exclude)
    return added


def unsigned(ext: Mapping[str, str]) -> dict[str, str]:
    """Return an ext map without what ``sign`` added: a request as it may be passed on.

    A signature says neither code nor time: who is handed one can ask for other things with it.
    """
    return {
        name: value
        for name, value in ext.items()
        if name not in (ACCESS_KEY, SIGNATURE, SECURITY_TOKEN)
    }


def verify(ext: Mapping[str, str], body: bytes | memoryview, secret_key: str) -> bool:
    """Return whether the Signature of an ext map is right.

    A query by unique key may be signed with or without ``_UNIQUE_KEY_QUERY``: clients sign it,
    4.9.8 brokers leave it out, so both are accepted.
    """
    given = ext.get(SIGNATURE)
    if given is None:
        return False
    claimed = given.encode("utf-8", "surrogatepass")
    choices = [frozenset[str]()]
    if UNIQUE_KEY_QUERY in ext:
        choices.append(frozenset({UNIQUE_KEY_QUERY}))
    matches = [
        hmac.compare_digest(claimed, _signature(ext, body, secret_key, exclude).encode())
        for exclude in choices
    ]
    return any(matches)


def signed_content(
    ext: Mapping[str, str], body: bytes | memoryview, exclude: frozenset[str] = frozenset()
) -> bytes:
    """Return the bytes that are signed: ext values in the order of their names, then the body."""
    names = [name for name in ext if name != SIGNATURE and name not in exclude]
    # Java compares UTF-16 units; big-endian bytes sort the same way.
    names.sort(key=lambda name: name.encode("utf-16-be", "surrogatepass"))
    return b"".join([ext[name].encode("utf-8", "replace") for name in names]) + body


def _signature(
    ext: Mapping[str, str], body: bytes | memoryview, secret_key: str, exclude: frozenset[str]
) -> str:
    content = signed_content(ext, body, exclude)
    return base64.b64encode(hmac.digest(secret_key.encode(), content, hashlib.sha1)).decode()
