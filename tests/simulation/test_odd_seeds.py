"""The odd seeds: everything promised holds under the faults each of them draws."""

from __future__ import annotations

import pytest

from tests.simulation.seeds import SEEDS, check

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    # Of a process killed right after it was begun, which nobody can finish.
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
]


@pytest.mark.long
def test_odd_seeds_keep_every_promise() -> None:
    check(range(1, SEEDS, 2))
