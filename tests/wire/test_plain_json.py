"""What stands in for orjson reads and writes as orjson does."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rocketstream.protocol import plain_json
from rocketstream.protocol.plain_json import dumps_without_orjson, loads_without_orjson

orjson = pytest.importorskip("orjson")  # a free-threaded Python may have none

TEXTS = st.text(st.characters(codec=None))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 66), 1 << 66) | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS | st.integers(), inner),
    max_leaves=12,
)
FRAGMENTS = [
    *'[]{},:" -+.eE019', "true", "null", "NaN", "Infinity", '"a"', r'"\ud83d\ude00"', r'"\ud800"',
    r'"\u00e9"', '"\\', "\\n", "1e999", "-0", "99999999999999999999", "-9223372036854775808",
    "18446744073709551615", "\t", "\x0c", "\x00", "é", "\ufeff",
]  # fmt: skip


def outcome(function: Any, value: Any, error: type[Exception]) -> tuple[str, Any]:
    try:
        return "value", repr(function(value))
    except error:
        return "error", None


@given(VALUES)
@example({"a": '\x7f\x1f\u2028é\b\f/"\\'})
@example("\ud800")
@example(1 << 64)
@example((1 << 64) - 1)
@example(-(1 << 63))
@example(-(1 << 63) - 1)
@example(b"bytes")
@example((1, "two", 1.5, -2.25, float("nan"), float("-inf")))
def test_values_are_written_as_orjson_writes_them(value: Any) -> None:
    ours = outcome(dumps_without_orjson, value, TypeError)
    assert ours == outcome(orjson.dumps, value, TypeError)


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join), st.booleans())
@example("", True)
@example("[" * 1024 + "]" * 1024, True)
@example("[" * 1025 + "]" * 1025, True)
@example('"' + "[" * 2000 + '"', True)
@example("1" * 5000, True)
@example("1" * 300, True)
@example("18446744073709551615", True)
@example("18446744073709551616", True)
@example("-9223372036854775808", True)
@example("-9223372036854775809", True)
def test_texts_are_read_as_orjson_reads_them(text: str, as_bytes: bool) -> None:
    """The same value, or neither takes it."""
    data = text.encode() if as_bytes else text
    ours = outcome(loads_without_orjson, data, json.JSONDecodeError)
    assert ours == outcome(orjson.loads, data, json.JSONDecodeError)


@given(st.binary(max_size=20))
@example(b"\xed\xa0\x80")
@example(b"\xef\xbb\xbf1")
@example(b'"\xff"')
@example("1".encode("utf-16"))
def test_bytes_that_are_no_text_are_refused(data: bytes) -> None:
    ours = outcome(loads_without_orjson, memoryview(data), json.JSONDecodeError)
    assert ours == outcome(orjson.loads, memoryview(data), json.JSONDecodeError)


@pytest.mark.parametrize("data", [b"\xff", b"[" * 2_000, b"1e999", b'"\\ud800"'])
def test_an_error_of_the_whole_text_is_at_its_beginning(data: bytes) -> None:
    with pytest.raises(json.JSONDecodeError) as caught:
        loads_without_orjson(data)
    assert (caught.value.pos, caught.value.lineno, caught.value.colno) == (0, 1, 1)


@pytest.mark.parametrize("text", ['"\ud800"', '"x\udfff"'])
def test_half_of_a_pair_in_a_string_is_refused(text: str) -> None:
    with pytest.raises(json.JSONDecodeError):
        orjson.loads(text)
    with pytest.raises(json.JSONDecodeError):
        loads_without_orjson(text)


def test_orjson_is_used_where_it_is_installed() -> None:
    assert (plain_json.dumps, plain_json.loads) == (orjson.dumps, orjson.loads)


PROGRAM = """
import sys
if sys.argv[1] == "without":
    sys.modules["orjson"] = None  # importing it fails
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.framing import FrameDecoder
command = RemotingCommand(10, ext_fields={"\u00e9": "\u2028", "b": "1"}, remark="no")
frame = command.frame()
(read,) = FrameDecoder().feed(frame)
print(frame.hex(), ascii(read.ext_fields), sys.modules["orjson"] is None)
"""


def test_frames_are_the_same_without_orjson() -> None:
    """A process that has no orjson, as on a free-threaded Python, writes and reads the same."""
    said = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True
        ).stdout.rsplit(maxsplit=1)
        for how in ("with", "without")
    ]
    assert said[0][0] == said[1][0] != ""
    assert [each[1] for each in said] == ["False", "True"]
