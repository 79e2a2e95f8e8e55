"""The page about simulation: its programs run as printed, and what they say is true."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rocketstream.testing.history import AnomalyKind
from rocketstream.testing.sim.simulate import simulate

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/simulation.md").read_text(encoding="utf-8")
PROGRAMS = dict(re.findall(r"<!-- test: (\w+) -->\n```python\n(.*?)```", PAGE, re.DOTALL))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("simulate", "20 seeds, nothing found"),
        ("history", "lost: order-1 was never consumed by group billing"),
    ],
)
def test_a_program_of_the_page_says_what_it_promises(name: str, said: str, tmp_path: Path) -> None:
    script = tmp_path / f"{name}.py"
    script.write_text(PROGRAMS[name], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert said in done.stdout


def test_the_page_names_every_kind_of_anomaly() -> None:
    table = PAGE.split("The kinds of anomalies:")[1]
    assert [kind.value for kind in AnomalyKind if kind.value not in table] == []


def test_a_finding_is_told_and_found_again_by_its_seed() -> None:
    """The naive listener of the example: the page shows the head of its story, and its seed.

    Whatever changes a simulated run may give another finding: then the page shows that one.
    """
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        from simulate_listener import every_order_is_written, naive  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)
    result = simulate(naive, check=every_order_is_written, seeds=100)
    first = result.finding
    assert first is not None
    assert "was never written" in first.what
    shown = re.search(r"```\n(naive: .*?)```", PAGE, re.DOTALL)
    assert shown is not None
    assert f"naive: {result}\n".startswith(shown[1])
    call = f"simulate(naive, check=every_order_is_written, first_seed={first.seed}, seeds=1)"
    assert f"`{call}` replays" in PAGE
    again = simulate(naive, check=every_order_is_written, first_seed=first.seed, seeds=1).finding
    assert again == first
    assert "returns success" in first.story
