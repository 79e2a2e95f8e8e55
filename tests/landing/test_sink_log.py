"""The decisions of a compaction in Spark's log of a table, without Spark."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rocketstream.errors import ConfigurationError
from rocketstream.pipelines.sink_log import (
    Position,
    Rewrite,
    groups,
    list_text,
    merged_entry,
    position,
    read_list,
    replaced,
)


def entry(path: str, size: int = 10, modified: int = 1) -> dict[str, Any]:
    return {"path": path, "size": size, "modificationTime": modified, "action": "add"}


def listed(*entries: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["path"]: each for each in entries}


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ([str(n) for n in range(9)], None),
        (["0", "9.compact", ".9.compact.crc", ".9.compact.x.tmp"], Position(9, 9, 10)),
        (["9.compact", "10", "19.compact", "20", "21"], Position(19, 21, 10)),
        (["99.compact", "104.compact", "105"], Position(104, 105, 5)),
    ],
)
def test_a_log_is_as_far_as_the_names_of_its_files(
    names: list[str], found: Position | None
) -> None:
    assert position(names) == found


def test_spark_may_be_writing_a_list_after_the_micro_batch_before_it() -> None:
    assert [Position(9, last, 10).lists_next for last in (9, 17, 18)] == [False, False, True]


def test_a_list_is_written_as_spark_has_written_it() -> None:
    text = 'v1\n{"path":"file:///t%20/é","size":1,"isDir":false,"action":"add"}'
    assert list_text(read_list(text)) == text
    assert list_text(read_list("v1")) == "v1"


@pytest.mark.parametrize("text", ["v2\n", "", 'v1\n{"path":"a","action":"delete"}'])
def test_a_list_of_another_version_is_not_touched(text: str) -> None:
    with pytest.raises(ConfigurationError, match="version that is not known here"):
        read_list(text)


def test_small_files_of_a_directory_make_files_of_the_size_that_is_wanted() -> None:
    """Great ones are left, and so are a few small ones; each directory by itself."""
    entries = [entry(f"a/{n}") for n in range(12)]
    entries += [entry("a/great", 75), entry("a/last", 30), *(entry(f"b/{n}") for n in range(4))]
    found = groups(listed(*entries), 100)
    assert [[each["path"] for each in group] for group in found] == [
        [f"a/{n}" for n in range(10)],
    ]
    assert [len(group) for group in groups(listed(*entries, entry("b/4")), 120)] == [12, 5]


def test_files_are_replaced_all_or_none() -> None:
    """By one as old as the newest of them; a rewrite of what another one made follows it."""
    first = [entry(f"t/{n}", modified=n) for n in range(5)]
    merged = merged_entry(first, "m", 42)
    assert merged == entry("t/m", 42, 4)
    rewrites = {
        "1": Rewrite(tuple(each["path"] for each in first), (merged,)),
        "2": Rewrite(("t/m", "t/5"), (entry("t/n"),)),
        "3": Rewrite(("t/0", "t/6"), (entry("t/o"),)),
    }
    before = listed(*first, entry("t/5"), entry("t/6"))
    found, names = replaced(before, rewrites)
    assert (list(found), names) == (["t/6", "t/n"], ["1", "2"])
    assert replaced(found, rewrites) == (found, [])
    assert len(before) == 7
    assert json.loads(list_text(found).splitlines()[-1]) == entry("t/n")
