"""Options of ``rocketmq-progress``: a cluster or files, and what cannot be meant is refused."""

from __future__ import annotations

import json

import pytest

from rocketstream.errors import ConfigurationError
from rocketstream.spark.options.formats import (
    file_options,
    is_of_files,
    progress_options,
)
from rocketstream.spark.progress.tables import CLUSTER_COLUMNS, choose, picked

NAMESRV = {"nameServer": "h:9876"}


def test_all_groups_and_topics_every_ten_seconds_unless_said_otherwise() -> None:
    options = progress_options(NAMESRV)
    assert (options.groups, options.group_pattern, options.topics) == (None, None, None)
    assert (options.interval_ms, options.owners) == (10_000, True)


def test_groups_are_named_by_either_option_and_topics_by_one() -> None:
    assert progress_options(NAMESRV | {"group": "a"}).groups == ("a",)
    chosen = progress_options(NAMESRV | {"GROUPS": "a, b,a", "topic": "t,u"})
    assert (chosen.groups, chosen.topics) == (("a", "b"), ("t", "u"))


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("500", 500), ("500ms", 500), ("10s", 10_000), ("10 seconds", 10_000), ("1 minute", 60_000),
     ("2min", 120_000), ("1h", 3_600_000), ("1 day", 86_400_000), ("2 weeks", 1_209_600_000)],
)  # fmt: skip
def test_an_interval_is_a_length_of_time(text: str, milliseconds: int) -> None:
    assert progress_options(NAMESRV | {"interval": text}).interval_ms == milliseconds


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "option 'nameServer' is missing"),
        (NAMESRV | {"group": "a", "groups": "b"}, "mean the same"),
        (NAMESRV | {"group": " , "}, "option 'group' is ' , '"),
        (NAMESRV | {"groupPattern": "("}, "option 'groupPattern' is '\\('"),
        (NAMESRV | {"interval": "0"}, "option 'interval' is '0'; give a length of time"),
        (NAMESRV | {"interval": "soon"}, "option 'interval' is 'soon'"),
        (NAMESRV | {"intervall": "1s"}, "did you mean 'interval'"),
        (NAMESRV | {"owners": "perhaps"}, "option 'owners' is 'perhaps'"),
        (NAMESRV | {"backup": "true"}, "option 'backup' is for offset files"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        progress_options(options)


def test_a_path_means_files_and_goes_with_no_option_of_a_cluster() -> None:
    assert is_of_files({"path": "/x"})
    assert not is_of_files(NAMESRV)
    assert file_options({"path": "/x", "backup": "TRUE"}).backup
    assert file_options({"paths": json.dumps(["/x", "/y", "/x"])}).paths == ("/x", "/y")
    with pytest.raises(ConfigurationError, match="'nameServer' is for a cluster"):
        file_options({"path": "/x", "nameserver": "h:1"})
    with pytest.raises(ConfigurationError, match="option 'path' is ''"):
        file_options({"path": ""})


def test_a_schema_chooses_columns_in_any_order_and_case() -> None:
    chosen = choose(CLUSTER_COLUMNS, [("LAG", "bigint", True), ("group", "string", True)])
    assert chosen == (("LAG", "lag"), ("group", "group"))
    row = tuple(CLUSTER_COLUMNS)
    assert picked(CLUSTER_COLUMNS, chosen, [row]) == [("lag", "group")]


@pytest.mark.parametrize(
    ("field", "said"),
    [
        (("lagg", "bigint", True), "no column 'lagg'"),
        (("lag", "int", True), "'lag' is bigint, not int"),
        (("lag", "bigint", False), "'lag' cannot be NOT NULL"),
    ],
)
def test_a_schema_that_is_not_ours_is_refused(field: tuple[str, str, bool], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        choose(CLUSTER_COLUMNS, [field])
