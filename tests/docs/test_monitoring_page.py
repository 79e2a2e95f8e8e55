"""What docs/monitoring.md shows works, and names what there is."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from textual.binding import Binding

from rocketstream.cli.top.screen import Top
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.watch.alerting import Kind, read_config
from rocketstream.watch.metrics import families

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "monitoring.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_program_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = blocks("python")
    monkeypatch.chdir(tmp_path)
    with EmbeddedCluster(tmp_path / "store") as cluster:
        exec(code, {"namesrv_addr": cluster.namesrv_addr})  # noqa: S102 - our own page
    assert (tmp_path / "lag.db").stat().st_size > 0


def test_the_file_of_notices_is_accepted_and_shows_every_kind() -> None:
    (text,) = blocks("toml")
    names = ("SLACK_WEBHOOK", "DINGTALK_WEBHOOK", "DINGTALK_SECRET")
    config = read_config(tomllib.loads(text), dict.fromkeys(names, "https://example.org/x"))
    assert [rule.webhooks for rule in config.rules] == [("ops", "night"), ("ops", "night")]
    assert all(kind in text for kind in Kind)


def test_every_metric_named_is_one() -> None:
    known = families(queues=True)
    named = re.findall(r"`(rocket(?:mq|stream)_[a-z0-9_]+[a-z0-9])`", PAGE)
    assert len(named) >= 15
    left_out = {"rocketmq_send_back_nums"}
    assert set(named) - left_out <= set(known)


def test_every_key_of_the_terminal_is_bound() -> None:
    bound = {
        key
        for each in Top.BINDINGS
        for key in (each.key if isinstance(each, Binding) else each[0]).split(",")
    }
    names = {":": "colon", "/": "slash", "?": "question_mark", "esc": "escape"}
    table = PAGE.partition("| Key |")[2].partition("\n\n")[0]
    for row in table.splitlines()[2:]:
        for key in re.findall(r"`([^`]+)`|\b(esc)\b", row.split("|")[1]):
            name = key[0] or key[1]
            assert names.get(name, name) in bound, name


def test_files_it_points_at_exist() -> None:
    for path in re.findall(r"\]\(([a-z/.]+)\)", PAGE):
        assert (DOCS / path).is_file(), path
