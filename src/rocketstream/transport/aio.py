"""The asyncio side of the transport, in one place to import from."""

from rocketstream.transport.calls import AfterResponse, BeforeRequest
from rocketstream.transport.client import RemotingClient
from rocketstream.transport.connection import (
    AnswerCallback,
    Connection,
    ConnectionLimits,
    RequestHandler,
    refuse_request,
)
from rocketstream.transport.server import RemotingServer

__all__ = [
    "AnswerCallback",
    "AfterResponse",
    "BeforeRequest",
    "Connection",
    "ConnectionLimits",
    "RemotingClient",
    "RemotingServer",
    "RequestHandler",
    "refuse_request",
]
