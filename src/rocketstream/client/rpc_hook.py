"""What users give to see every request of a client and its answer: RPC hooks.

Law: what a hook must have; ``around_requests`` calls them.
"""

from __future__ import annotations

from typing import Protocol

from rocketstream.protocol.command import RemotingCommand


class RPCHook(Protocol):
    """Sees every request before it is written, and every answer before it is handed on.

    Called on whatever thread sends or receives; it must not block. ``before_request`` may add to
    ``command.ext_fields`` and may raise to keep the request from being sent, which makes of a send
    a ``SendError`` with outcome NOT_SENT; what ``after_response`` raises is logged.
    """

    def before_request(self, address: str, command: RemotingCommand) -> None:
        """See ``command`` before it goes to ``address``."""
        ...

    def after_response(
        self, address: str, command: RemotingCommand, response: RemotingCommand
    ) -> None:
        """See the answer of ``address`` to ``command``."""
        ...
