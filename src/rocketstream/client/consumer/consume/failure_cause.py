"""Why a listener failed: what it raised and where, written into what is sent back.

Law: looks at exceptions and frames, changes nothing but the properties of failed messages; nothing
here raises. Opt-in: an exception's text may hold what its message held.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any, Final

from rocketstream import limits
from rocketstream.errors import RemoteProtocolError
from rocketstream.protocol.cause import (
    CAUSE_PROPERTIES,
    PROPERTY_SEND_BACK_CAUSE,
    PROPERTY_SEND_BACK_TRY,
    SendBackCause,
)
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.properties import encode_properties

TIME_OUT: Final = "TIME_OUT"
TOO_LONG: Final = "the listener takes longer than consume_timeout_minutes"
NO_STATUS: Final = "NO_STATUS"
NOT_ACKNOWLEDGED: Final = "NOT_ACKNOWLEDGED"
_SPARE_BYTES: Final = 1_024
"""Left for what a broker adds to a copy."""
_FRAMES_MAX: Final = 1_000
_OURS: Final = str(Path(__file__).resolve().parents[2]) + os.sep
# Asking sysconfig reads what Python was built with: slow, and not there on every system.
_PYTHON: Final = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_INSTALLED: Final = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


class FailureCause:
    """Tells failed messages why, for one listener.

    Args:
        call: the listener.
    """

    def __init__(self, call: Callable[..., Any]) -> None:
        self._where = _where_of(call)

    def tell(
        self,
        messages: Iterable[MessageExt],
        error: BaseException | None,
        answer: object,
        status: str,
    ) -> None:
        """Write into messages why they failed.

        Args:
            messages: those that go back.
            error: what the listener raised, None where it returned.
            answer: what it returned.
            status: what that counts as.
        """
        if error is not None:
            kind, text, where = _name_of(error), _text_of(error), where_raised(error)
        elif getattr(answer, "name", None) == status:
            kind, text, where = status, "", self._where
        elif hasattr(answer, "name"):
            kind, text, where = NOT_ACKNOWLEDGED, "", self._where
        else:
            kind, text = NO_STATUS, f"the listener returned {type(answer).__name__}"
            where = self._where
        tell_cause(messages, kind, text, where or self._where)

    def tell_time_out(self, messages: Iterable[MessageExt], text: str = TOO_LONG) -> None:
        """Write into messages that their listener takes too long; ``text`` says by which bound."""
        tell_cause(messages, TIME_OUT, text, self._where)


def tell_cause(messages: Iterable[MessageExt], kind: str, text: str, where: str | None) -> None:
    """Write a cause into the properties of messages that have room for it."""
    for message in messages:
        told = SendBackCause(kind, text, where, message.reconsume_times).properties()
        try:
            kept = {n: v for n, v in message.properties.items() if n not in CAUSE_PROPERTIES}
            size = len(encode_properties(kept | told).encode("utf-8", "replace"))
        except Exception:  # what a listener wrote into them; sending back tells
            continue
        if size <= limits.PROPERTIES_BYTES_MAX - _SPARE_BYTES:
            message.properties.update(told)
            if len(told) < len(CAUSE_PROPERTIES):
                for name in CAUSE_PROPERTIES - told.keys():
                    message.properties.pop(name, None)


def has_cause(message: MessageExt) -> bool:
    """Return whether a message says why its last try failed, not only why an earlier one did."""
    try:
        found = message.properties
    except RemoteProtocolError:
        return False
    times = str(message.reconsume_times)
    return PROPERTY_SEND_BACK_CAUSE in found and found.get(PROPERTY_SEND_BACK_TRY) == times


def where_raised(error: BaseException) -> str | None:
    """Return ``file:line function`` of the innermost frame of user code an exception rose in.

    User code is what the listener's own package holds, and what is neither Python's nor installed.
    The file is named from its module, so that it is the same on every machine.
    """
    frames = list(_frames(error.__traceback__))
    theirs = [frame for frame in frames if not frame[1].co_filename.startswith((_OURS, _PYTHON))]
    if not theirs:
        return _place(*frames[-1]) if frames else None
    package = theirs[0][0].partition(".")[0]
    own = [
        frame
        for frame in theirs
        if frame[0].partition(".")[0] == package
        or not any(part in frame[1].co_filename for part in _INSTALLED)
    ]
    return _place(*(own or theirs)[-1])


def _frames(traceback: TracebackType | None) -> Iterator[tuple[str, CodeType, int]]:
    for _ in range(_FRAMES_MAX):
        if traceback is None:
            return
        frame = traceback.tb_frame
        yield str(frame.f_globals.get("__name__", "")), frame.f_code, traceback.tb_lineno
        traceback = traceback.tb_next


def _place(module: str, code: CodeType, line: int) -> str:
    return f"{_file(module, code.co_filename)}:{line} {code.co_qualname}"


def _file(module: str, path: str) -> str:
    """Return a file's path from its package on: what differs between machines is left out."""
    parts = path.replace("\\", "/").split("/")
    names = module.split(".")
    count = len(names) + (parts[-1] == "__init__.py" and names[-1] != "__init__")
    if module == "__main__" or parts[-1].partition(".")[0] != names[-1]:
        count = 2 if parts[-1] == "__init__.py" else 1
    return "/".join(parts[-count:])


def _name_of(error: BaseException) -> str:
    kind = type(error)
    module = kind.__module__
    name = kind.__qualname__
    return name if module in ("builtins", "__main__") else f"{module}.{name}"


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # an exception whose text cannot be made
        return ""


def _where_of(call: Callable[..., Any]) -> str | None:
    function = inspect.unwrap(getattr(call, "__func__", call))
    code = getattr(function, "__code__", None)
    if code is None:
        code = getattr(inspect.getattr_static(type(call), "__call__", None), "__code__", None)
    if not isinstance(code, CodeType):
        return None
    return _place(str(getattr(function, "__module__", "")), code, code.co_firstlineno)
