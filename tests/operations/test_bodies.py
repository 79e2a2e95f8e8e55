"""Bodies as they are shown: decoded where they can be, said so where not, never without bound."""

from __future__ import annotations

import datetime
import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from rocketstream.admin.messages.bodies import BodyFormat, decode_body, to_json
from rocketstream.errors import ConfigurationError

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "tag", "type": ["null", "string"]},
        {"name": "raw", "type": "bytes"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
AT = datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        (b"", "text", ""),
        (b"hello\tyou\n", "text", "hello\tyou\n"),
        ("grüße".encode(), "text", "grüße"),
        (b'{"a": 1}', "json", '{"a": 1}'),
        (b" [1,2]\n", "json", " [1,2]\n"),
        (b"7", "text", "7"),
        (b'{"a": 1', "text", '{"a": 1'),
        (b'{"a": NaN}', "text", '{"a": NaN}'),
        (b"\xff\xfe\x01", "hex", "ff fe 01"),
        (b"\x00\x00", "hex", "00 00"),
        (b"\x1b[31mred", "hex", "1b 5b 33 31 6d 72 65 64"),
        (b"[" * 100_000, "text", "[" * 65_536),
    ],
)
def test_a_body_is_read_as_what_it_is(body: bytes, kind: str, text: str) -> None:
    found = decode_body(body)
    assert (found.kind, found.text, found.size) == (kind, text, len(body))
    assert (found.problem, found.is_hex) == (None, kind == "hex")


def test_what_is_not_what_it_was_to_be_says_so() -> None:
    for name, body, said in [
        ("json", b"hello", "it is not JSON"),
        ("json", b"\xff", "it is not UTF-8 text"),
        ("text", b"\xff", "it is not UTF-8 text"),
    ]:
        found = decode_body(body, BodyFormat.parse(name))
        assert (found.kind, found.problem) == ("undecodable", said)
    assert decode_body(b"7", BodyFormat.parse("json")).value == 7
    assert decode_body(b"abc", BodyFormat.parse("hex")).text == "61 62 63"
    assert decode_body(b"\x1b[31m", BodyFormat.parse("text")).kind == "text"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"hello", None),
        (b"", None),
        (b"\xff\x00", None),
        ("ü".encode() * 100_000, "the first 65,536 of 100,000 characters"),
        (b"[" + b"1," * 50_000 + b"1]", "the first 65,536 of 100,003 characters"),
        (b"\xff" * 100_000, "the first 21,845 of 100,000 bytes"),
    ],
)
def test_a_cut_body_says_how_much_of_how_much_is_shown(body: bytes, said: str | None) -> None:
    assert decode_body(body).part() == said


def test_a_face_that_shows_less_says_so_too() -> None:
    assert decode_body(b"hello").part(4) == "the first 4 of 5 characters"
    assert decode_body(b"hello").part(5) is None


def test_output_is_bounded_and_the_parsed_value_whole() -> None:
    body = json.dumps({"a": "x" * 1_000}).encode()
    found = decode_body(body, most=20)
    assert (len(found.text), found.is_cut, found.size) == (20, True, len(body))
    assert found.value == {"a": "x" * 1_000}
    found = decode_body(b"\xff" * 1_000, most=30)
    assert (found.text, found.is_cut) == ("ff ff ff ff ff ff ff ff ff ff", True)


@given(st.binary(max_size=200))
def test_no_bytes_make_it_fail(body: bytes) -> None:
    found = decode_body(body)
    if found.is_hex:
        assert bytes.fromhex(found.text) == body
    else:
        assert found.text.encode() == body


# --- Avro -----------------------------------------------------------------------------------------


@pytest.fixture
def avro(tmp_path: Path) -> BodyFormat:
    schema = tmp_path / "order.avsc"
    schema.write_text(json.dumps(ORDER))
    return BodyFormat.parse(None, str(schema))


def order(number: int = 7) -> bytes:
    stream = io.BytesIO()
    value = {"id": number, "tag": "eu", "raw": b"\x01\xff", "at": AT}
    fastavro.schemaless_writer(stream, ORDER, value)
    return stream.getvalue()


@pytest.mark.parametrize("head", [b"", b"\xc3\x01" + bytes(8), b"\0\0\0\0\x07"])
def test_avro_is_read_by_its_schema_with_the_headers_it_may_have(
    avro: BodyFormat, head: bytes
) -> None:
    found = decode_body(head + order(), avro)
    assert found.kind == "avro"
    assert json.loads(found.text) == {
        "id": 7, "tag": "eu", "raw": "01ff", "at": "2024-05-01T12:00:00+00:00",
    }  # fmt: skip


@pytest.mark.parametrize("body", [b"", b"\x0e", order() + b"x", b"\xff" * 40, b'{"id": 7}'])
def test_what_is_no_such_record_is_shown_as_bytes(avro: BodyFormat, body: bytes) -> None:
    found = decode_body(body, avro)
    assert (found.kind, found.is_hex) == ("undecodable", True)
    assert str(found.problem).startswith("it is not a value of the avro schema: ")


def test_schemas_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    def parse(content: str, *arguments: Any) -> str:
        (tmp_path / "x.avsc").write_text(content)
        with pytest.raises(ConfigurationError) as error:
            BodyFormat.parse("avro", str(tmp_path / "x.avsc"), *arguments)
        return error.value.message

    assert "is not an Avro schema" in parse("{")
    assert "is not an Avro schema" in parse('{"type": "record"}')
    # Three bytes of a body could say that a trillion of these follow.
    assert "take no bytes" in parse('{"type": "array", "items": "null"}')
    assert "leave it out for avro" in parse('"string"', "shop.Order")
    with pytest.raises(ConfigurationError, match="needs a schema"):
        BodyFormat.parse("avro")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        BodyFormat.parse(None, str(tmp_path / "gone.avsc"))
    with pytest.raises(ConfigurationError, match="'yaml' is not known"):
        BodyFormat.parse("yaml")
    with pytest.raises(ConfigurationError, match="takes no schema"):
        BodyFormat.parse("json", "x.avsc")


# --- Protobuf -------------------------------------------------------------------------------------


def descriptor() -> descriptor_pb2.FileDescriptorSet:
    file = descriptor_pb2.FileDescriptorProto(name="o.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    message.field.add(name="order_id", number=1, type=3, label=1)
    message.field.add(name="raw", number=2, type=12, label=1)
    return descriptor_pb2.FileDescriptorSet(file=[file])


@pytest.fixture
def protobuf_file(tmp_path: Path) -> str:
    path = tmp_path / "orders.desc"
    path.write_bytes(descriptor().SerializeToString())
    return str(path)


def test_protobuf_is_read_by_its_descriptor(protobuf_file: str) -> None:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(descriptor().file[0].SerializeToString())
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    how = BodyFormat.parse(None, protobuf_file, "shop.Order")
    found = decode_body(kind(order_id=7, raw=b"\xff").SerializeToString(), how)
    assert (found.kind, found.value) == ("protobuf", {"order_id": "7", "raw": "/w=="})
    assert decode_body(b"", how).value == {}
    for body in (b"\xff\xff", b"hello"):
        assert decode_body(body, how).kind == "undecodable"
    # Field 9 of an unknown message: any bytes of that form are some message.
    assert "none of the message's fields" in str(decode_body(b"\x48\x01", how).problem)


def test_a_descriptor_that_cannot_be_used_is_refused(protobuf_file: str, tmp_path: Path) -> None:
    for message, said in [(None, "no message is named"), ("shop.Nope", "has shop.Order")]:
        with pytest.raises(ConfigurationError, match=said):
            BodyFormat.parse("protobuf", protobuf_file, message)
    (tmp_path / "bad").write_bytes(b"no")
    with pytest.raises(ConfigurationError, match="not a Protobuf descriptor set"):
        BodyFormat.parse("protobuf", str(tmp_path / "bad"), "x")


def test_values_json_lacks_are_shown_as_text() -> None:
    value = {"b": b"\x01", "d": datetime.date(2024, 5, 1), "n": 1.5}
    assert to_json(value) == '{"b": "01", "d": "2024-05-01", "n": 1.5}'
