"""The four states of every client (C-106), and what those are told who do not mind them.

Law: values; no behaviour of a client.
"""

from __future__ import annotations

import enum
from typing import NoReturn

from rocketstream.errors import ClientStateError, NotSupportedError


class ServiceState(enum.Enum):
    """Where a client is in its life."""

    CREATE_JUST = "CREATE_JUST"
    START_FAILED = "START_FAILED"
    RUNNING = "RUNNING"
    SHUTDOWN_ALREADY = "SHUTDOWN_ALREADY"


_ADVICE = {
    ServiceState.CREATE_JUST: "call start() first, once",
    ServiceState.START_FAILED: "its start is under way or has failed",
    ServiceState.RUNNING: "it is being started or shut down by another thread",
    ServiceState.SHUTDOWN_ALREADY: "it was shut down; create a new one",
}


def not_running(text: str, state: ServiceState) -> ClientStateError:
    """Return the error of a call that needs a running client; ``text`` is upstream's."""
    return ClientStateError(f"{text}, {state.value}; {_ADVICE[state]}")


class StaysHere:
    """A client: it owns connections and threads, which no other process can be handed."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        raise NotSupportedError(
            f"a {type(self).__name__} cannot be pickled or copied: it has connections and threads; "
            "hand over its settings and create one where it is used"
        )
