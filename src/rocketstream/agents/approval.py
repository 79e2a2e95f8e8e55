"""A person approves a change: asked at the agent's client, else at the server's terminal.

Law: the agent never answers for the person. Where there is nobody to ask, nothing is done.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import select
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from mcp.server.mcpserver import Context
from mcp.shared.exceptions import MCPError
from mcp.types import ElicitRequest, ElicitRequestFormParams, ElicitResult, InputRequiredResult

from rocketstream._util.clock import Clock
from rocketstream.agents.answers import seen
from rocketstream.errors import ClientStateError

if sys.platform != "win32":
    import termios

_ANSWERED_IN_ROUNDS: Final = "2026-07-28"
"""From this version of the protocol on, a client calls the tool again with the person's answer."""
_APPROVAL: Final = "approval"
_FORM: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "carry_out": {
            "type": "boolean",
            "title": "Carry it out",
            "description": "Yes: the change above is made now. No: nothing is changed.",
        }
    },
    "required": ["carry_out"],
}
_LOOK_S: Final = 0.2
"""How often a question at the terminal looks whether it is still wanted."""

_LEAVE_IT: Final = "leave it, unless they ask for it again"
_DECLINED: Final = f"not changed: the person declined; {_LEAVE_IT}"
_CLOSED: Final = f"not changed: the person closed the question without an answer; {_LEAVE_IT}"
_LATE: Final = "not changed: nobody answered while the preview was good. Preview the change again"


class NotApprovedError(ClientStateError):
    """No person approved the change, so it was not made."""


class DeclinedError(NotApprovedError):
    """A person was asked, and declined."""


def open_terminal() -> int | None:
    """Return a descriptor of the terminal this process was started in; None where there is none.

    A process in a terminal's background would be stopped if it read there, so it has none.
    """
    if sys.platform == "win32":
        return None
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None
    with suppress(OSError):
        if os.tcgetpgrp(terminal) == os.getpgrp():
            return terminal
    os.close(terminal)
    return None


class Approver:
    """Asks a person whether a change that was shown is to be made; used on one event loop.

    Args:
        clock: the time, for how long an answer is waited for.
        trust_agent: whether the agent alone decides and no person is asked.
        terminal: opens the terminal to ask at where the client cannot ask anybody.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        trust_agent: bool = False,
        terminal: Callable[[], int | None] = open_terminal,
    ) -> None:
        self._clock = clock
        self.trusts_agent = trust_agent
        self._terminal = terminal
        self._at_terminal = asyncio.Lock()

    async def ask(
        self, token: str, text: str, command: str, within_s: float, context: Context[Any, Any]
    ) -> str | InputRequiredResult:
        """Ask, and return who approved it, for the audit file, or the question for the client.

        Args:
            token: identifies the change among all that wait for an answer.
            text: the change as the person is to see it.
            command: the command that makes it, for a person who cannot be asked.
            within_s: how long the answer is waited for.
            context: the call of the tool that wants the approval.

        Raises:
            DeclinedError: the person declined.
            NotApprovedError: no answer came in time, or there is nobody to ask.
        """
        if self.trusts_agent:
            return "by the agent alone (--trust-agent)"
        until_ms = self._clock.monotonic_ms() + within_s * 1_000
        who = _client_of(context)
        text = f"An agent at {who} asks to make this change:\n\n{text}"
        if _can_elicit(context):
            answer = await _answer_of_client(token, text, within_s, context)
            if isinstance(answer, InputRequiredResult):
                return answer
            if _is_accepted(answer):
                return f"by a person at the client ({who})"
            raise DeclinedError(_CLOSED if answer.action == "cancel" else _DECLINED)
        async with self._at_terminal:
            terminal = self._terminal()
            if terminal is None:
                raise NotApprovedError(
                    "not changed: a person has to approve it, and nobody can be asked, because "
                    "this client has no elicitation and this server was started without a "
                    f"terminal. The person you work for can run `{command}`, or start the server "
                    "with --write --trust-agent, which lets the agent alone decide"
                )
            await self._ask_at(terminal, text, until_ms)
        return "by a person at the terminal of the server"

    async def _ask_at(self, terminal: int, text: str, until_ms: float) -> None:
        is_over = threading.Event()

        def is_wanted() -> bool:
            return not is_over.is_set() and self._clock.monotonic_ms() < until_ms

        # The thread closes the terminal: a caller that is cancelled does not wait for it.
        asking = asyncio.create_task(asyncio.to_thread(_ask_at, terminal, text, is_wanted))
        try:
            is_approved = await asyncio.shield(asking)
        except OSError as error:
            raise NotApprovedError(f"not changed: the terminal failed ({error})") from error
        finally:
            is_over.set()
        if is_approved is None:
            raise NotApprovedError(_LATE)
        if not is_approved:
            raise DeclinedError(_DECLINED)


def _ask_at(terminal: int, text: str, is_wanted: Callable[[], bool]) -> bool | None:
    """Ask at a terminal, and close it; None where no line was typed while one was wanted."""
    code = f"{secrets.randbelow(10_000):04}"
    try:
        with suppress(termios.error):  # a line typed before the question answers none
            termios.tcflush(terminal, termios.TCIFLUSH)
        _write(terminal, f"\n{text}\n\nType {code} to make it, anything else to leave it: ")
        while is_wanted():
            if select.select([terminal], [], [], _LOOK_S)[0]:
                typed = os.read(terminal, 1_024).decode("utf-8", "replace").strip()
                _write(terminal, "It is made.\n" if typed == code else "Nothing is changed.\n")
                return typed == code
        _write(terminal, "\nToo late: nothing is changed.\n")
        return None
    finally:
        os.close(terminal)


def _write(terminal: int, text: str) -> None:
    data = text.encode("utf-8", "backslashreplace")
    while data:
        data = data[os.write(terminal, data) :]


def _is_accepted(answer: ElicitResult) -> bool:
    return answer.action == "accept" and (answer.content or {}).get("carry_out") is True


def _client_of(context: Context[Any, Any]) -> str:
    told = context.session.client_params
    if told is None:
        return "a client without a name"
    info = told.client_info
    return seen(f"{info.name} {info.version}".replace("\n", " "), 200)


def _can_elicit(context: Context[Any, Any]) -> bool:
    told = context.client_capabilities
    elicitation = None if told is None else told.elicitation
    # Before there were modes, an empty object meant forms.
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)


async def _answer_of_client(
    token: str, text: str, within_s: float, context: Context[Any, Any]
) -> ElicitResult | InputRequiredResult:
    if (context.protocol_version or "") >= _ANSWERED_IN_ROUNDS:
        answer = (context.input_responses or {}).get(_APPROVAL)
        # The server sealed the state it gave, so an answer with it is one to this question.
        if context.request_state == token and isinstance(answer, ElicitResult):
            return answer
        form = ElicitRequestFormParams(message=text, requested_schema=_FORM)
        return InputRequiredResult(
            input_requests={_APPROVAL: ElicitRequest(params=form)}, request_state=token
        )
    try:
        async with asyncio.timeout(within_s):
            answered: ElicitResult = await context.session.elicit_form(
                text, _FORM, context.request_id
            )
            return answered
    except TimeoutError:
        raise NotApprovedError(_LATE) from None
    except MCPError as error:
        raise NotApprovedError(
            f"not changed: the client could not ask the person: {seen(str(error), 500)}"
        ) from error
