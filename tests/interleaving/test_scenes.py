"""Calls of several threads at once keep their promises, in scenes drawn from seeds."""

from __future__ import annotations

import pytest

from tests.interleaving.scenes import SCENES, warm
from tests.interleaving.stage import run_scene

SEEDS = range(20)
FOUND = {
    "ending": [24],  # of two shutdowns at once one found no client between two looks
    "sending": [280],  # messages that send_many had stored were those of a client that does not run
    "scheduled": [84],  # a shutdown amid a start left tasks of queues behind
    # An offset noted behind the shutdown was lost, and nobody was told; a pull was never awaited.
    "pulling": [125, 224],
    # So was a commit; a poll that waited took records kept for another thread as if they were none.
    "polling": [650, 31364],
}
"""Seeds that found something once."""


@pytest.fixture(autouse=True, scope="module")
def warmed() -> None:
    """Have had each scene once: a seed plays alike wherever it is played then."""
    warm()


@pytest.mark.parametrize("scene", SCENES)
def test_calls_at_once_keep_their_promises(scene: str) -> None:
    """The promises are those of the docstrings of each call."""
    for seed in (*SEEDS, *FOUND.get(scene, ())):
        result = run_scene(scene, SCENES[scene], seed)
        assert not result.problems, result.told()


@pytest.mark.parametrize("scene", SCENES)
def test_a_seed_plays_alike_again(scene: str) -> None:
    first = run_scene(scene, SCENES[scene], 3)
    again = run_scene(scene, SCENES[scene], 3)
    assert again.switches == first.switches
    assert first.switches
