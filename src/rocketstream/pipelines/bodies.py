"""Bodies as columns: JSON, variant, CSV, Avro, Protobuf or text.

Law: no row is ever left out here: a body that does not decode is kept raw in ``_malformed``. The
settings of a format are checked without Spark; everything else builds Spark expressions.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rocketstream.errors import ConfigurationError
from rocketstream.pipelines.ddl import check_ddl, columns_of_json
from rocketstream.pipelines.installed import importable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

MALFORMED = "_malformed"
METADATA = ("_topic", "_brokerName", "_queueId", "_queueOffset", "_msgId", "_tags", "_keys",
            "_storeTimestamp")  # fmt: skip
SOURCE_SCHEMA = (
    "topic string, brokerName string, queueId int, queueOffset bigint, msgId string, "
    "tags string, keys string, body binary, storeTimestamp timestamp"
)
"""The source's columns these pipelines use: naming them spares decoding the other columns."""
FORMATS: Final = ("json", "variant", "csv", "avro", "protobuf", "text")
INFER: Final = "infer"
SAMPLE_ROWS: Final = 1_000
_BYTES: Final = "bytes"
_RECORD, _MARK = "_record", "_mark"
_OWN_OPTIONS: Final = ("mode", "columnNameOfCorruptRecord", "avroSchema")
"""Options by which bodies that do not decode are told from others."""
_NEEDS_SCHEMA: Final = {
    "json": "columns like 'id INT, name STRING', or 'infer'",
    "csv": "columns like 'id INT, name STRING', or 'infer'",
    "avro": "a file with the Avro schema (.avsc)",
}


@dataclass(frozen=True, slots=True)
class Bodies:
    """How bodies are to be read.

    Attributes
    ----------
    format : str
        One of ``FORMATS``.
    schema : str or None
        For JSON and CSV Spark DDL, Spark's schema JSON, or ``infer``; for Avro its schema's JSON;
        for Protobuf the message's columns as DDL.
    options : mapping
        Spark's options of that format, such as ``sep`` of CSV.
    message : str or None
        Full name of the Protobuf message.
    descriptor : bytes
        The Protobuf descriptor set it is in.
    """

    format: str = "text"
    schema: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    message: str | None = None
    descriptor: bytes = b""

    def copied(self) -> Bodies:
        """Return settings that leave bodies undecoded: text is carried as its bytes."""
        return dataclasses.replace(self, format=_BYTES) if self.format == "text" else self

    @property
    def inferred(self) -> bool:
        """Whether the schema still has to be inferred from a sample."""
        return self.schema == INFER

    def fields(self) -> dict[str, str] | None:
        """Return the columns of bodies and their types; None where only Spark can tell them."""
        if self.format in ("text", "variant"):
            return {"body": "string" if self.format == "text" else "variant"}
        if self.format == "avro" or self.schema is None or self.inferred:
            return None
        if self.schema.startswith("{"):
            return columns_of_json(json.loads(self.schema))
        return check_ddl(self.schema)

    def columns(self) -> list[str] | None:
        """Return the names of the table's columns; None where only Spark can tell them."""
        fields = self.fields()
        return None if fields is None else [*fields, MALFORMED, *METADATA]

    def identity(self) -> dict[str, Any]:
        """Return, as JSON values, the settings two landings must share to count as the same."""
        found: dict[str, Any] = {"format": self.format, "schema": self.schema}
        if self.options:
            found["options"] = dict(sorted(self.options.items()))
        if self.message is not None:
            # The numbers of fields count too; the columns do not show them.
            digest = hashlib.sha256(self.descriptor).hexdigest()
            found |= {"message": self.message, "descriptor": f"sha256:{digest}"}
        return found


def bodies_of(
    format: str | None,
    schema: str | None,
    options: Mapping[str, str] | None = None,
    descriptor: str | None = None,
    message: str | None = None,
) -> Bodies:
    """Return how to read bodies, checked as far as it can be without Spark.

    Parameters
    ----------
    format : str or None
        One of ``FORMATS``; None is ``json`` with a schema, ``protobuf`` with a descriptor, else
        ``text``.
    schema : str or None
        The schema the format needs, the path of a file that holds it, ``infer``, or ``variant``
        (the format).
    options : mapping, optional
        Spark's options of the format.
    descriptor : str, optional
        The path of a Protobuf descriptor set.
    message : str, optional
        Full name of the Protobuf message bodies are.

    Raises
    ------
    ConfigurationError
        One of these cannot be used; the error lists the accepted ones.
    """
    if format == "protobuf" or (format is None and (descriptor or message) and schema is None):
        return _protobuf_bodies(schema, options, descriptor, message)
    if descriptor is not None or message is not None:
        raise ConfigurationError(
            "a descriptor and a message are for format protobuf; leave them out, or the schema",
            format=format,
        )
    if schema is not None and schema.strip().lower() == "variant" and format in (None, "variant"):
        format, schema = "variant", None
    chosen = format or ("json" if schema is not None else "text")
    if chosen not in FORMATS:
        raise ConfigurationError(
            f"format {chosen!r} is not known; accepted are {', '.join(FORMATS)}", format=chosen
        )
    if chosen in _NEEDS_SCHEMA and schema is None:
        raise ConfigurationError(f"format {chosen} needs a schema: {_NEEDS_SCHEMA[chosen]}")
    if chosen not in _NEEDS_SCHEMA and schema is not None:
        raise ConfigurationError(f"format {chosen} takes no schema; leave it out", schema=schema)
    given = _options(chosen, options or {})
    if schema is None:
        return Bodies(chosen, None, options=given)
    if schema.strip().lower() == INFER:
        if chosen == "avro":
            raise ConfigurationError("an Avro schema cannot be inferred; give its file (.avsc)")
        return Bodies(chosen, INFER, options=given)
    text = read_schema(schema)
    _check_text(chosen, text)
    return Bodies(chosen, text, options=given)


def _options(format: str, given: Mapping[str, str]) -> dict[str, str]:
    own = {name.lower() for name in _OWN_OPTIONS}
    taken = [name for name in given if name.lower() in own or format not in _NEEDS_SCHEMA]
    if taken:
        why = (
            "by it bodies that do not decode are kept"
            if format in _NEEDS_SCHEMA
            else "it has no options"
        )
        raise ConfigurationError(
            f"format {format} takes no option {', '.join(taken)}, for {why}; leave that out",
            options=taken,
        )
    return dict(given)


def _protobuf_bodies(
    schema: str | None,
    options: Mapping[str, str] | None,
    descriptor: str | None,
    message: str | None,
) -> Bodies:
    if schema is not None:
        raise ConfigurationError(
            "format protobuf takes no schema; its columns are those of the message", schema=schema
        )
    if options:
        raise ConfigurationError(f"format protobuf has no options; given are {', '.join(options)}")
    if descriptor is None:
        raise ConfigurationError(
            "format protobuf needs a descriptor set and the name of a message in it: --descriptor "
            "FILE --message NAME; make the file with protoc --include_imports "
            "--descriptor_set_out=FILE YOUR.proto"
        )
    missing = [name for name in ("google.protobuf", "pyarrow") if not importable(name)]
    if missing:
        raise ConfigurationError(
            f"format protobuf needs {' and '.join(missing)}, not installed here (executors need "
            "it too); run: pip install 'rocketstream[spark,protobuf]'",
            missing=missing,
        )
    from rocketstream.pipelines.protobuf import read_descriptor

    content, ddl = read_descriptor(descriptor, message)
    _refuse_taken([*check_ddl(ddl)], ddl)
    return Bodies("protobuf", ddl, message=message, descriptor=content)


def _check_text(format: str, text: str) -> None:
    if format == "avro" or text.startswith("{"):
        try:
            tree = json.loads(text)
        except ValueError as error:
            raise ConfigurationError(f"schema {text[:200]!r} is not JSON: {error}") from error
        record = isinstance(tree, dict) and isinstance(tree.get("fields"), list)
        if format == "avro" and not (record and tree.get("type") == "record"):
            raise ConfigurationError(
                f"schema {text[:200]!r} is not that of an Avro record "
                '({"type":"record","name":…,"fields":[…]})',
                schema=text,
            )
        names = [
            f.get("name", "") for f in (tree["fields"] if record else []) if isinstance(f, dict)
        ]
        if format != "avro" and (tree.get("type") != "struct" or not names):
            raise ConfigurationError(
                f"schema {text[:200]!r} is not Spark's schema JSON "
                '({"type":"struct","fields":[...]})',
                schema=text,
            )
        if format != "avro" and importable("pyspark"):
            parse_schema(text)  # the types too; as JSON they are understood without a running Spark
    else:
        names = [*check_ddl(text)]
    _refuse_taken(names, text)


def _refuse_taken(names: list[str], text: str) -> None:
    lower = {name.lower(): name for name in (MALFORMED, *METADATA)}
    taken = sorted(name for name in names if name.lower() in lower)
    if taken:
        raise ConfigurationError(
            f"schema names {', '.join(taken)}, which is added for every row; leave that out",
            schema=text,
        )


def read_schema(text: str) -> str:
    """Return the schema text, read from a file when ``text`` names one.

    Raises
    ------
    ConfigurationError
        The text is neither a schema nor the path of a readable file.
    """
    word = text.strip()
    if word.startswith("{") or (" " in word and not os.path.exists(word)):
        return word
    try:
        return Path(word).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"schema {word!r} is neither DDL like 'id INT, name STRING', nor schema JSON, nor a "
            "readable text file",
            schema=word,
        ) from error


def parse_schema(text: str) -> StructType:
    """Return the schema a text describes; reading DDL needs a running Spark.

    Parameters
    ----------
    text : str
        Spark DDL (``"id INT, name STRING"``), or Spark's schema JSON
        (``{"type": "struct", "fields": [...]}``).

    Raises
    ------
    ConfigurationError
        The text is neither of the two, or it uses a column name these pipelines need themselves.
    """
    from pyspark.sql.types import StructType

    try:
        if text.startswith("{"):
            schema = StructType.fromJson(json.loads(text))
        else:
            schema = StructType.fromDDL(text)
    except Exception as error:  # pyspark raises ParseException, KeyError, ValueError and more
        raise ConfigurationError(
            f"schema {text[:200]!r} is not understood; accepted are Spark DDL like "
            "'id INT, name STRING', Spark's schema JSON, or a file with one of these",
            schema=text,
        ) from error
    _refuse_taken(schema.fieldNames(), text)
    return schema


def infer_bodies(session: SparkSession, messages: DataFrame, bodies: Bodies) -> Bodies:
    """Return the bodies with the schema inferred from a sample, as DDL.

    Parameters
    ----------
    session : SparkSession
        Not of Spark Connect.
    messages : DataFrame
        A batch read with a column ``body``; its first rows are the sample.
    bodies : Bodies
        Bodies of JSON or CSV. Where there is no schema to infer they are returned unchanged.

    Raises
    ------
    ConfigurationError
        There is no message to sample, or no sampled message shows any columns.
    """
    if not bodies.inferred:
        return bodies
    rows = messages.select("body").limit(SAMPLE_ROWS).collect()
    texts = [bytes(row.body).decode("utf-8", "replace") for row in rows]
    if not texts:
        raise ConfigurationError(
            "there is no message to infer a schema from; give the schema, or wait for messages"
        )
    lines: Any = session.sparkContext.parallelize(texts, 1)
    if bodies.format == "csv":
        found = session.read.options(inferSchema="true", **bodies.options).csv(lines).schema
    else:
        found = session.read.options(**bodies.options).json(lines).schema
    fields = [field for field in found.fields if field.name != "_corrupt_record"]
    if not fields:
        raise ConfigurationError(
            f"none of the first {len(texts)} messages is {bodies.format.upper()} with columns, so "
            f"no schema can be inferred; the first is {texts[0][:100]!r}"
        )
    return dataclasses.replace(bodies, schema=type(found)(fields).toDDL())


def shape(messages: DataFrame, bodies: Bodies, *, with_body: bool = False) -> DataFrame:
    """Return the table's columns: decoded fields, ``_malformed`` and the message's metadata.

    Parameters
    ----------
    messages : DataFrame
        With the columns of ``SOURCE_SCHEMA``.
    bodies : Bodies
        How to read the bodies; nothing left to infer.
    with_body : bool
        Return the body as it came instead of the decoded fields.

    Notes
    -----
    A body that does not decode keeps its raw text in ``_malformed`` (fields that could be read are
    filled); one that is not UTF-8, or of a binary format, is kept there as ``base64:…``.
    """
    from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention

    parsed, fields, malformed = _SHAPES[bodies.format](messages, bodies)
    if with_body:
        fields = [F.col("body")]
    return parsed.select(
        *fields,
        malformed.alias(MALFORMED),
        F.col("topic").alias("_topic"),
        F.col("brokerName").alias("_brokerName"),
        F.col("queueId").alias("_queueId"),
        F.col("queueOffset").alias("_queueOffset"),
        F.col("msgId").alias("_msgId"),
        F.col("tags").alias("_tags"),
        F.col("keys").alias("_keys"),
        F.col("storeTimestamp").alias("_storeTimestamp"),
    )


_Shaped = tuple["DataFrame", "list[Column]", "Column"]


def _text_and_raw() -> tuple[Column, Column, Column]:
    """Return the body as text, whether it is UTF-8, and how a malformed body is kept."""
    from pyspark.sql import functions as F  # noqa: N812

    text = F.col("body").cast("string")
    valid = F.is_valid_utf8(text)
    raw = F.when(valid, text).otherwise(F.concat(F.lit("base64:"), F.base64("body")))
    return text, valid, raw


def _as_text(messages: DataFrame, bodies: Bodies) -> _Shaped:
    from pyspark.sql import functions as F  # noqa: N812

    text, valid, raw = _text_and_raw()
    return messages, [F.when(valid, text).alias("body")], F.when(~valid, raw)


def _as_variant(messages: DataFrame, bodies: Bodies) -> _Shaped:
    from pyspark.sql import functions as F  # noqa: N812

    text, valid, raw = _text_and_raw()
    # The parser stops at the end of the first value, as that of ``_as_json`` does.
    mark = uuid.uuid4().hex
    listed = F.concat(F.lit("["), F.when(valid, text), F.lit(f',"{mark}"]'))
    found = messages.withColumn("_read", F.try_parse_json(listed))
    alone = F.try_variant_get("_read", "$[1]", "string") == mark
    value = F.when(alone, F.try_variant_get("_read", "$[0]", "variant"))
    return found, [value.alias("body")], F.when(value.isNull(), raw)


def _as_json(messages: DataFrame, bodies: Bodies) -> _Shaped:
    from pyspark.sql import functions as F  # noqa: N812

    text, valid, raw = _text_and_raw()
    schema = parse_schema(bodies.schema or "")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": MALFORMED, **bodies.options}
    # ``from_json`` reads ``null`` and blanks as an empty record and stops at the end of the first
    # object, whatever follows. In a list before a mark the text must be one object; no text can end
    # the list itself and go on, for none knows the mark. The line end closes a comment, which an
    # option may allow.
    mark = uuid.uuid4().hex
    listed = F.concat(F.lit(f'{{"{mark}":['), text, F.lit(f'\n,{{"{MALFORMED}":"{mark}"}}]}}'))
    found = messages.withColumn("_read", F.from_json(listed, _listed(mark, schema), options))
    items = F.col("_read").getField(mark)
    last = F.get(items, 1).getField(MALFORMED)
    parsed = found.withColumn("_parsed", F.get(items, 0))
    alone = (F.size(items) == 2) & F.get(items, 0).isNotNull() & (last == mark)
    bad = ~valid | F.col("_read").getField(MALFORMED).isNotNull() | ~F.coalesce(alone, F.lit(False))
    return parsed, _fields(F.col("_parsed"), schema), F.when(bad, raw)


def _listed(name: str, schema: StructType) -> StructType:
    from pyspark.sql.types import ArrayType, StringType, StructField, StructType

    text = StringType()
    items = ArrayType(_with_raw(schema))
    return StructType([StructField(name, items), StructField(MALFORMED, text)])


def _as_csv(messages: DataFrame, bodies: Bodies) -> _Shaped:
    from pyspark.sql import functions as F  # noqa: N812

    text, valid, raw = _text_and_raw()
    schema = parse_schema(bodies.schema or "")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": MALFORMED, **bodies.options}
    ddl = _with_raw(schema).toDDL()
    # ``from_csv`` takes what ends the line for a part of the last column, and an empty line for a
    # record of nulls.
    line = F.regexp_replace(text, r"\r?\n\z", "")
    parsed = messages.withColumn("_parsed", F.from_csv(line, F.lit(ddl), options))
    record = F.col("_parsed")
    bad = ~valid | (line == "") | record.isNull() | record.getField(MALFORMED).isNotNull()
    return parsed, _fields(record, schema), F.when(bad, raw)


def _as_avro(messages: DataFrame, bodies: Bodies) -> _Shaped:
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.avro.functions import from_avro

    # Spark turns a body it cannot decode into a record of nulls, which a body may rightly hold, and
    # pays no heed to what follows the record. Only where a record ends with the body the mark
    # behind it is read as what it is.
    mark = uuid.uuid4().bytes
    schema = bodies.schema or ""
    options = {"mode": "PERMISSIVE", **bodies.options}
    marked = F.concat(F.col("body"), F.lit(mark))
    found = messages.withColumn("_read", from_avro(marked, avro_marked_schema(schema), options))
    whole = F.coalesce(F.col("_read").getField(_MARK) == F.lit(mark), F.lit(False))
    record = F.when(whole, F.col("_read").getField(_RECORD))
    names = [str(field["name"]) for field in json.loads(schema)["fields"]]
    fields = [record.getField(name).alias(name) for name in names]
    raw = F.concat(F.lit("base64:"), F.base64("body"))
    return found, fields, F.when(~whole, raw)


def _as_protobuf(messages: DataFrame, bodies: Bodies) -> _Shaped:
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import StructField, StructType

    from rocketstream.pipelines.protobuf import batch_decoder

    record = parse_schema(bodies.schema or "")
    decoder = batch_decoder(bodies.descriptor, bodies.message or "", "_parsed")
    schema = StructType([*messages.schema.fields, StructField("_parsed", record)])
    parsed = messages.mapInArrow(decoder, schema)
    raw = F.concat(F.lit("base64:"), F.base64("body"))
    return parsed, _fields(F.col("_parsed"), record), F.when(F.col("_parsed").isNull(), raw)


def avro_marked_schema(text: str) -> str:
    """Return the Avro schema of a record with 16 bytes behind it."""
    mark = {"type": "fixed", "name": f"{_MARK}_bytes", "size": 16}
    fields = [{"name": _RECORD, "type": json.loads(text)}, {"name": _MARK, "type": mark}]
    return json.dumps({"type": "record", "name": f"{_RECORD}_and{_MARK}", "fields": fields})


def _as_bytes(messages: DataFrame, bodies: Bodies) -> _Shaped:
    from pyspark.sql import functions as F  # noqa: N812

    return messages, [F.col("body")], F.lit(None).cast("string")


_SHAPES: Final = {
    _BYTES: _as_bytes,
    "text": _as_text,
    "variant": _as_variant,
    "json": _as_json,
    "csv": _as_csv,
    "avro": _as_avro,
    "protobuf": _as_protobuf,
}


def _with_raw(schema: StructType) -> StructType:
    from pyspark.sql.types import StringType, StructField, StructType

    return StructType([*schema.fields, StructField(MALFORMED, StringType())])


def _fields(record: Column, schema: StructType) -> list[Column]:
    return [record.getField(name).alias(name) for name in schema.fieldNames()]
