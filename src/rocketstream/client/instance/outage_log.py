"""One line when something begins to fail and one when it works again, however often it is tried.

Law: on the loop; ``core.outages`` knows what is open, this finds the words. Whatever fails because
a server cannot be reached is one outage, that server's.
"""

from __future__ import annotations

import logging

from rocketstream._util.clock import Clock
from rocketstream.client.core.outages import Outages
from rocketstream.errors import RouteNotFoundError, TransportError

logger = logging.getLogger("rocketstream.client")

What = tuple[object, ...]
"""What was tried, as words of a log line: ("pull of", queue)."""

NO_SUBSCRIPTION: What = ("a subscription of group",)
NAME_SERVERS: What = ("the name servers",)


class OutageLog:
    """The outages of one client instance."""

    def __init__(self, clock: Clock) -> None:
        self._now = clock.monotonic_ms
        self._outages = Outages()

    def __bool__(self) -> bool:
        """Whether anything fails now; while nothing does, successes need not be told."""
        return bool(self._outages)

    def failed(self, what: What, error: Exception, *, expected: int = 0) -> None:
        """Tell that something has failed which is tried again every now and then.

        Args:
            what: what was tried.
            error: how it failed.
            expected: so many failures in a row before an outage is believed are not told of.
        """
        server = _server_of(error)
        if server is None:
            self.began(what, f"{_text(what)} failed: {error}; it is tried again", expected=expected)
        else:
            self.began(
                server,
                f"{_text(server)} cannot be reached: {error}; {_text(what)} and all else that "
                "needs it is tried again",
            )

    def began(self, what: What, line: str, *, expected: int = 0) -> None:
        """Say ``line`` unless the outage is known, or is no more than what was expected."""
        if self._outages.failed(what, self._now(), expected=expected):
            logger.warning(line)  # as its own text: the command line spares lines of one kind

    def unsubscribed(self, group: str) -> None:
        """Tell that a consumer runs and has nothing to consume."""
        self.began(
            (*NO_SUBSCRIPTION, group),
            f"group {group} subscribes no topic, so it gets nothing: call subscribe()",
        )

    def subscribed(self, group: str) -> None:
        """Forget that a group subscribed no topic: it does now."""
        if self._outages:
            self.forget(*NO_SUBSCRIPTION, group)

    def worked(self, *what: object) -> None:
        """Tell that something works again, if it had failed."""
        outage = self._outages.worked(what)
        if outage is not None:
            seconds = (self._now() - outage.began_ms) / 1000
            logger.warning(
                f"{_text(what)}: works again after {seconds:.1f} s and {outage.failures} failures"
            )

    def answered(self, address: str) -> None:
        """Tell that the server at ``address`` answers again, if it had failed."""
        if self._outages:
            self.worked("server", address)

    def forget(self, *what: object) -> None:
        """Forget a failure: what failed is not tried any more."""
        self._outages.worked(what)


def _server_of(error: Exception) -> What | None:
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


def _text(what: What) -> str:
    return " ".join(map(str, what))
