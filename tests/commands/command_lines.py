"""A command line for each command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from rocketstream.cli.commands import Commands

TOPIC, GROUP = "every-topic", "every-group"
ID = "7F000001000078A1B2C3000000000000"
ARGUMENTS: dict[str, list[str]] = {
    "send": [TOPIC, "x"],
    "consume": [TOPIC, "--group", GROUP, "--max", "1"],
    "metrics": [],
    "export": ["FILE"],
    "import": ["FILE", "--yes"],
    "topic create": [TOPIC],
    "topic update": [TOPIC, "--queues", "9", "--yes"],
    "topic delete": [TOPIC, "--yes"],
    "topic list": [],
    "topic status": [TOPIC],
    "topic route": [TOPIC],
    "topic consumers": [TOPIC],
    "group list": [],
    "group lag": [GROUP],
    "group members": [GROUP],
    "group running-info": [GROUP],
    "group why": [GROUP],
    "group reset": [GROUP, TOPIC, "--to-earliest", "--yes"],
    "group clone": [GROUP, "other", "--yes"],
    "group settings": [GROUP],
    "group create": [GROUP],
    "group update": [GROUP, "--set", "retryMaxTimes=5", "--yes"],
    "group pause": [GROUP, "--yes"],
    "group resume": [GROUP, "--yes"],
    "group delete": [GROUP, "--yes"],
    "message view": [TOPIC, ID],
    "message query": [TOPIC, "key"],
    "message track": [TOPIC, ID],
    "message consume": [TOPIC, ID, "--group", GROUP, "--client", "c"],
    "message search": [TOPIC],
    "message tail": [TOPIC],
    "message trace": [TOPIC, ID],
    "dlq list": [],
    "dlq causes": [GROUP],
    "dlq redrive": [GROUP],
    "cluster list": [],
    "cluster status": [],
    "broker list": [],
    "broker status": ["broker-x"],
    "broker config": ["broker-x"],
    "producer list": [],
    "producer connections": [GROUP, TOPIC],
    "namesrv list": [],
    "namesrv config": [],
}
"""How each command that asks a cluster is called."""
ELSEWHERE = {
    "serve", "top", "mcp", "alerts", "dashboard", "dashboard token", "ingest", "backfill",
    "compact", "spark-env", "completion", "group undo", "store check",
}  # fmt: skip
"""These ask no cluster, start Spark, or go on for ever: their own tests have them."""


def paths(group: Commands, before: str = "") -> Iterator[str]:
    for name, each in group.made().items():
        if isinstance(each, Commands):
            yield from paths(each, f"{before}{name} ")
        else:
            yield before + name


def call(path: str, tmp_path: Path) -> list[str]:
    file = tmp_path / "cluster.json"
    words = [str(file) if word == "FILE" else word for word in ARGUMENTS[path]]
    if path == "import":
        file.write_text(json.dumps({}))
    return [*path.split(), *words]
