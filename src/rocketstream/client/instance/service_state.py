"""The four states of every client (C-106), and what those are told who do not mind them.

Law: values; no behaviour of a client.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any, NoReturn

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


def not_running(kind: str, state: ServiceState) -> ClientStateError:
    """Return the error of a call that needs a running client; ``kind`` is what the client is."""
    return ClientStateError(f"this {kind} is not running ({state.value}): {_ADVICE[state]}")


_TOPICS_SHOWN_MAX = 5


class StaysHere:
    """A client: it owns connections and threads, which no other process can be handed."""

    __slots__ = ()

    def __repr__(self) -> str:
        """One line for logs and bug reports: group, state, name servers, topics; no secret.

        Asks nobody and waits for nothing; of a client whose constructor failed it tells what there
        is.
        """
        kind = type(self).__name__
        if kind.startswith("Async"):  # as users know it
            kind = "aio." + kind.removeprefix("Async")
        config: Any = getattr(self, "config", None)
        state: Any = getattr(self, "state", None)
        parts = [f"group={getattr(self, 'group', None)!r}"]
        if state is not None:
            parts.append(f"state={state.value}")
        if config is not None:
            parts.append(f"namesrv_addr={config.shown_name_servers()!r}")
            parts += [f"{name}={_few(names)}" for name, names in self._shown().items() if names]
        return f"{kind}({', '.join(parts)})"

    def _shown(self) -> dict[str, list[str]]:
        """Return what else ``repr`` is to show, by name; whatever the state, without waiting."""
        return {}

    def __reduce__(self) -> NoReturn:
        raise NotSupportedError(
            f"a {type(self).__name__} cannot be pickled or copied: it has connections and threads; "
            "hand over its settings and create one where it is used"
        )


def _few(names: Iterable[object]) -> str:
    every = [str(name) for name in names]
    shown = every[:_TOPICS_SHOWN_MAX]
    more = f", and {len(every) - len(shown)} more" if len(every) > len(shown) else ""
    return f"[{', '.join(shown)}{more}]"
