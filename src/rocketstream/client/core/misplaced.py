"""A broker's address where a name server's belongs: noticed, and said so with the right one.

Law: pure; which question to ask, and what its answer means. Asking is the callers'.
"""

from __future__ import annotations

from rocketstream.errors import ConfigurationError
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand

_TOLD_BYTES_MAX = 1 << 20


def question() -> RemotingCommand:
    """Return what to ask a peer that refused a name server's request as one it does not know.

    GET_BROKER_CONFIG (26): a broker answers it, or asks for permission; a name server refuses it.
    """
    return RemotingCommand.request(RequestCode.GET_BROKER_CONFIG)


def judge(address: str, answer: RemotingCommand) -> ConfigurationError | None:
    """Return the error that says the peer is a broker, None if its answer does not show that."""
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return None
    told: dict[str, str] = {}
    if answer.code == ResponseCode.SUCCESS:
        text = bytes(answer.body)[:_TOLD_BYTES_MAX].decode("utf-8", "replace")
        told = {k.strip(): v.strip() for k, _, v in (x.partition("=") for x in text.splitlines())}
    name, servers = told.get("brokerName"), told.get("namesrvAddr")
    who = f"broker {name!r}" if name else "a broker"
    instead = f"its name server is {servers}" if servers else "give its name server's address"
    return ConfigurationError(f"{address} is {who}, not a name server; {instead}", address=address)
