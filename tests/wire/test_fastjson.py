"""The fastjson dialect: what Java writes, what Java reads (wire-and-storage 3.1)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstream.errors import LocalProtocolError, RemoteProtocolError
from rocketstream.model import MessageQueue
from rocketstream.protocol.fastjson import DEPTH_MAX, _Reader, as_queue, dumps, java_double, loads
from tests.wire.strategies import JSON, STANDARD_JSON

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
        (
            r"['\ud800','\udfff','\udc00a','\ud7ff\ue000']",
            ["\ufffd", "\ufffd", "\ufffda", "\ud7ff\ue000"],
        ),
        (r"['\ud800\udc00','\udbff\udfff']", ["\U00010000", "\U0010ffff"]),
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
    assert dumps(loads(text.replace('"', "'"))) == text


def test_a_number_in_the_dialect_has_as_many_digits_as_it_may() -> None:
    """The greatest double has 309; a text of thousands would take long to read."""
    assert loads("{a:[" + "1" * 400 + "]}") == {"a": [int("1" * 400)]}
    assert loads("{a:1." + "0" * 398 + "}") == {"a": 1.0}
    with pytest.raises(RemoteProtocolError, match="expected a number"):
        loads("{a:[" + "1" * 401 + "]}")


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
    assert as_queue({"topic": "T", "brokerName": "b"}) == QUEUE  # Java's int is 0
    assert as_queue({"topic": "T", "brokerName": "b", "queueId": "0"}) is None
    assert as_queue({"topic": "T", "brokerName": 1, "queueId": 0}) is None
    assert as_queue({"topic": None, "brokerName": "b", "queueId": 0}) is None
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
        (9999999.999, "9999999.999"),
        (1e7, "1.0E7"),
        (-1e7, "-1.0E7"),
        (10000000.5, "1.00000005E7"),
        (-0.0, "-0.0"),
        (0.0009999, "9.999E-4"),
        (0.0010001, "0.0010001"),
        (1.2345678901234567e19, "1.2345678901234567E19"),
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


# --- bounds, and the quick way --------------------------------------------------------------------


@pytest.mark.parametrize("text", ['[{"a":1},{"b":[2]}]', "[{a:1},{b:[2]}]"])
@pytest.mark.parametrize("kind", [str, str.encode])
def test_a_text_has_as_many_values_as_it_may(text: str, kind: Any) -> None:
    """Commas, colons and opening brackets count, whatever the form of the text."""
    assert loads(kind(text), values_max=7) == [{"a": 1}, {"b": [2]}]
    with pytest.raises(RemoteProtocolError, match="with 7 values and names is over the max") as it:
        loads(kind(text), values_max=6)
    assert (it.value.parameters["values"], it.value.parameters["values_max"]) == (7, 6)


def test_a_text_in_the_dialect_is_as_long_as_it_may_be() -> None:
    assert loads("{a:1}", lenient_chars_max=5) == {"a": 1}
    with pytest.raises(RemoteProtocolError, match="5 characters, at most 4"):
        loads("{a:1}", lenient_chars_max=4)


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ("{a:", "}"), ("{{a:1}:", "}")])
def test_a_text_in_the_dialect_is_nested_as_deeply_as_it_may_be(opening: str, closing: str) -> None:
    deepest = DEPTH_MAX - opening.count("{{")
    loads(opening * deepest + "'x'" + closing * deepest)
    with pytest.raises(RemoteProtocolError, match=f"nested deeper than {DEPTH_MAX}"):
        loads(opening * (DEPTH_MAX + 1) + "'x'" + closing * (DEPTH_MAX + 1))


def test_a_value_is_written_as_deeply_nested_as_it_is_read() -> None:
    """The outermost stands at depth 0."""
    for make in (lambda inner: [inner], lambda inner: {"a": inner}):
        value: Any = "x"
        for _ in range(DEPTH_MAX + 1):
            value = make(value)
        assert dumps(value).count("x") == 1
        with pytest.raises(LocalProtocolError, match=f"nested deeper than {DEPTH_MAX}"):
            dumps(make(value))


def test_plain_pairs_and_whole_numbers_are_read_many_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tables of topics and of offsets consist of them."""

    def one_by_one(*_: object) -> object:
        raise AssertionError("read one by one")

    def key(reader: _Reader, first: str) -> object:
        keys.append(first)
        return read_key(reader, first)

    keys: list[str] = []
    read_key = _Reader.key
    monkeypatch.setattr(_Reader, "key", key)
    assert loads("{a:[],b:1,c:2,d:{e:3,f:[],g:4},h:5}") == {
        "a": [], "b": 1, "c": 2, "d": {"e": 3, "f": [], "g": 4}, "h": 5
    }  # fmt: skip
    assert keys == ["a", "d", "f"]
    monkeypatch.setattr(_Reader, "key", one_by_one)
    monkeypatch.setattr(_Reader, "number", one_by_one)
    assert loads("{0:1,1:-2,a:'',}".replace("''", '"b"')) == {0: 1, 1: -2, "a": "b"}
    assert loads('[{0:1},{"a":2}]') == [{0: 1}, {"a": 2}]
    assert loads("[1,-2,3,]") == [1, -2, 3]


def test_the_standard_form_writes_units_of_utf16() -> None:
    assert dumps("\uffff\U00010000\U0010ffff", standard=True) == (
        r'"\uFFFF\uD800\uDC00\uDBFF\uDFFF"'
    )
