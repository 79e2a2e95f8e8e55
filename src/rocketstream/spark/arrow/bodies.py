"""Bodies of messages for Spark, inflated with the codec of their producer.

Pure: pyarrow knows LZ4 and Zstandard and is always installed, so they need no extra; the codecs of
``protocol.compression`` are used where a pyarrow was built without them.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from rocketstream import limits
from rocketstream.errors import NotSupportedError, RemoteProtocolError
from rocketstream.model import MessageQueue
from rocketstream.protocol.codes import MessageSysFlag
from rocketstream.protocol.compression import decompress
from rocketstream.spark.losses import described

BODY_BYTES_MAX: Final = limits.DECOMPRESSED_BODY_BYTES_MAX
_READ_BYTES: Final = 1024 * 1024

_CODECS: Final = {
    MessageSysFlag.COMPRESSION_LZ4: "lz4",
    MessageSysFlag.COMPRESSION_ZSTD: "zstd",
}


def inflate_body(stored: bytes, sys_flag: int, queue: MessageQueue, offset: int) -> bytes:
    """Return the body of a message; unchanged if it is not compressed.

    Args:
        stored: the body as the broker keeps it.
        sys_flag: flags of the message, which name the codec.
        queue: where the message stands, for errors.
        offset: likewise.

    Raises:
        RemoteProtocolError: the body is damaged, of an unknown type, or larger than
            ``BODY_BYTES_MAX`` inflated.
        NotSupportedError: no installed package knows the codec.
    """
    if not sys_flag & MessageSysFlag.COMPRESSED:
        return stored
    codec = _CODECS.get(sys_flag & MessageSysFlag.COMPRESSION_MASK, "")
    try:
        if codec and pa.Codec.is_available(codec):
            return _inflate(stored, codec)
        return decompress(stored, sys_flag, bytes_max=BODY_BYTES_MAX)
    except (RemoteProtocolError, NotSupportedError) as error:
        with_codec = f" with {codec}" if codec else ""
        raise type(error)(
            f"the body at offset {offset} of {described(queue)} cannot be inflated{with_codec}: "
            f"{error.message}",
            queue=tuple(queue),
            offset=offset,
        ) from error


def _inflate(stored: bytes, codec: str) -> bytes:
    # Frames of streaming producers do not state their size, so it is not asked for.
    parts: list[bytes] = []
    size = 0
    try:
        with pa.CompressedInputStream(pa.BufferReader(stored), codec) as stream:
            while part := stream.read(_READ_BYTES):
                parts.append(part)
                size += len(part)
                if size > BODY_BYTES_MAX:
                    raise RemoteProtocolError(f"it makes more than {BODY_BYTES_MAX} bytes")
    except OSError as error:
        raise RemoteProtocolError(f"{codec} data is damaged: {error}") from None
    if not stored:
        raise RemoteProtocolError(f"{codec} data is cut short")
    return parts[0] if len(parts) == 1 else b"".join(parts)
