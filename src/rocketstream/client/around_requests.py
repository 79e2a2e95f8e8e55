"""What happens around every request of a client: stream mark, the user's RPC hooks, signing.

Law: functions of a configuration; the transport calls them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from rocketstream.client.config import ClientConfig
from rocketstream.client.credentials import signer
from rocketstream.client.rpc_hook import RPCHook
from rocketstream.protocol.command import RemotingCommand

logger = logging.getLogger("rocketstream.client")

REQUEST_TYPE_FIELD = "ReqT"
_STREAM_CODE = "0"

BeforeRequest = Callable[[str, RemotingCommand], None]
AfterResponse = Callable[[str, RemotingCommand, RemotingCommand], None]


def before_request_of(config: ClientConfig) -> BeforeRequest | None:
    """Return what is done to each request of a client, None when nothing is.

    The signature comes last, so that it covers what the others add.

    Raises:
        ConfigurationError: only one of the two keys is given.
    """
    steps: list[BeforeRequest] = []
    if config.enable_stream_request_type:
        steps.append(_mark_stream)
    steps += [hook.before_request for hook in config.rpc_hooks()]
    sign = signer(config.access_key, config.secret_key, config.security_token)
    if sign is not None:
        steps.append(sign)
    if len(steps) <= 1:
        return steps[0] if steps else None

    def all_steps(address: str, command: RemotingCommand) -> None:
        for step in steps:
            step(address, command)

    return all_steps


def after_response_of(config: ClientConfig) -> AfterResponse | None:
    """Return what is told of each answer, None when nobody asked."""
    hooks = tuple(config.rpc_hooks())
    if not hooks:
        return None

    def tell(address: str, command: RemotingCommand, response: RemotingCommand) -> None:
        _tell_all(hooks, address, command, response)

    return tell


def _tell_all(
    hooks: Iterable[RPCHook], address: str, command: RemotingCommand, response: RemotingCommand
) -> None:
    for hook in hooks:
        try:
            hook.after_response(address, command, response)
        except Exception:
            logger.exception("RPC hook %r failed on the answer of %s", hook, address)


def _mark_stream(_address: str, command: RemotingCommand) -> None:
    """Say that this client reads a stream (C-17, StreamTypeRPCHook)."""
    command.ext_fields = {**(command.ext_fields or {}), REQUEST_TYPE_FIELD: _STREAM_CODE}
