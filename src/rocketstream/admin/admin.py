"""The admin client: one object for all operations on a cluster.

The operations are in the modules beside it.
"""

from __future__ import annotations

import functools
import ssl
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar

from rocketstream import limits
from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.admin.changes.transfer import TransferAdmin
from rocketstream.admin.cluster.brokers import BrokerAdmin
from rocketstream.admin.consumers.members import MemberAdmin
from rocketstream.admin.consumers.why import WhyAdmin
from rocketstream.admin.letters.causes import LetterAdmin
from rocketstream.admin.messages.masking import Masking
from rocketstream.admin.messages.search import SearchAdmin
from rocketstream.admin.messages.tail import TailAdmin
from rocketstream.admin.messages.tracing import TraceAdmin
from rocketstream.admin.messages.tracks import TrackAdmin
from rocketstream.admin.progress.overview import ProgressAdmin
from rocketstream.admin.safety.audit import AuditLog
from rocketstream.admin.safety.gate import ChangeGate
from rocketstream.checks import check_call, check_range, checked
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.errors import ClientStateError

DEFAULT_TIMEOUT_MS = 5_000

A = TypeVar("A", bound="type[Admin]")


def _looks_first(cls: A) -> A:
    """Check the arguments of every operation first, and that the Admin is open."""
    for name in dir(cls):
        method = getattr(cls, name)
        if not name.startswith("_") and callable(method) and name != "close":
            setattr(cls, name, _operation(method))
    return cls


def _operation(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def operation(self: Admin, *args: Any, **kwargs: Any) -> Any:
        check_call(method, (self, *args), kwargs)
        if self._is_closed:
            raise ClientStateError("this Admin is closed; make a new one")
        return method(self, *args, **kwargs)

    return operation


@_looks_first
class Admin(
    LetterAdmin,
    SearchAdmin,
    TailAdmin,
    TrackAdmin,
    TraceAdmin,
    WhyAdmin,
    MemberAdmin,
    ProgressAdmin,
    TransferAdmin,
    BrokerAdmin,
):
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
        audit: the file where every change is written down before and after; None writes nothing.
            The command line, the dashboard and the agents' server always pass one.
        read_only: refuse every operation that changes something (``ReadOnlyError``).
        masking: which parts of messages are hidden; None takes the rules of the file that the
            environment variable ROCKETSTREAM_MASK names, if it is set.

    Every operation raises ConfigurationError, before it asks anything, for an argument that is not
    of the kind it is declared with, and ClientStateError once the Admin is closed.

    Example:
        >>> with Admin("127.0.0.1:9876") as admin:          # doctest: +SKIP
        ...     for row in admin.group_lag("orders"):
        ...         print(row.topic, row.queue_id, row.lag)
    """

    _is_closed = False

    @checked
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
        audit: AuditLog | None = None,
        read_only: bool = False,
        masking: Masking | None = None,
    ) -> None:
        check_range("timeout_ms", timeout_ms, 1)
        check_range("connect_timeout_ms", connect_timeout_ms, 1)
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
        self._changes = ChangeGate(client, timeout_ms, audit, read_only=read_only)
        self._masking = masking
        self._producer_settings = {
            "namesrv_addr": ";".join(client.name_servers),
            "access_key": access_key,
            "secret_key": secret_key,
            "security_token": security_token,
            "connect_timeout_ms": connect_timeout_ms,
            "ssl_context": ssl_context,
        }

    def __repr__(self) -> str:
        servers = self._producer_settings["namesrv_addr"]
        return f"Admin(namesrv_addr={servers!r}, read_only={self._changes.read_only})"

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
        """Close every connection; calling it again does nothing, any other call raises."""
        self._is_closed = True
        self._wire.close()
