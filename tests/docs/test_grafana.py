"""The Grafana dashboard and the alert rules ask for metrics and labels there are."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from rocketstream.admin.state import Verdict
from rocketstream.watch.metrics import families

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "grafana"
KNOWN = families(queues=True)
METRIC = re.compile(r"\b(?:rocketmq|rocketstream)_[a-zA-Z0-9_]+")
MATCHED = re.compile(r"(rocket[a-zA-Z0-9_]+)\{([^}]*)\}")
LEGEND = re.compile(r"\{\{\s*(?:\$labels\.)?([a-zA-Z_]+)\s*\}\}")
GROUPED = re.compile(r"by \(([^)]*)\)")
VERDICT = re.compile(r'verdict=~?"([^"]*)"')


def board() -> dict[str, Any]:
    read: dict[str, Any] = json.loads((FOLDER / "rocketstream.json").read_text(encoding="utf-8"))
    return read


def rules() -> list[dict[str, Any]]:
    read = yaml.safe_load((FOLDER / "alerts.yml").read_text(encoding="utf-8"))
    return [rule for group in read["groups"] for rule in group["rules"]]


def questions() -> Iterator[tuple[str, str]]:
    """Each question, with the text that shows its labels."""
    for panel in board()["panels"]:
        for target in panel["targets"]:
            yield target["expr"], target["legendFormat"]
    for variable in board()["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"], ""
    for rule in rules():
        yield rule["expr"], rule["annotations"]["summary"].replace("{{ $value", "{{ 0")


@pytest.mark.parametrize(("expr", "shown"), list(questions()))
def test_every_question_is_about_metrics_and_labels_there_are(expr: str, shown: str) -> None:
    names = METRIC.findall(expr)
    assert names
    labels: set[str] = set()
    for name in names:
        assert name in KNOWN, name
        labels |= set(KNOWN[name].labels)
    for name, matchers in MATCHED.findall(expr):
        for label in re.findall(r"([a-z_]+)=~?\"", matchers):
            assert label in KNOWN[name].labels, (name, label)
    asked = {part.strip() for found in GROUPED.findall(expr) for part in found.split(",")}
    assert asked | set(LEGEND.findall(shown)) <= labels
    assert expr.count("(") == expr.count(")")
    for found in VERDICT.findall(expr):
        assert set(found.split("|")) <= {verdict.value for verdict in Verdict}


def test_the_board_can_be_loaded_anywhere() -> None:
    read = board()
    ids = [panel["id"] for panel in read["panels"]]
    assert len(set(ids)) == len(ids) > 15
    assert {p["datasource"]["uid"] for p in read["panels"]} == {"${datasource}"}
    taken: set[tuple[int, int]] = set()
    for panel in read["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_alert_names_are_unique_and_say_how_bad_it_is() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    assert {rule["labels"]["severity"] for rule in rules()} <= {"warning", "critical"}


def test_the_rules_tell_in_time_and_nothing_else() -> None:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed; Debian's package prometheus has it")
    done = subprocess.run(
        [tool, "test", "rules", "alerts_test.yml"], cwd=FOLDER, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_rule_is_tried() -> None:
    tried = yaml.safe_load((FOLDER / "alerts_test.yml").read_text(encoding="utf-8"))["tests"]
    told = {
        each["alertname"]
        for test in tried
        for each in test["alert_rule_test"]
        if each["exp_alerts"]
    }
    assert told == {rule["alert"] for rule in rules()}
