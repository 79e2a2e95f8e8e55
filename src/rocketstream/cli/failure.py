"""The end of a command: exit codes, errors as one line on stderr, streams that are not there.

Law: no other module turns an exception into text and a number.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from click import ClickException, UsageError
from click.exceptions import NoArgsIsHelpError

from rocketstream.cli.signals import TerminatedError, sigterm_raises
from rocketstream.cli.tables import shown
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
            return shown(super().format(record), lines=True)
        return shown(one_line(f"{record.levelname.lower()}: {record.getMessage()}"))


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
        with sigterm_raises(terminated):
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


# --- streams --------------------------------------------------------------------------------------


class _Closed(io.FileIO):
    """Output that was closed when the command began: a write to it fails with that reason."""

    is_told = False

    def write(self, data: Any) -> int:
        if not _Closed.is_told:
            raise OSError(errno.EBADF, "the output is closed: there is no stdout")
        return super().write(data)


def open_missing() -> None:
    """Give the process the standard streams it was started without (``>&-``).

    Their numbers would go to the next files that are opened, and printed text into a store. A
    closed input is empty; a write to a closed output fails, as with other programs; text for a
    closed stderr is dropped.
    """
    for number, flags in enumerate((os.O_RDONLY, os.O_RDWR, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)  # the lowest free number: this one
    if sys.stdin is None:
        sys.stdin = _text(io.BufferedReader(io.FileIO(0, closefd=False)))
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="backslashreplace")
    if sys.stdout is None:
        sys.stdout = _text(io.BufferedWriter(_Closed(1, "w", closefd=False)))
    if sys.stderr is None:
        sys.stderr = _text(io.BufferedWriter(io.FileIO(2, "w", closefd=False)))


def _text(stream: io.BufferedReader | io.BufferedWriter) -> io.TextIOWrapper:
    return io.TextIOWrapper(stream, encoding="utf-8", errors="backslashreplace")


def give_up_unwritten() -> None:
    """Drop output that cannot be written to stdout.

    The failure was reported where it happened; at its end the interpreter would try again, complain
    in its own words and change the exit code.
    """
    try:
        if sys.stdout is not None and not sys.stdout.closed:
            sys.stdout.flush()
    except (OSError, ValueError):
        _Closed.is_told = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
