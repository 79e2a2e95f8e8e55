"""The last warnings of a stream's driver side, kept to be told to the user's own process.

Law: texts and numbers; who asks for them, and when, others know.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

WARNINGS: Final = "warnings"
"""Key of the warnings in the offset a source reports as the latest, which no checkpoint keeps."""
KEPT_MAX: Final = 20
"""Warnings kept; reports go out with every micro-batch, so few are under way."""
TEXT_MAX: Final = 500


class WarningTail(logging.Handler):
    """Keeps what a logger warns of; each warning has a number that grows."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._kept: deque[tuple[int, str]] = deque(maxlen=KEPT_MAX)
        self._count = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a warning."""
        self._count += 1
        self._kept.append((self._count, record.getMessage()[:TEXT_MAX]))
        if logging.lastResort is not None and not logging.getLogger().handlers:
            # Having a handler, this one, keeps Python from writing to stderr by itself.
            logging.lastResort.handle(record)

    def attach(self) -> None:
        """Listen to the connector's logger from now on."""
        logging.getLogger("rocketstream.spark").addHandler(self)

    def detach(self) -> None:
        """Listen no more."""
        logging.getLogger("rocketstream.spark").removeHandler(self)

    def told(self) -> list[list[int | str]]:
        """Return number and text of the warnings kept, oldest first."""
        return [[number, text] for number, text in list(self._kept)]
