"""The admin client: one object for everything asked of a cluster.

Law: life cycle only; the operations are in the modules beside it.
"""

from __future__ import annotations

import ssl
from types import TracebackType
from typing import Self

from rocketstream import limits
from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.admin.redrive import RedriveAdmin
from rocketstream.client.blocking import BlockingAdminClient

DEFAULT_TIMEOUT_MS = 5_000


class Admin(RedriveAdmin):
    """Asks a cluster about its topics and groups; blocking and to be closed.

    Args:
        namesrv_addr: ``host:port``, several separated by ``;``; None takes NAMESRV_ADDR.
        timeout_ms: bound of one request; GET_CONSUME_STATS gets three times that (C-525).
        access_key: ACL user, with ``secret_key``.
        secret_key: ACL secret.
        security_token: token of a temporary ACL user.
        connect_timeout_ms: bound of one connect.
        ssl_context: TLS for every connection, None for plain.
        clock: where deadlines come from.

    Example:
        >>> with Admin("127.0.0.1:9876") as admin:          # doctest: +SKIP
        ...     for row in admin.group_lag("orders"):
        ...         print(row.topic, row.queue_id, row.lag)
    """

    def __init__(
        self,
        namesrv_addr: str | None = None,
        *,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        access_key: str | None = None,
        secret_key: str | None = None,
        security_token: str | None = None,
        connect_timeout_ms: int = limits.CONNECT_TIMEOUT_MS,
        ssl_context: ssl.SSLContext | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        client = BlockingAdminClient(
            namesrv_addr,
            timeout_ms=timeout_ms,
            connect_timeout_ms=connect_timeout_ms,
            ssl_context=ssl_context,
            access_key=access_key,
            secret_key=secret_key,
            security_token=security_token,
        )
        super().__init__(client, timeout_ms, clock)
        self._producer_settings = {
            "namesrv_addr": ";".join(client.name_servers),
            "access_key": access_key,
            "secret_key": secret_key,
            "security_token": security_token,
            "connect_timeout_ms": connect_timeout_ms,
            "ssl_context": ssl_context,
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection; calling it again does nothing."""
        self._wire.close()
