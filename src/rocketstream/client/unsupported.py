"""Settings of the original that are known but not built: refused, never ignored.

Law: a table and its check.
"""

from __future__ import annotations

from typing import Any

from rocketstream.errors import NotSupportedError

_UNSUPPORTED = {
    "enable_msg_trace": "message trace is not supported yet",
    "customized_trace_topic": "message trace is not supported yet",
}


def refuse_unsupported(settings: dict[str, Any]) -> None:
    """Take known but unsupported settings out, refusing those that are switched on.

    Raises:
        NotSupportedError: one of them has a value that would have to do something.
    """
    for name, why in _UNSUPPORTED.items():
        if settings.pop(name, None):
            raise NotSupportedError(f"{name}: {why}", setting=name)
