"""How commands end: exit codes and one line on stderr."""

from __future__ import annotations

import contextlib
import logging
import signal

import pytest

from rocketstream.cli.failure import (
    EXIT_INTERRUPTED,
    EXIT_TERMINATED,
    TerminatedError,
    describe,
    end_by,
    guard,
)
from rocketstream.errors import ConfigurationError, InternalError, broker_error


def failing(error: BaseException) -> int:
    def action() -> int:
        raise error

    return guard(action)


def test_our_errors_are_one_line_and_exit_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert failing(ConfigurationError("two\nlines   here")) == 1
    assert capsys.readouterr().err == "error: two lines here\n"


def test_broker_refusals_name_the_broker_and_the_code() -> None:
    assert describe(broker_error(1, "no", "127.0.0.1:1")) == "127.0.0.1:1 refused: no (code 1)"


def test_os_errors_name_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert failing(PermissionError(13, "Permission denied", "/x")) == 1
    assert capsys.readouterr().err == "error: /x: Permission denied\n"


@pytest.mark.parametrize("error", [ZeroDivisionError("oops"), InternalError("oops")])
def test_our_own_mistakes_say_so(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    assert failing(error) == 1
    text = capsys.readouterr().err
    assert "mistake of rocketstream" in text
    assert text.count("\n") == 1


def test_interrupts_are_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    assert failing(KeyboardInterrupt()) == 130
    assert failing(TerminatedError()) == 143
    assert capsys.readouterr().err == ""


def test_debugging_lets_the_traceback_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCKETSTREAM_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        failing(ZeroDivisionError())


def test_warnings_of_one_kind_are_one_line_now_and_then(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def action() -> int:
        logger = logging.getLogger("rocketstream.client")
        for number in range(100):
            logger.warning("pull %d\nfailed", number, exc_info=ZeroDivisionError())
        logger.info("not shown")
        return 0

    assert guard(action) == 0
    assert capsys.readouterr().err == "warning: pull 0 failed\n"


def test_sigterm_has_its_own_code_whatever_became_of_it_on_the_way() -> None:
    """typer takes it for Ctrl-C, and makes the code of that of it."""

    def taken_for_ctrl_c() -> int:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        return EXIT_INTERRUPTED

    def abort() -> int:
        try:
            return taken_for_ctrl_c()
        finally:
            end_by(signal.SIGTERM)

    assert guard(taken_for_ctrl_c) == EXIT_TERMINATED
    assert guard(abort) == EXIT_TERMINATED
    assert guard(lambda: end_by(signal.SIGINT)) == EXIT_INTERRUPTED
    assert guard(lambda: EXIT_INTERRUPTED) == EXIT_INTERRUPTED
