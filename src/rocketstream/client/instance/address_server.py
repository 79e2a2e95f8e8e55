"""The address server: asked by HTTP for the name servers where none is configured (C-130).

Law: one question, one answer; blocks, so it runs off the loop.
"""

from __future__ import annotations

import logging

from rocketstream.errors import ConfigurationError
from rocketstream.protocol.addresses import parse_addresses

logger = logging.getLogger("rocketstream.client")

FETCH_TIMEOUT_MS = 3_000
_ANSWER_BYTES_MAX = 64 * 1024


def fetch_name_servers(url: str, timeout_ms: int = FETCH_TIMEOUT_MS) -> list[str]:
    """Return the addresses in the first line of what ``url`` answers; none if that fails.

    Failures are logged: the caller keeps what it knows and asks again later.
    """
    # Imported here, since few clients ask an address server and all would wait for the import.
    import urllib.error
    import urllib.request
    from http.client import HTTPException

    try:
        # No proxy: the address server stands in the clients' own network.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=timeout_ms / 1000) as answer:
            text = answer.read(_ANSWER_BYTES_MAX).decode("utf-8", "replace").strip()
    except urllib.error.HTTPError as error:
        error.close()  # it is the answer, with its socket
        logger.warning("address server %s answered with status %d", url, error.code)
        return []
    except (OSError, HTTPException, ValueError) as error:  # URLError is an OSError
        logger.warning("address server %s could not be asked: %s", url, error)
        return []
    lines = text.splitlines()
    try:
        return parse_addresses(lines[0]) if lines else []
    except ConfigurationError as error:
        logger.warning("address server %s named no addresses: %s", url, error)
        return []
