"""What is done with every client when it is made: nothing, unless telemetry was switched on.

Law: keeps one function; what it does with a client is its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Instruments:
    """Hands each new client to what instruments it; false while nothing does."""

    def __init__(self) -> None:
        self._instrument: Callable[[Any], object] | None = None

    def __bool__(self) -> bool:
        return self._instrument is not None

    def __reduce__(self) -> tuple[type[Instruments], tuple[()]]:
        # Spark may carry this code to other machines; what instruments clients stays here.
        return (Instruments, ())

    def attach(self, function: Callable[[Any], object] | None) -> None:
        """Have ``function`` called with each client made from now on; None ends that."""
        self._instrument = function

    def made(self, client: Any) -> None:
        """Instrument a client, at the end of its making."""
        if self._instrument is not None:
            self._instrument(client)


INSTRUMENTS = Instruments()
