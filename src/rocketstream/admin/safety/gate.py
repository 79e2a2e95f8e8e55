"""The gate every change goes through: refused when read-only, written down before and after.

Law: requests that change a cluster are made through ``Change`` alone; it decides nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rocketstream.admin.safety.audit import AuditLog
from rocketstream.admin.wire.changes import ChangingWire
from rocketstream.client.blocking import BlockingAdminClient
from rocketstream.errors import ClientStateError


class ReadOnlyError(ClientStateError):
    """This ``Admin`` was made to look only."""


class Change:
    """One change under way.

    Attributes:
        wire: the requests that change something.
        after: what is so afterwards, for the audit file; set by who makes the change.
    """

    def __init__(self, wire: ChangingWire) -> None:
        self.wire = wire
        self.after: Any = None


class ChangeGate:
    """Lets changes through.

    Args:
        client: asks brokers.
        timeout_ms: bound of one request.
        audit: where changes are written down; None: nowhere.
        read_only: whether every change is refused.
    """

    def __init__(
        self,
        client: BlockingAdminClient,
        timeout_ms: int,
        audit: AuditLog | None = None,
        *,
        read_only: bool = False,
    ) -> None:
        self._wire = ChangingWire(client, timeout_ms)
        self._cluster = ";".join(client.name_servers)
        self.audit = audit
        self.read_only = read_only

    def check(self, operation: str) -> None:
        """Raise where changes are refused; for operations that do much before they change.

        Raises:
            ReadOnlyError: this Admin only looks.
        """
        if self.read_only:
            raise ReadOnlyError(
                f"{operation} would change the cluster, and this Admin is read-only: make it "
                "without read_only=True (the dashboard and the agents' server: start with --write)",
                operation=operation,
            )

    @contextmanager
    def open(
        self, operation: str, arguments: Mapping[str, Any], before: Any = None
    ) -> Iterator[Change]:
        """Make one change: written down before it begins and after it ended, whichever way.

        Args:
            operation: a name like ``topic.delete``.
            arguments: what was asked for, never secrets or bodies.
            before: what was so before, as far as it is known.

        Raises:
            ReadOnlyError: this Admin only looks.
            ClientStateError: the audit file cannot be written.
        """
        self.check(operation)
        entry = None
        if self.audit is not None:
            entry = self.audit.begin(operation, self._cluster, arguments, before)
        change = Change(self._wire)
        try:
            yield change
        except BaseException as error:
            if self.audit is not None and entry is not None:
                self.audit.end(entry, error=f"{type(error).__name__}: {error}", after=change.after)
            raise
        if self.audit is not None and entry is not None:
            self.audit.end(entry, after=change.after)
