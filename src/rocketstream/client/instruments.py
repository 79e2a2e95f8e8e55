"""What is done with every client when it is made: nothing, unless telemetry was switched on.

Law: keeps one function; what it does with a client is its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Instruments:
    """Told of each client that is made; false while nobody wants to know."""

    def __init__(self) -> None:
        self._watch: Callable[[Any], object] | None = None

    def __bool__(self) -> bool:
        return self._watch is not None

    def __reduce__(self) -> tuple[type[Instruments], tuple[()]]:
        # Spark may carry this package's code to other machines; what watches stays here.
        return (Instruments, ())

    def watch(self, function: Callable[[Any], object] | None) -> None:
        """Have ``function`` called with each client made from now on; None ends that."""
        self._watch = function

    def made(self, client: Any) -> None:
        """Tell of a client, at the end of its making."""
        if self._watch is not None:
            self._watch(client)


INSTRUMENTS = Instruments()
