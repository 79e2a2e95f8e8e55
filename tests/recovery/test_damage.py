"""Damaged stores: what was not consumed comes, or the broker says in words why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recovery.damage import Campaign


@pytest.mark.long
@pytest.mark.timeout(600)
def test_damage_loses_and_alters_nothing_in_silence(tmp_path: Path) -> None:
    """Every kind of file, six kinds of damage; ``make damage`` runs as many trials as you like."""
    campaign = Campaign(tmp_path)
    failed = [str(trial) for trial in map(campaign.run, range(500)) if not trial.ok]
    assert not failed, "\n".join(failed)
    undamaged = [campaign.run_undamaged(base) for base in campaign.BASES]
    assert {(trial.outcome, *trial.words) for trial in undamaged} == {("same",)}
