"""The end of a command: exit codes, and errors as one line on stderr.

Law: no other module turns an exception into text and a number.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from click import ClickException, UsageError
from click.exceptions import NoArgsIsHelpError

from rocketstream.cli.shown import shown
from rocketstream.errors import AccessDeniedError, BrokerError, InternalError, RocketMQError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_EXCEEDED = 3
"""A bound the caller set (``--max``, ``--max-age``) is exceeded: ``raise Exit(...)``."""
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
EXIT_BROKEN_PIPE = 141

WARNING_PAUSE_S = 10.0
"""A warning of one kind is shown this often at most."""
DEBUG_VARIABLE = "ROCKETSTREAM_DEBUG"


class TerminatedError(KeyboardInterrupt):
    """SIGTERM: ends a command the way Ctrl-C does, with its own exit code."""


def end_by(number: int) -> NoReturn:
    """End the command as this signal does: Ctrl-C, or SIGTERM; in the main thread."""
    signal.raise_signal(number)
    raise KeyboardInterrupt


def one_line(text: str) -> str:
    """Return the text with line breaks and runs of blanks made single blanks."""
    return " ".join(text.split())


def describe(error: BaseException) -> str:
    """Return the text of an error for the user, in one line."""
    if isinstance(error, BrokerError) and not isinstance(error, AccessDeniedError):
        who = f"{error.address} refused" if error.address else "refused"
        return one_line(f"{who}: {error.remark or 'no reason given'} (code {error.code})")
    if isinstance(error, RocketMQError):
        return one_line(error.message)
    if isinstance(error, OSError):
        named = f"{error.filename}: " if error.filename else ""
        return one_line(f"{named}{error.strerror or error}")
    return one_line(f"{type(error).__name__}: {error}")


def report(error: BaseException) -> None:
    """Write ``error: …`` to stderr."""
    text = describe(error)
    if not isinstance(error, (RocketMQError, OSError)) or isinstance(error, InternalError):
        text += f" (a mistake of rocketstream itself; {DEBUG_VARIABLE}=1 shows where)"
    say(f"error: {text}")


def say(line: str) -> None:
    """Write one line to stderr; control characters are spelled out."""
    try:
        sys.stderr.write(shown(line, lines=True) + "\n")
        sys.stderr.flush()
    except OSError:
        return


class _OneLine(logging.Formatter):
    """A log record as one line; the traceback only when debugging."""

    def format(self, record: logging.LogRecord) -> str:
        if os.environ.get(DEBUG_VARIABLE):
            return super().format(record)
        return one_line(f"{record.levelname.lower()}: {record.getMessage()}")


class _Sparing(logging.Filter):
    """Lets one record of a kind through now and then: an outage repeats itself every second."""

    def __init__(self) -> None:
        super().__init__()
        self._shown: dict[object, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        kind = record.msg
        if record.created - self._shown.get(kind, 0.0) < WARNING_PAUSE_S:
            return False
        self._shown[kind] = record.created
        return True


def _log_to_stderr() -> logging.Handler:
    """Show warnings of the packages below, such as a connection that was lost, as they come."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.INFO if os.environ.get(DEBUG_VARIABLE) else logging.WARNING)
    handler.setFormatter(_OneLine("%(levelname)s %(name)s: %(message)s"))
    if not os.environ.get(DEBUG_VARIABLE):
        handler.addFilter(_Sparing())
    logging.getLogger("rocketstream").addHandler(handler)
    return handler


def guard(action: Callable[[], int]) -> int:
    """Run a command and return the exit code; no exception leaves, unless debugging."""
    handler = _log_to_stderr()
    terminated: list[int] = []
    try:
        with _sigterm_raises(terminated):
            code = action()
            _flush()
        # On its way the exception may have become the code of Ctrl-C, which more programs know.
        return EXIT_TERMINATED if terminated and code == EXIT_INTERRUPTED else code
    except TerminatedError:
        return EXIT_TERMINATED
    except KeyboardInterrupt:
        return EXIT_TERMINATED if terminated else EXIT_INTERRUPTED
    except BrokenPipeError:
        _forget_stdout()
        return EXIT_BROKEN_PIPE
    except Exception as error:
        if os.environ.get(DEBUG_VARIABLE):
            raise
        return _failed(error)
    finally:
        logging.getLogger("rocketstream").removeHandler(handler)


def _failed(error: Exception) -> int:
    if isinstance(error, NoArgsIsHelpError):
        say(error.format_message())  # not a mistake: commands without a command show their help
        return error.exit_code
    if isinstance(error, ClickException):
        said = one_line(error.format_message()).removesuffix(".").removeprefix("Invalid value: ")
        context = error.ctx if isinstance(error, UsageError) else None
        hint = f" Try '{context.command_path} --help'." if context is not None else ""
        stop = "" if said.endswith("?") else "."
        say(f"error: {said}{stop}{hint}")
        return error.exit_code
    report(error)
    return EXIT_FAILED


def _flush() -> None:
    """Flush the output now, while a failure to write it can still be reported, with an exit
    code."""
    if sys.stdout is not None and not sys.stdout.closed:
        sys.stdout.flush()


def _forget_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush does not fail too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _sigterm_raises(arrived: list[int]) -> Iterator[None]:
    def terminate(number: int, frame: FrameType | None) -> None:
        arrived.append(number)
        raise TerminatedError

    try:
        before = signal.signal(signal.SIGTERM, terminate)
    except ValueError:  # not the main thread: the caller owns the signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
