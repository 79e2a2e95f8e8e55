"""The page on lite topics: its example runs as printed, and is told what a broker lacks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rocketstream.errors import RocketMQError
from rocketstream.server.embedded import EmbeddedCluster

PAGE = (Path(__file__).resolve().parents[2] / "docs/lite-topics.md").read_text(encoding="utf-8")
EXAMPLE = re.compile(r"<!-- test: refused -->\n```python\n(.*?)```", re.DOTALL)
DEFAULT_ADDR = "127.0.0.1:9876"


@pytest.mark.parametrize(
    ("topic", "told"),
    [("agents", "5.5"), ("others", r"created with the attribute \+message.type=LITE")],
)
def test_the_example_is_told_what_a_broker_needs(topic: str, told: str) -> None:
    """Once the topic is there it is the broker that has no lite topics."""
    (program,) = EXAMPLE.findall(PAGE)
    with EmbeddedCluster() as cluster:
        cluster.create_topic(topic)
        with pytest.raises(RocketMQError, match=told):
            exec(program.replace(DEFAULT_ADDR, cluster.namesrv_addr), {})  # noqa: S102 - our own page
