"""Rounds against servers that break their promises on purpose: the checker finds each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.outside import edn, kafka_rules
from tests.outside.faults import BROKER, Planned
from tests.outside.round import SMALL, Round, Setting
from tests.outside.rules import check

FEW = tuple(
    post
    for post in SMALL
    if post.name in {"sync", "keyed", "ledger-a", "delayed", "many-a", "ordered-a"}
    or post.name in {"late-a", "booked-a"}
)

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]


def test_a_network_that_cheats_is_found(package: Path, tmp_path: Path) -> None:
    """It acknowledges what it swallows, alters bodies, commits rollbacks, and hurries."""
    cheat = "tests.outside.cheats:all_at_once"
    setting = Setting(
        tmp_path, package, seconds=6, posts=FEW, faults=(), cheat=cheat, patience_s=10
    )
    history = Round(setting).run()
    found = {anomaly.rule for anomaly in check(history)}
    assert found == {"survives", "consumed", "whole", "seen-after-commit", "never-early"}
    cases = kafka_rules.judge(edn.operations(history), edn.may_repeat(history)).cases
    assert {"G1a", "unseen"} <= cases.keys()


def test_a_store_that_was_exchanged_for_an_older_one_is_found(
    package: Path, tmp_path: Path
) -> None:
    """Messages that were acknowledged in between are gone, and others have their places."""
    faults = (
        Planned(2.0, "copy-store", BROKER, 0.0),
        Planned(10.0, "older-store", BROKER, 0.0),
    )
    setting = Setting(tmp_path, package, seconds=12, posts=FEW, faults=faults, patience_s=20)
    history = Round(setting).run()
    found = {anomaly.rule for anomaly in check(history)}
    assert {"survives", "place", "consumed"} <= found
    cases = kafka_rules.judge(edn.operations(history), edn.may_repeat(history)).cases
    assert "inconsistent-offsets" in cases
