"""A broker's and a client's offset files as rows, or the reason why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketstream.errors import ConfigurationError
from rocketstream.spark.options.formats import FileOptions
from rocketstream.spark.progress.tables import FILE_COLUMNS, read_files

BROKER = b'{"offsetTable":{"orders@billing":{1:5,0:2},"%RETRY%billing@billing":{0:7}}}'
CLIENT = b'{"offsetTable":{{"brokerName":"broker-a","queueId":3,"topic":"orders"}:17}}'


def rows(*paths: Path | str, backup: bool = False) -> list[dict[str, object]]:
    found = read_files(FileOptions(tuple(map(str, paths)), backup))
    return [dict(zip(FILE_COLUMNS, row, strict=True)) for row in found]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "consumerOffset.json").write_bytes(BROKER)
    return tmp_path


def test_a_broker_file_is_a_row_per_group_topic_and_queue(store: Path) -> None:
    path = store / "config" / "consumerOffset.json"
    found = rows(path)
    assert [(r["group"], r["topic"], r["queueId"], r["committedOffset"]) for r in found] == [
        ("billing", "orders", 0, 2),
        ("billing", "orders", 1, 5),
        ("billing", "%RETRY%billing", 0, 7),
    ]
    assert {r["file"] for r in found} == {str(path)}
    assert found[0]["modifiedAt"] == path.stat().st_mtime_ns // 1_000_000
    assert found[0]["brokerName"] is None


def test_a_clients_file_tells_its_client_and_group_by_where_it_lies(tmp_path: Path) -> None:
    """Covers C-304."""
    path = tmp_path / "10.0.0.9@4242" / "prices" / "offsets.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(CLIENT)
    (row,) = rows(path)
    assert (row["clientId"], row["group"]) == ("10.0.0.9@4242", "prices")
    assert (row["brokerName"], row["queueId"], row["committedOffset"]) == ("broker-a", 3, 17)


def test_a_store_a_pattern_and_a_file_url_lead_to_the_same_file(store: Path) -> None:
    direct = rows(store / "config" / "consumerOffset.json")
    assert rows(store) == direct
    assert rows(store / "c*" / "consumerOffset.json") == direct
    assert rows(f"file://{store}/config/consumerOffset.json") == direct


def test_the_backup_is_read_only_when_asked(store: Path) -> None:
    path = store / "config" / "consumerOffset.json"
    path.rename(path.with_name("consumerOffset.json.bak"))
    with pytest.raises(ConfigurationError, match=r"backup=true reads .*Offset\.json\.bak"):
        rows(path)
    assert {row["file"] for row in rows(path, backup=True)} == {f"{path}.bak"}
    assert len(rows(store, backup=True)) == 3
    path.write_bytes(b'{"offsetTable":{"orders@bil')
    with pytest.raises(ConfigurationError, match="backup=true"):
        rows(path)
    assert len(rows(path, backup=True)) == 3
    path.write_bytes(b'{"offsetTable":{"new@billing":{0:1}}}')
    assert [row["topic"] for row in rows(path, backup=True)] == ["new"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "is empty"),
        (b"not json", "holds no offsets"),
        (b"[]", "holds no offsets"),
        (b"{}", "it has no offsetTable"),
        (b'{"offsetTable":{"orders":{0:1}}}', "not of the form topic@group"),
        (b'{"offsetTable":{"orders@billing":{0:"x"}}}', "holds no offsets"),
    ],
)
def test_what_holds_no_offsets_is_refused_by_name(tmp_path: Path, text: bytes, said: str) -> None:
    path = tmp_path / "consumerOffset.json"
    path.write_bytes(text)
    with pytest.raises(ConfigurationError, match=said) as caught:
        rows(path)
    assert str(path) in caught.value.message


def test_places_without_a_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read on the driver"):
        rows(tmp_path / "consumerOffset.json")
    with pytest.raises(ConfigurationError, match="no file matches"):
        rows(tmp_path / "*.json")
    with pytest.raises(ConfigurationError, match="has none of"):
        rows(tmp_path)
    with pytest.raises(ConfigurationError, match="the driver's own disk"):
        rows("s3a://bucket/consumerOffset.json")


def test_an_empty_table_is_no_row(tmp_path: Path) -> None:
    path = tmp_path / "consumerOffset.json"
    path.write_bytes(b'{"offsetTable":{}}')
    assert rows(path) == []
