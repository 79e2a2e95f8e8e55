"""One frame, read as a connection reads it."""

from __future__ import annotations

import struct

from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.framing import FrameDecoder


def decode_frame(frame: bytes) -> RemotingCommand:
    """Return the command of a frame that comes without its 4 length bytes."""
    (command,) = FrameDecoder().feed(struct.pack(">i", len(frame)) + frame)
    assert isinstance(command, RemotingCommand)
    return command
