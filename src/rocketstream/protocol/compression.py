"""Deflates and inflates message bodies by the type in their sysFlag.

Pure: bytes in, bytes out.

Law: no other module imports lz4 and zstandard, which are both optional.
"""

from __future__ import annotations

import contextlib
import zlib
from typing import Any, Final

from rocketstream import limits
from rocketstream.errors import ConfigurationError, NotSupportedError, RemoteProtocolError
from rocketstream.protocol.codes import MessageSysFlag

COMPRESSION_TYPES: Final = ("ZLIB", "LZ4", "ZSTD")

_ZSTD_PIECE_BYTES: Final = 1024

_ZLIB_OLD: Final = 0
"""Type bits of producers before 4.9.4, which knew only zlib."""


def load_codecs() -> None:
    """Import the codecs that are installed, before a first message would have to wait for it."""
    for load in (_lz4_frame, _zstandard):
        with contextlib.suppress(NotSupportedError):
            load()


def require_codec(type: str) -> None:
    """Import the codec that bodies will be compressed by, before the first of them.

    Args:
        type: ZLIB, LZ4 or ZSTD, in any case.

    Raises:
        NotSupportedError: it is not installed.
    """
    load = {"LZ4": _lz4_frame, "ZSTD": _zstandard}.get(type.upper())
    if load is not None:
        load(f"compress_type {type!r}")


def compress(body: bytes, type: str = "ZLIB", level: int = 5) -> tuple[bytes, int]:
    """Return a compressed body and the sysFlag bits that say so.

    Args:
        body: what to compress.
        type: ZLIB, LZ4 or ZSTD.
        level: 1 to 9 as in zlib; used the same way by the others.

    Raises:
        ConfigurationError: an unknown type or level.
        NotSupportedError: the codec is not installed.
    """
    if not isinstance(level, int) or not 0 <= level <= 9:
        raise ConfigurationError(f"compress level {level!r} is not in 0 to 9", level=level)
    kind = type.upper()
    if kind == "ZLIB":
        flag = MessageSysFlag.COMPRESSION_ZLIB
        return zlib.compress(body, level), MessageSysFlag.COMPRESSED | flag
    if kind == "LZ4":
        packed: bytes = _lz4_frame().compress(body, compression_level=0, store_size=False)
        return packed, MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_LZ4
    if kind == "ZSTD":
        packed = _zstandard().ZstdCompressor(level=max(level, 1)).compress(body)
        return packed, MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_ZSTD
    raise ConfigurationError(
        f"compress type {type!r} is unknown; accepted are {', '.join(COMPRESSION_TYPES)}",
        type=type,
    )


def decompress(
    body: bytes, sys_flag: int, *, bytes_max: int = limits.DECOMPRESSED_BODY_BYTES_MAX
) -> bytes:
    """Inflate a body by the type bits of its sysFlag; unchanged if it is not compressed.

    Raises:
        RemoteProtocolError: the body is damaged, of an unknown type, or inflates to more than
            ``bytes_max``.
        NotSupportedError: the codec is not installed.
    """
    if not sys_flag & MessageSysFlag.COMPRESSED:
        return body
    kind = sys_flag & MessageSysFlag.COMPRESSION_MASK
    if kind in (_ZLIB_OLD, MessageSysFlag.COMPRESSION_ZLIB):
        return inflate(body, bytes_max)
    if kind == MessageSysFlag.COMPRESSION_LZ4:
        return _lz4_decompress(body, bytes_max)
    if kind == MessageSysFlag.COMPRESSION_ZSTD:
        return _zstd_decompress(body, bytes_max)
    raise RemoteProtocolError(f"compression type {kind >> 8} of a message body is unknown")


def inflate(body: bytes, bytes_max: int = limits.DECOMPRESSED_BODY_BYTES_MAX) -> bytes:
    """Inflate a zlib stream.

    Raises:
        RemoteProtocolError: the stream is damaged, cut short, or inflates to more than
            ``bytes_max``.
    """
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(body, bytes_max)
    except zlib.error as error:
        raise RemoteProtocolError(f"zlib body is damaged: {error}") from None
    if not inflater.eof:
        if inflater.unconsumed_tail or len(data) >= bytes_max:
            raise _too_large(bytes_max)
        raise RemoteProtocolError("zlib body is cut short")
    return data


def _lz4_decompress(body: bytes, bytes_max: int) -> bytes:
    inflater = _lz4_frame().LZ4FrameDecompressor()
    try:
        data: bytes = inflater.decompress(body, max_length=bytes_max)
    except (RuntimeError, ValueError, MemoryError, EOFError) as error:
        raise RemoteProtocolError(f"lz4 body is damaged: {error}") from None
    if not inflater.eof:
        if len(data) >= bytes_max:
            raise _too_large(bytes_max)
        raise RemoteProtocolError("lz4 body is cut short")
    return data


def _zstd_decompress(body: bytes, bytes_max: int) -> bytes:
    # Java's frames do not tell their size. The input is fed in small pieces, since one byte of it
    # can become 32 KiB: so at most 32 MiB are made beyond the ceiling before it is noticed.
    zstd = _zstandard()
    inflater = zstd.ZstdDecompressor().decompressobj()
    parts: list[bytes] = []
    size = 0
    try:
        for start in range(0, len(body), _ZSTD_PIECE_BYTES):
            part = inflater.decompress(body[start : start + _ZSTD_PIECE_BYTES])
            parts.append(part)
            size += len(part)
            if size > bytes_max:
                raise _too_large(bytes_max)
            if inflater.eof:
                return b"".join(parts)
    except (zstd.ZstdError, MemoryError) as error:
        raise RemoteProtocolError(f"zstd body is damaged: {error}") from None
    raise RemoteProtocolError("zstd body is cut short")


def _too_large(bytes_max: int) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"message body inflates to more than {bytes_max} bytes", bytes_max=bytes_max
    )


# Imported where a body is of their kind: most bodies are not, and most processes meet none.


def _lz4_frame(what: str = "this message body") -> Any:
    try:
        import lz4.frame
    except ImportError:
        raise _missing("lz4", what) from None
    return lz4.frame


def _zstandard(what: str = "this message body") -> Any:
    try:
        import zstandard
    except ImportError:
        raise _missing("zstandard", what) from None
    return zstandard


def _missing(package: str, what: str) -> NotSupportedError:
    return NotSupportedError(
        f"{what} needs the package {package}: install rocketstream[compression]",
        package=package,
    )
