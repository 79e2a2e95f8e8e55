"""How long a server stood still is not the silence of its peers."""

from __future__ import annotations

import math

from rocketstream._util.clock import Attention


def test_looks_that_are_late_by_work_are_no_break() -> None:
    attention = Attention(10_000)
    assert attention.look(5_000_000) == -math.inf
    assert attention.look(5_010_000) == -math.inf
    assert attention.look(5_050_000) == -math.inf


def test_after_a_break_it_is_at_work_since_then() -> None:
    attention = Attention(10_000)
    attention.look(0)
    assert attention.look(40_001) == 40_001
    assert attention.look(50_001) == 40_001
    assert attention.look(3_650_001) == 3_650_001
