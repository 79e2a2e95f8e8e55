"""The example that draws the lag of three groups: what is drawn is what the three groups did."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rocketstream.server.embedded import EmbeddedCluster

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(600)]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "spark" / "lag_over_time.py"


@pytest.fixture
def example() -> Iterator[Any]:
    """The example as a module."""
    spec = importlib.util.spec_from_file_location("lag_over_time", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_the_picture_shows_who_keeps_up_who_recovers_and_who_stands(
    spark: Any,
    shared_cluster: EmbeddedCluster,
    new_topic: Callable[..., str],
    example: Any,
    tmp_path: Path,
) -> None:
    plan = example.Plan(rate=400, calm=200, trouble=600, after=400, interval="200ms")
    seen = example.watch(spark, shared_cluster.namesrv_addr, new_topic(4), plan, tmp_path)

    assert set(seen.lag) == {"billing", "search", "audit"}
    behind = {group: [lag for _, lag in points] for group, points in seen.lag.items()}
    assert behind["billing"][-1] == 0
    assert behind["search"][-1] == 0
    # While the database was slow, search did 50 a second of those that came: 400, or what a busy
    # machine sends. Half of what it left is seen at least, as the lag is looked at now and then.
    left = plan.trouble - (seen.slow[1] - seen.slow[0]) / example.SLOW_S
    assert max(behind["search"]) > left / 2
    # Audit does not commit past the call that hangs: everything else is behind it.
    assert behind["audit"][-1] == plan.messages - seen.consumed["audit"] >= plan.messages // 2
    stood = [lag for at, lag in seen.lag["audit"] if at > seen.slow[0]]
    assert stood == sorted(stood)

    figure = example.draw(tmp_path / "lag.svg", seen)
    (axes,) = figure.axes
    drawn = {line.get_label(): line for line in axes.get_lines()}
    zero = min(points[0][0] for points in seen.lag.values())
    for group, points in seen.lag.items():
        assert list(drawn[group].get_ydata()) == [lag for _, lag in points]
        assert list(drawn[group].get_xdata()) == [at - zero for at, _ in points]
    assert {text.get_text().split()[0] for text in axes.texts} == {"database", *seen.lag}
    assert 1_000 < (tmp_path / "lag.svg").stat().st_size < 150_000
