"""The admin client: one object for all operations on a cluster.

The operations are in the services beside it; each is made, and its module imported, on first use.
"""

from __future__ import annotations

import functools
import ssl
from typing import TYPE_CHECKING, Self

from rocketstream import limits
from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.admin.service import Reach
from rocketstream.checks import check_range, checked
from rocketstream.client.admin.blocking import BlockingAdminClient

if TYPE_CHECKING:
    from rocketstream.admin.changes.service import Changes
    from rocketstream.admin.cluster import Brokers, Cluster, Producers
    from rocketstream.admin.groups import Groups
    from rocketstream.admin.letters.service import Letters
    from rocketstream.admin.messages.masking import Masking
    from rocketstream.admin.messages.service import Messages
    from rocketstream.admin.safety import AuditLog
    from rocketstream.admin.service import SweepMemory
    from rocketstream.admin.topics import Topics

DEFAULT_TIMEOUT_MS = 5_000


class Admin:
    """Asks a cluster about its topics and groups; blocking and to be closed.

    Args:
        namesrv_addr: ``host:port``, several separated by ``;``; None takes NAMESRV_ADDR.
        timeout_ms: bound of one request; GET_CONSUME_STATS gets three times that (C-525).
        access_key: ACL user, with ``secret_key``.
        secret_key: ACL secret.
        security_token: token of a temporary ACL user.
        connect_timeout_ms: bound of one connect.
        ssl_context: TLS for every connection, None for plain.
        audit: the file where every change is written down before and after; None writes nothing.
            The command line, the dashboard and the agents' server always pass one.
        read_only: refuse every operation that changes something (``ReadOnlyError``).
        masking: which parts of messages are hidden; None takes the rules of the file that the
            environment variable ROCKETSTREAM_MASK names, if it is set.

    Every operation raises ConfigurationError, before it asks anything, for an argument that is not
    of the kind it is declared with, and ClientStateError once the Admin is closed.

    Example:
        >>> with Admin("127.0.0.1:9876") as admin:          # doctest: +SKIP
        ...     for row in admin.groups.lag("orders"):
        ...         print(row.topic, row.queue_id, row.lag)
    """

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
        self._reach = Reach(
            client,
            timeout_ms,
            clock,
            audit=audit,
            read_only=read_only,
            masking=masking,
            producer_settings={
                "namesrv_addr": ";".join(client.name_servers),
                "access_key": access_key,
                "secret_key": secret_key,
                "security_token": security_token,
                "connect_timeout_ms": connect_timeout_ms,
                "ssl_context": ssl_context,
            },
        )
        self._client, self._wire = client, self._reach.wire

    @functools.cached_property
    def cluster(self) -> Cluster:
        """Everything at one moment, and the name servers."""
        from rocketstream.admin.cluster import Cluster

        return Cluster(self._reach)

    @functools.cached_property
    def brokers(self) -> Brokers:
        """Brokers: which there are, what they report, their settings."""
        from rocketstream.admin.cluster import Brokers

        return Brokers(self._reach)

    @functools.cached_property
    def topics(self) -> Topics:
        """Topics: names, routes, queues, consumers."""
        from rocketstream.admin.topics import Topics

        return Topics(self._reach)

    @functools.cached_property
    def groups(self) -> Groups:
        """Consumer groups: how far they are, why they are behind, their members."""
        from rocketstream.admin.groups import Groups

        return Groups(self._reach)

    @functools.cached_property
    def producers(self) -> Producers:
        """Connected producers."""
        from rocketstream.admin.cluster import Producers

        return Producers(self._reach)

    @functools.cached_property
    def messages(self) -> Messages:
        """Messages: viewed, searched, followed, traced, consumed once more."""
        from rocketstream.admin.messages.service import Messages

        return Messages(self._reach)

    @functools.cached_property
    def letters(self) -> Letters:
        """Dead letters: by cause, and sent again."""
        from rocketstream.admin.letters.service import Letters

        return Letters(self._reach)

    @functools.cached_property
    def changes(self) -> Changes:
        """Changes of topics, groups and offsets: planned, applied, taken back."""
        from rocketstream.admin.changes.service import Changes

        return Changes(self._reach)

    def _remember_in(self, memory: SweepMemory) -> None:
        """Keep in ``memory`` what sweeps find out; a later ``Admin`` may go on with it."""
        self._reach.memory = memory

    def __repr__(self) -> str:
        servers = self._reach.producer_settings["namesrv_addr"]
        return f"Admin(namesrv_addr={servers!r}, read_only={self._reach.read_only})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection; calling it again does nothing, any other call raises."""
        self._reach.is_closed = True
        self._client.close()
