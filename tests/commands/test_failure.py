"""How commands end: exit codes and one line on stderr."""

from __future__ import annotations

import contextlib
import copy
import logging
import signal

import pytest
from click import NoSuchOption

from rocketstream.cli.failure import (
    EXIT_INTERRUPTED,
    EXIT_TERMINATED,
    describe,
    end_by,
    guard,
)
from rocketstream.cli.signals import TerminatedError
from rocketstream.errors import (
    AccessDeniedError,
    BrokerError,
    ConfigurationError,
    InternalError,
    NoPermissionError,
    broker_error,
)
from rocketstream.protocol.codes import request_text


def failing(error: BaseException) -> int:
    def action() -> int:
        raise error

    return guard(action)


def test_our_errors_are_one_line_and_exit_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert failing(ConfigurationError("two\nlines   here")) == 1
    assert capsys.readouterr().err == "error: two lines here\n"


def test_broker_refusals_name_the_broker_and_the_code() -> None:
    assert describe(broker_error(1, "no", "127.0.0.1:1")) == "127.0.0.1:1 refused: no (code 1)"


def test_a_name_in_a_log_line_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """A peer's client id could clear the screen, and write a line that looks like ours."""

    def action() -> int:
        logging.getLogger("rocketstream.server").warning("client id %s", "a\x1b[2J\nready x")
        return 0

    assert guard(action) == 0
    assert capsys.readouterr().err == "warning: client id a\\x1b[2J ready x\n"


def test_os_errors_name_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert failing(PermissionError(13, "Permission denied", "/x")) == 1
    assert capsys.readouterr().err == "error: /x: Permission denied\n"


@pytest.mark.parametrize("error", [ZeroDivisionError("oops"), InternalError("oops")])
def test_our_own_mistakes_say_so(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    assert failing(error) == 1
    text = capsys.readouterr().err
    assert "mistake of rocketstream" in text
    assert text.count("\n") == 1


def test_a_question_ends_with_its_own_mark(capsys: pytest.CaptureFixture[str]) -> None:
    assert failing(NoSuchOption("--yse", possibilities=["--yes"])) == 2
    assert capsys.readouterr().err == "error: No such option '--yse'. Did you mean '--yes'?\n"


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
    """A program below may take it for Ctrl-C, and make the code of that of it."""

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


ACL = "org.apache.rocketmq.acl.common.AclException: {}, org.apache.rocketmq.acl.plain.P.v(P.java:6)"


@pytest.mark.parametrize(
    ("said", "hint", "knows_who"),
    [
        ("No accessKey is configured", "ROCKETMQ_ACCESS_KEY and ROCKETMQ_SECRET_KEY", False),
        ("No acl config for desk", "no account of this access key", False),
        (
            "Check signature failed for accessKey=desk",
            "the secret key does not match the access key",
            False,
        ),
        ("No default permission for topic:orders", "the account lacks this right", True),
        (
            "Need admin permission for request code=17, but accessKey=desk is not",
            "only an administrator's account may do this",
            True,
        ),
    ],
)
@pytest.mark.parametrize("code", [1, 16], ids=["4.x", "5.x"])
def test_what_access_control_misses_is_said_and_not_where_in_its_code(
    said: str, hint: str, knows_who: bool, code: int
) -> None:
    error = broker_error(code, ACL.format(said), "127.0.0.1:1")
    assert isinstance(error, AccessDeniedError)
    assert error.knows_who is knows_who
    text = describe(error)
    assert text.startswith(f"127.0.0.1:1 refused: {said} (access control, code {code}); ")
    assert hint in text
    assert "org.apache" not in text
    again = copy.copy(error)  # as pickle does it
    assert (again.knows_who, str(again)) == (knows_who, str(error))


@pytest.mark.parametrize(
    ("said", "hint", "knows_who"),
    [
        ("username cannot be null", "ROCKETMQ_ACCESS_KEY and ROCKETMQ_SECRET_KEY", False),
        ("User:desk is not found", "no account of this access key", False),
        ("User:desk not found", "no account of this access key", False),
        ("User:desk is disabled", "can enable it", False),
        ("check signature failed", "the secret key does not match the access key", False),
        (
            "User:desk has no permission to access Topic:orders from 10.0.0.7, no matched policies",
            "the account lacks this right",
            True,
        ),
    ],
)
def test_what_5_x_misses_is_said_although_it_does_not_say_whose_refusal_it_is(
    said: str, hint: str, knows_who: bool
) -> None:
    """Its brokers send the bare text of the exception, with code 16."""
    error = broker_error(16, f"{said}.", "127.0.0.1:1")
    assert isinstance(error, AccessDeniedError)
    assert error.knows_who is knows_who
    text = describe(error)
    assert text.startswith(f"127.0.0.1:1 refused: {said} (access control, code 16); ")
    assert hint in text
    assert type(broker_error(1, f"{said}.")) is BrokerError


def test_a_refusal_names_the_request() -> None:
    """Which right is missing depends on it: 5.x wants Get for the end of a queue."""
    error = broker_error(1, ACL.format("no Get"), "127.0.0.1:1", request_text(30))
    assert "(access control, code 1 for GET_MAX_OFFSET (30))" in str(error)
    assert str(copy.copy(error)) == str(error)
    assert request_text(9_999) == "request (9999)"


def test_other_refusals_of_these_codes_are_no_access_control() -> None:
    assert type(broker_error(16, "the group[g] has no permission")) is NoPermissionError
    assert type(broker_error(16, "the topic is read only")) is NoPermissionError
    assert type(broker_error(1, "AclException is a word in a name")) is BrokerError
