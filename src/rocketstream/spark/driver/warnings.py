"""The last warnings of a stream's driver side, kept for the user's own process."""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

WARNINGS: Final = "warnings"
"""The key of the warnings in the offset that a source reports as latest; no checkpoint keeps it."""
KEPT_MAX: Final = 20
"""How many warnings are kept; reports go out with every micro-batch, so few are needed."""
TEXT_MAX: Final = 500


class WarningTail(logging.Handler):
    """Keeps the warnings of a logger; each has a number that grows."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._kept: deque[tuple[int, str]] = deque(maxlen=KEPT_MAX)
        self._count = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a warning."""
        self._count += 1
        self._kept.append((self._count, record.getMessage()[:TEXT_MAX]))
        if logging.lastResort is not None and not logging.getLogger().handlers:
            # With this handler present, Python does not write to stderr by itself.
            logging.lastResort.handle(record)

    def attach(self) -> None:
        """Listen to the connector's logger from now on."""
        logging.getLogger("rocketstream.spark").addHandler(self)

    def detach(self) -> None:
        """Stop listening."""
        logging.getLogger("rocketstream.spark").removeHandler(self)

    def told(self) -> list[list[int | str]]:
        """Return number and text of the kept warnings, oldest first."""
        return [[number, text] for number, text in list(self._kept)]
