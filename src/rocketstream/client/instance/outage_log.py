"""One line when something begins to fail and one when it works again, however often it is tried.

All that fails because a server cannot be reached is one outage, that server's. Each line ends with
the client and its groups: a process may have hundreds of them.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from rocketstream import limits
from rocketstream._util.clock import Clock
from rocketstream.client.instance.groups import Groups
from rocketstream.errors import RouteNotFoundError, TransportError

logger: logging.Logger = logging.getLogger("rocketstream.client")

Subject = tuple[object, ...]
"""The subject of an outage, as words of a log line: ("pull of", queue)."""

NO_SUBSCRIPTION: Subject = ("a subscription of group",)
NAME_SERVERS: Subject = ("the name servers",)
SHARED_ID: Subject = ("another process of this client id at",)
_GROUPS_SHOWN = 3


@dataclass(slots=True)
class _Outage:
    """Failures of one subject in a row, since the monotonic time of the first."""

    began_ms: float
    failures: int = 0
    is_told: bool = False


class OutageLog:
    """The outages of one client instance.

    Args:
        clock: how long they took.
        client_id: whose they are.
        groups: the groups of that client.
    """

    def __init__(self, clock: Clock, client_id: str, groups: Groups) -> None:
        self._client_id = client_id
        self._groups = groups
        self._now = clock.monotonic_ms
        self._open: dict[Subject, _Outage] = {}
        """All that fails now; the oldest is forgotten when there are too many."""

    def __bool__(self) -> bool:
        """Whether anything fails now; while nothing does, successes need not be told."""
        return bool(self._open)

    def failed(self, subject: Subject, error: Exception, *, expected: int = 0) -> None:
        """Tell of a failure of something that is tried again every now and then.

        Args:
            subject: the thing that was tried.
            error: how it failed.
            expected: how many failures in a row may come before it is an outage.
        """
        server = _server_of(error)
        if server is None:
            self.report(
                subject, f"{_text(subject)} failed: {error}; it is tried again", expected=expected
            )
        else:
            self.report(
                server,
                f"{_text(server)} cannot be reached: {error}; {_text(subject)} and all else that "
                "needs it is tried again",
            )

    def report(self, subject: Subject, line: str, *, expected: int = 0) -> None:
        """Log ``line`` unless the outage is known, or may still be one of the expected failures."""
        outage = self._open.get(subject)
        if outage is None:
            if len(self._open) >= limits.OUTAGES_MAX:
                del self._open[next(iter(self._open))]
            outage = self._open[subject] = _Outage(self._now())
        outage.failures += 1
        if not outage.is_told and outage.failures > expected:
            outage.is_told = True
            self._tell(line)

    def _tell(self, line: str) -> None:
        groups = list(dict.fromkeys((*self._groups.consumers, *self._groups.producers)))
        shown = [f"group {group}" for group in groups[:_GROUPS_SHOWN]]
        if len(groups) > _GROUPS_SHOWN:
            shown.append(f"{len(groups) - _GROUPS_SHOWN} groups more")
        # As its own text: the command line spares lines of one kind.
        logger.warning(f"{line} ({', '.join([f'client {self._client_id}', *shown])})")

    def is_failing(self, *subject: object) -> bool:
        """Return whether something failed when tried last, and its server could be reached."""
        return subject in self._open

    def unsubscribed(self, group: str) -> None:
        """Tell that a consumer runs and has nothing to consume."""
        self.report(
            (*NO_SUBSCRIPTION, group),
            f"group {group} subscribes no topic, so it gets nothing: call subscribe()",
        )

    def subscribed(self, group: str) -> None:
        """Forget that a group subscribed no topic: it does now."""
        if self._open:
            self.forget(*NO_SUBSCRIPTION, group)

    def id_is_shared(
        self, address: str, *, is_shared: bool, where: str = "", expected: int = 0
    ) -> None:
        """Tell that a broker knows another process of this client's id, or that it does no more."""
        if is_shared:
            self.report(
                (*SHARED_ID, address),
                f"another process{where} has the client id {self._client_id} too, says {address}: "
                "both count as one member, so messages come twice or not at all. Give each an "
                "instance_name of its own (left alone it is made of process and time), or another "
                "client_ip, and copy no client id",
                expected=expected,
            )
        elif self._open:
            self.forget(*SHARED_ID, address)

    def worked(self, *subject: object) -> None:
        """Tell that something works again, if it had failed."""
        outage = self._open.pop(subject, None)
        if outage is not None and outage.is_told:
            seconds = (self._now() - outage.began_ms) / 1000
            times = f"{seconds:.1f} s and {outage.failures} failures"
            self._tell(f"{_text(subject)}: works again after {times}")

    def answered(self, address: str) -> None:
        """Tell that the server at ``address`` answers again, if it had failed."""
        if self._open:
            self.worked("server", address)

    def forget(self, *subject: object) -> None:
        """Forget a failure: what failed is not tried any more."""
        self._open.pop(subject, None)


def _server_of(error: Exception) -> Subject | None:
    """Return the server whose outage an error is part of; None for a failure of its own."""
    if isinstance(error, RouteNotFoundError):
        queue = error.parameters.get("queue")
        name = error.parameters.get("broker") or getattr(queue, "broker_name", None)
        return None if name is None else ("broker", name)
    if not isinstance(error, TransportError):
        return None
    if "addresses" in error.parameters:
        return NAME_SERVERS
    address = error.parameters.get("address")
    return ("server", address) if address else None


def _text(subject: Subject) -> str:
    return " ".join(map(str, subject))
