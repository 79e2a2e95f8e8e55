"""``rocketstream metrics``: printed once, and served; against a running broker."""

from __future__ import annotations

import urllib.request

import pytest

from tests.kits.scraped import read
from tests.plugins.commands import Cli, Quick

DEADLINE_S = 60


@pytest.fixture
def consumed(quick: Quick) -> str:
    """A topic of three messages of which a group has consumed two."""
    topic = "metrics-orders"
    quick("topic", "create", topic, "--queues", "1").worked()
    for number in range(3):
        quick("send", topic, f"m{number}").worked()
    quick("consume", topic, "--group", "metrics-g", "--from", "earliest", "--max", "2").worked()
    return topic


def test_metrics_are_printed_once_and_served_until_a_signal(
    consumed: str, quick: Quick, cli: Cli
) -> None:
    families = read(quick("metrics").worked().out)
    offsets = families["rocketmq_producer_offset"]
    assert [v for labels, v in offsets.items() if ("topic", consumed) in labels] == [3]
    process = cli.start("metrics", "--listen", "127.0.0.1:0", "--interval", "1")
    try:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        assert line.startswith("ready http://127.0.0.1:")
        served = {}
        while "rocketstream_up" not in served:
            with urllib.request.urlopen(line.split()[1], timeout=DEADLINE_S) as answer:
                served = read(answer.read().decode())
        lag = served["rocketmq_consumer_lag_messages"]
        ours = [v for labels, v in lag.items() if ("topic", consumed) in labels]
        (row,) = cli("group", "lag", "metrics-g", "--topic", consumed, "--json").worked().json
        assert ours == [row["lag"]]
        process.terminate()
        assert process.wait(DEADLINE_S) == 143
    finally:
        process.kill()
        process.communicate()


def test_mistakes_are_named(quick: Quick) -> None:
    assert "HOST:PORT" in quick("metrics", "--listen", "5557").failed(2)
    assert "--insecure" in quick("metrics", "--listen", "0.0.0.0:0").failed()
    assert "--listen" in quick("metrics", "--history", "h.db").failed(2)
    assert "127.0.0.1:1" in Quick("127.0.0.1:1")("metrics").failed()
