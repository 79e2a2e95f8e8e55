"""The gate every change passes: refused when read-only, written down before and after.

Law: requests that change a cluster are made through ``Change`` only. The gate decides nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rocketstream.admin.safety.audit import AuditLog
from rocketstream.admin.wire.changes import ChangingWire
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.errors import ClientStateError

logger = logging.getLogger("rocketstream.admin")


class ReadOnlyError(ClientStateError):
    """This ``Admin`` is read-only."""


class Change:
    """One change under way.

    Attributes:
        wire: the requests that change something.
        after: the state afterwards, for the audit file; the code that makes the change sets it.
    """

    def __init__(self, wire: ChangingWire) -> None:
        self.wire = wire
        self.after: Any = None


class ChangeGate:
    """Admits changes, or refuses them.

    Args:
        client: asks brokers.
        timeout_ms: bound of one request.
        audit: where changes are written down; None writes nothing.
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
        """Raise if changes are refused; for operations that do a lot before they change anything.

        Raises:
            ReadOnlyError: this Admin is read-only.
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
        """Make one change: written down before it begins and after it ends, also when it fails.

        Args:
            operation: the operation's name, such as ``topic.delete``.
            arguments: the arguments of the operation, never secrets or bodies.
            before: the state before, as far as it is known.

        Raises:
            ReadOnlyError: this Admin is read-only.
            ClientStateError: the audit file cannot be written: before the change, which is then not
                made, or after it. Where the change failed too, its own error is raised.
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
                self._record_failure(self.audit, entry, error, change.after)
            raise
        if self.audit is not None and entry is not None:
            self.audit.end(entry, after=change.after)

    @staticmethod
    def _record_failure(
        audit: AuditLog, entry: Mapping[str, Any], error: BaseException, after: Any
    ) -> None:
        try:
            audit.end(entry, error=f"{type(error).__name__}: {error}", after=after)
        except ClientStateError as unwritten:
            # The change's own error is the one to act on; neither may hide the other.
            logger.warning("%s", unwritten.message)
            error.add_note(unwritten.message)
