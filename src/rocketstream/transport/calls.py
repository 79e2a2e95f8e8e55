"""Parts of a request both kinds of connection share: hooks around it, its number, its refusal.

Law: no sockets and no event loop, since blocking connections need none.
"""

from __future__ import annotations

from collections.abc import Callable

from rocketstream.protocol.codes import ResponseCode
from rocketstream.protocol.command import RemotingCommand

BeforeRequest = Callable[[str, RemotingCommand], None]
AfterResponse = Callable[[str, RemotingCommand, RemotingCommand], None]

OPAQUE_MASK = 0x7FFF_FFFF


def refusal(request: RemotingCommand) -> RemotingCommand:
    """Return the answer of a side without a processor for ``request``: code 3."""
    remark = f" request type {request.code} not supported"
    response = RemotingCommand.response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
    return request.answer(response)
