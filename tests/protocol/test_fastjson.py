"""The fastjson dialect: what Java writes, what Java reads (wire-and-storage 3.1)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstream.errors import LocalProtocolError, RemoteProtocolError
from rocketstream.model import MessageQueue
from rocketstream.protocol.fastjson import DEPTH_MAX, as_queue, dumps, java_double, loads
from tests.protocol.strategies import JSON, STANDARD_JSON

QUEUE = MessageQueue("T", "b", 0)
QUEUE_TEXT = '{"brokerName":"b","queueId":0,"topic":"T"}'


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{0:"a",1:"b"}', {0: "a", 1: "b"}),
        ("{-1:5}", {-1: 5}),
        ("{" + QUEUE_TEXT + ":5}", {QUEUE: 5}),
        ("{" + QUEUE_TEXT + ":5,}", {QUEUE: 5}),
        ('{{"topic":"T","queueId":0,"brokerName":"b"}:{"x":1}}', {QUEUE: {"x": 1}}),
        ('{{"$ref":"$.a"}:5}', {(("$ref", "$.a"),): 5}),
        ('{{"a":[1,{"b":2}]}:5}', {(("a", (1, (("b", 2),))),): 5}),
        ("{'a':'b'}", {"a": "b"}),
        ("{a:1,_b:2,$c:3}", {"a": 1, "_b": 2, "$c": 3}),
        ("[1,2,]", [1, 2]),
        ('{"a":1,}', {"a": 1}),
        ("{,,a:1}", {"a": 1}),
        (" [ ] ", []),
        ("{ }", {}),
        (
            "{a:true,b:false,c:null,d:NaN,e:undefined}",
            {"a": True, "b": False, "c": None, "d": None, "e": None},
        ),
        ("[1.5,-2e3,0.5E-1,7L]", [1.5, -2000.0, 0.05, 7]),
        ("{1.5:1}", {"1.5": 1}),
        (r"['\'\"\\\/\b\f\n\r\t\v\0\x41é']", ["'\"\\/\b\f\n\r\t\v\0Aé"]),
        (r"['😀']", ["😀"]),
        (r"['\ud83d']", ["\ufffd"]),
        ("\ufeff{a:1}", {"a": 1}),
        ("['a\nb']", ["a\nb"]),
    ],
)
def test_lenient_reading(text: str, value: Any) -> None:
    assert loads(text) == value
    assert loads(text.encode()) == value
    assert loads(memoryview(text.encode())) == value


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "{", "[", "{a", "{a:", "{a:1", "{a 1}", "{a:1 b:2}", "[1 2]", "{'a':'b}", "'a",
        "{a:x}", "nul", "{:1}", "[1}", "{a:1]", "--1", "{--:1}", "'\\q'", "'\\u12'", "'\\",
        "{a:1}x", "-", "[-]", "{[1]:2}", "[٣]", "1" * 1000 + ",", "{{}", "'" , "[01x]",
    ],
)  # fmt: skip
def test_junk_is_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        loads(text)


def test_bytes_that_are_not_utf8_are_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="UTF-8"):
        loads(b'{"a":"\xff"}')


@pytest.mark.parametrize("opening", ["[", "{a:", '{"a":', "{{a:1}:", "{"])
def test_deep_nesting_is_refused_not_overflowed(opening: str) -> None:
    with pytest.raises(RemoteProtocolError):
        loads(opening * 200_000)


def test_nesting_within_the_bound_is_read_and_written() -> None:
    text = "[" * DEPTH_MAX + "'x'" + "]" * DEPTH_MAX
    assert dumps(loads(text)) == text.replace("'", '"')
    value: list[Any] = []
    for _ in range(DEPTH_MAX + 2):
        value = [value]
    with pytest.raises(LocalProtocolError):
        dumps(value)


def test_values_beside_each_other_do_not_nest() -> None:
    text = "[" + ",".join(['{"a":[1]}'] * (DEPTH_MAX + 2)) + "]"
    assert dumps(loads(text)) == text


def test_an_error_shows_the_text_where_it_is() -> None:
    """Its next twenty characters: the whole may be megabytes."""
    with pytest.raises(RemoteProtocolError, match="not JSON at character ") as caught:
        loads('{"a":?' + "0123456789" * 5)
    assert caught.value.message.endswith("near '?0123456789012345678'")


@given(JSON)
def test_dialect_round_trip(value: Any) -> None:
    assert loads(dumps(value)) == value
    assert loads(dumps(value, pretty=True)) == value


@given(STANDARD_JSON)
def test_standard_form_is_ascii_json(value: Any) -> None:
    text = dumps(value, standard=True)
    assert text.isascii()
    assert json.loads(text) == value


@given(JSON)
def test_standard_form_is_json_for_any_map_key(value: Any) -> None:
    json.loads(dumps(value, standard=True))


def test_writer_inlines_number_and_queue_keys() -> None:
    """covers W 3.1 rules 4 and 5."""
    assert dumps({0: "a", 1: "b"}) == '{0:"a",1:"b"}'
    assert dumps({QUEUE: 5}) == "{" + QUEUE_TEXT + ":5}"
    assert dumps([QUEUE]) == f"[{QUEUE_TEXT}]"


def test_standard_form_quotes_keys_sorts_maps_and_escapes() -> None:
    """covers W 3.1 rule 4: BrowserCompatible with QuoteFieldNames and MapSortField."""
    assert dumps({1: "b", 0: "10.0.0.1:1/é😀\x7f"}, standard=True) == (
        r'{"0":"10.0.0.1:1\/\u00E9\uD83D\uDE00\u007F","1":"b"}'
    )
    assert dumps({QUEUE: 5}, standard=True) == (
        r'{"{\"brokerName\":\"b\",\"queueId\":0,\"topic\":\"T\"}":5}'
    )


def test_default_form_escapes_only_quotes_backslash_and_controls() -> None:
    """covers W 3.1 rule 7."""
    assert dumps('a"b\\c\n\t\x01/é😀') == '"a\\"b\\\\c\\n\\t\\u0001/é😀"'
    assert dumps("\x0b\x7f\u2028") == r'"\u000B\u007F\u2028"'


def test_a_queue_key_may_be_a_quoted_string() -> None:
    """covers W 3.1, reading: {"{\"brokerName\":...}":5}."""
    (key,) = loads(r'{"{\"brokerName\":\"b\",\"queueId\":0,\"topic\":\"T\"}":5}')
    assert as_queue(key) == QUEUE
    assert as_queue("{junk") is None
    assert as_queue("[1]") is None
    assert as_queue({"topic": 1}) is None
    assert as_queue(5) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (1.5, "1.5"),
        (1e10, "1.0E10"),
        (1.25e7, "1.25E7"),
        (9999999.0, "9999999.0"),
        (0.001, "0.001"),
        (0.0001, "1.0E-4"),
        (-3.0e-5, "-3.0E-5"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (float("nan"), "null"),
        (float("-inf"), "null"),
    ],
)
def test_doubles_are_javas(value: float, text: str) -> None:
    """covers W 3.1 rule 6."""
    assert java_double(value) == text
    assert dumps([value]) == f"[{text}]"


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_doubles_keep_their_value(value: float) -> None:
    assert float(java_double(value)) == value


def test_lists_are_laid_out_and_sets_are_not() -> None:
    assert dumps({"a": [1, 2], "b": [], "c": {2, 1}}, pretty=True) == (
        '{\n\t"a":[\n\t\t1,\n\t\t2\n\t],\n\t"b":[],\n\t"c":[1,2]\n}'
    )


def test_value_of_another_type_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="bytes"):
        dumps({"a": b"x"})


def test_error_says_where() -> None:
    with pytest.raises(RemoteProtocolError, match="character 5"):
        loads("{a:1 b:2}")
