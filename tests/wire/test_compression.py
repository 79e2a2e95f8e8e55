"""Compressed bodies by type, their bounds, and what is refused (wire-and-storage 4.6)."""

from __future__ import annotations

import sys
import zlib

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from rocketstream.errors import ConfigurationError, NotSupportedError, RemoteProtocolError
from rocketstream.protocol.compression import compress, decompress
from tests.kits import vectors

VECTORS = [
    (vectors.X200_ZLIB, 769),
    (vectors.X200_ZLIB, 1),
    (vectors.X200_LZ4, 257),
    (vectors.X200_ZSTD, 513),
]
TYPES = ["ZLIB", "LZ4", "ZSTD"]


@pytest.mark.parametrize(("packed", "sys_flag"), VECTORS)
def test_java_bodies_inflate(packed: bytes, sys_flag: int) -> None:
    assert decompress(packed, sys_flag) == vectors.X200


def test_zlib_level_5_is_byte_equal_to_java() -> None:
    assert compress(vectors.X200) == (vectors.X200_ZLIB, 769)


@pytest.mark.parametrize(("kind", "bits"), [("ZLIB", 769), ("LZ4", 257), ("ZSTD", 513)])
def test_type_bits_name_the_codec(kind: str, bits: int) -> None:
    packed, flag = compress(vectors.X200, kind)
    assert flag == bits
    assert decompress(packed, flag) == vectors.X200
    assert compress(vectors.X200, kind.lower())[1] == bits


@given(st.binary(max_size=500), st.sampled_from(TYPES), st.integers(0, 9))
def test_compression_round_trip(body: bytes, kind: str, level: int) -> None:
    packed, flag = compress(body, kind, level)
    assert decompress(packed, flag) == body


def test_plain_body_is_returned_as_it_is() -> None:
    body = b"plain"
    assert decompress(body, 0x300) is body


@pytest.mark.parametrize("kind", TYPES)
def test_body_over_the_ceiling_is_refused(kind: str) -> None:
    packed, flag = compress(bytes(100_000), kind)
    assert len(decompress(packed, flag, bytes_max=100_000)) == 100_000
    with pytest.raises(RemoteProtocolError, match="more than 99999 bytes"):
        decompress(packed, flag, bytes_max=99_999)


@pytest.mark.parametrize(("packed", "sys_flag"), VECTORS)
def test_cut_or_changed_body_inflates_or_is_refused(packed: bytes, sys_flag: int) -> None:
    for size in range(len(packed)):
        with pytest.raises(RemoteProtocolError):
            decompress(packed[:size], sys_flag)
    for at in range(len(packed)):
        for bit in range(8):
            data = bytearray(packed)
            data[at] ^= 1 << bit
            try:
                decompress(bytes(data), sys_flag)
            except RemoteProtocolError:
                continue


def test_zstd_frame_without_a_size_inflates_and_is_bounded() -> None:
    streamed = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    packed = streamed.compress(bytes(50_000)) + streamed.flush()
    assert decompress(packed, 513) == bytes(50_000)
    with pytest.raises(RemoteProtocolError, match="more than 10 bytes"):
        decompress(packed, 513, bytes_max=10)
    with pytest.raises(RemoteProtocolError):
        decompress(packed[:-2], 513)


@pytest.mark.parametrize("sys_flag", [0x401, 0x501, 0x601, 0x701])
def test_unknown_type_is_refused(sys_flag: int) -> None:
    with pytest.raises(RemoteProtocolError, match="unknown"):
        decompress(zlib.compress(b"x"), sys_flag)


@pytest.mark.parametrize(("kind", "level"), [("GZIP", 5), ("ZLIB", 10), ("ZLIB", -1)])
def test_unknown_type_or_level_is_refused_when_compressing(kind: str, level: int) -> None:
    with pytest.raises(ConfigurationError):
        compress(b"x", kind, level)


def test_codec_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    for kind, package, packed, flag in [
        ("LZ4", "lz4", vectors.X200_LZ4, 257),
        ("ZSTD", "zstandard", vectors.X200_ZSTD, 513),
    ]:
        with pytest.raises(NotSupportedError, match=package):
            compress(b"x", kind)
        with pytest.raises(NotSupportedError, match=package):
            decompress(packed, flag)


@pytest.mark.parametrize("kind", TYPES)
def test_levels_are_those_of_zlib(kind: str) -> None:
    body = bytes(range(256)) * 20
    for level in (0, 1, 9):
        packed, flag = compress(body, kind, level)
        assert decompress(packed, flag) == body
    if kind != "LZ4":  # which has one level here, the quickest
        assert len(compress(body, kind, 9)[0]) <= len(compress(body, kind, 1)[0])
    if kind == "ZLIB":
        assert compress(body, kind, 0)[0] == zlib.compress(body, 0)
    with pytest.raises(ConfigurationError, match="not in 0 to 9"):
        compress(body, kind, 10)


@pytest.mark.parametrize(("packed", "sys_flag"), VECTORS)
def test_what_follows_a_whole_body_is_passed_over(packed: bytes, sys_flag: int) -> None:
    """Though it be longer than what is read at once."""
    for rest in (b"?", b"?" * 3_000):
        assert decompress(packed + rest, sys_flag, bytes_max=200) == vectors.X200


@pytest.mark.parametrize("kind", TYPES)
def test_a_body_that_is_cut_short_is_not_taken_for_one_that_is_too_large(kind: str) -> None:
    packed, flag = compress(vectors.X200 * 9, kind)
    with pytest.raises(RemoteProtocolError, match=f"{kind.lower()} body is cut short"):
        decompress(packed[:-3], flag)
