"""Ctrl-C and SIGTERM from a command's first moment to its last: quiet, never long, twice at once.

Law: a process's own SIGINT only, and only where it is not ignored. The module is imported before
anything else and imports next to nothing.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys

TYPE_CHECKING = False  # what ``typing`` imports takes longer than all of this module
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from types import FrameType
    from typing import Any, Final

PATIENCE_S: Final = 1.5
"""How long a command may take to end after Ctrl-C, such as to tell brokers that it is gone."""
INTERRUPTED: Final = 130
ENDING: Final = (signal.SIGINT, signal.SIGTERM)
_AGAIN_S: Final = 0.01
_LOOK_S: Final = 1.0
"""A signal that comes just before the wait begins does not end it: see ``_util.waiting``."""
_IS_WINDOWS: Final = os.name == "nt"


class TerminatedError(KeyboardInterrupt):
    """SIGTERM: ends a command the way Ctrl-C does, with its own exit code."""


class _State:
    """The state of this process: whether Ctrl-C is handled here, how long an end may take."""

    is_ours = False
    patience_s: float | None = PATIENCE_S
    last_act: Callable[[], None] | None = None


def is_ours() -> bool:
    """Whether SIGINT has Python's own handler: not in a shell's background job, say."""
    return signal.getsignal(signal.SIGINT) is signal.default_int_handler


def end_at_once() -> None:
    """Let Ctrl-C end the process at once: nothing has begun yet, or all is done.

    The system does it, so it works while Python is importing, joining threads or taking itself
    apart. A shell shows 130, as for an interrupted command.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def end_in_order() -> None:
    """Let Ctrl-C raise KeyboardInterrupt in the main thread, once; the next one ends at once.

    After ``PATIENCE_S`` the process ends anyway, such as with a thread that waits for a broker.
    """
    _State.is_ours = True
    sys.unraisablehook = _raise_again
    signal.signal(signal.SIGINT, _interrupt)


def no_deadline() -> None:
    """Let the command take as long as it needs to end from here on, such as until Spark has."""
    _State.patience_s = None


def on_forced_exit(act: Callable[[], None] | None) -> None:
    """Call ``act`` if the process is ended at once, such as to give the screen back.

    Args:
        act: called on any thread, at any time; None for no call.
    """
    _State.last_act = act


def begin_shutdown() -> None:
    """Bound an end in order that other code began at Ctrl-C; the next Ctrl-C ends at once."""
    if _State.is_ours:
        if _State.last_act is None:
            end_at_once()
        else:
            signal.signal(signal.SIGINT, _end_after_last_act)
        if _State.patience_s is not None:
            _thread.start_new_thread(_end_after, (_State.patience_s,))


def arm_immediate_exit() -> None:
    """Let Ctrl-C and SIGTERM end the process at once: the command has nothing to put in order.

    A server on an event loop needs it: each of the loop's tasks would log an exception amid its
    work, and the end would wait for a thread that reads a line.
    """
    if _State.is_ours:
        end_at_once()
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    except ValueError:  # not the main thread: the caller owns the signals
        return


def on_signal(act: Callable[[int], None]) -> AbstractContextManager[None]:
    """Let both signals call ``act`` while the context lasts, where they would raise.

    After the first Ctrl-C the next one ends the process at once, also when the context is over.

    Args:
        act: called in the main thread with the signal's number, amid other work of that thread.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            begin_shutdown()
        act(number)

    return handled(handle, ENDING)


def until_signal() -> AbstractContextManager[Callable[[], None]]:
    """Take both signals while the context lasts; the yielded function blocks until one comes.

    A second Ctrl-C ends the process at once.
    """
    import threading
    from contextlib import contextmanager

    ended = threading.Event()

    def wait() -> None:
        while not ended.wait(_LOOK_S):
            continue

    @contextmanager
    def taken() -> Iterator[Callable[[], None]]:
        with on_signal(lambda number: ended.set()):
            yield wait

    return taken()


def sigterm_raises(arrived: list[int]) -> AbstractContextManager[None]:
    """Let SIGTERM raise ``TerminatedError`` while the context lasts, once, and note that it came.

    ``timeout`` and supervisors send it to a process and to its group: the same wish, told twice,
    must not break off what the first began.
    """

    def terminate(number: int, frame: FrameType | None) -> None:
        if not arrived:
            arrived.append(number)
            raise TerminatedError

    return handled(terminate, (signal.SIGTERM,))


def handled(
    handle: Callable[[int, FrameType | None], None], numbers: tuple[int, ...]
) -> AbstractContextManager[None]:
    """Have a handler for the time of a context; none where the caller owns the signals."""
    from contextlib import contextmanager

    @contextmanager
    def handled() -> Iterator[None]:
        try:
            before = {number: signal.signal(number, handle) for number in numbers}
        except ValueError:  # not the main thread
            yield
            return
        try:
            yield
        finally:
            for number, handler in before.items():
                if signal.getsignal(number) is handle:
                    signal.signal(number, handler)

    return handled()


def _interrupt(number: int, frame: FrameType | None) -> None:
    begin_shutdown()
    raise KeyboardInterrupt


def _end_after(seconds: float) -> None:
    _wait(seconds)
    _act_last()
    os._exit(INTERRUPTED)


def _end_after_last_act(number: int, frame: FrameType | None) -> None:
    end_at_once()
    _act_last()
    _send_to_self(signal.SIGINT)


def _act_last() -> None:
    """Make the call of ``on_forced_exit``, once, whichever end comes first."""
    act, _State.last_act = _State.last_act, None
    if act is not None:
        act()


def _raise_again(lost: Any) -> None:
    """Raise Ctrl-C again that Python dropped, as it does inside a finalizer, and print nothing."""
    if not issubclass(lost.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return
    signal.signal(signal.SIGINT, _interrupt)
    _thread.start_new_thread(_press_again, ())  # later: here it would be dropped too


def _wait(seconds: float) -> None:
    """Wait without ``threading``, whose import may have been interrupted."""
    lock = _thread.allocate_lock()
    lock.acquire()
    lock.acquire(timeout=seconds)


def _press_again() -> None:
    _wait(_AGAIN_S)
    _send_to_self(signal.SIGINT)


def _send_to_self(number: int) -> None:
    """Send this process a signal, its main thread above all, as the user would."""
    if _IS_WINDOWS:
        if signal.getsignal(number) is signal.SIG_DFL:
            os._exit(128 + number)
        signal.raise_signal(number)  # os.kill asks no handler there: it ends the process
    else:
        os.kill(os.getpid(), number)  # a signal raised on this thread would not wake the main one
