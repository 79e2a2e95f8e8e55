"""Whole rounds against the installed package: whatever a seed does to it, the guarantees hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.outside import disk, edn, kafka_rules, shim
from tests.outside.faults import BROKER, NETWORK, Planned
from tests.outside.history import History
from tests.outside.round import KEYED, SMALL, Round, Setting
from tests.outside.rules import check

FEW = tuple(
    post
    for post in SMALL
    if post.name in {"sync", "keyed", "ledger-a", "many-a", "many-b"}
    or post.name in {"ordered-a", "ordered-b", "pulled-a", "booked-a"}
)
ONE_OF_EACH = (
    Planned(0.5, "kill", "ordered-a", 1.0),
    Planned(1.5, "kill", BROKER, 0.5),
    Planned(3.5, "cut", NETWORK, 0.0),
    Planned(4.0, "freeze", "many-a", 1.5),
    Planned(4.5, "hold", NETWORK, 1.0),
    Planned(6.0, "stop", "pulled-a", 0.2),
)

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(600)]


def judged(history: History) -> list[str]:
    """All that either checker holds against a history, as lines."""
    verdict = kafka_rules.judge(edn.operations(history), edn.may_repeat(history))
    return [*map(str, check(history)), *verdict.texts]


def test_one_fault_of_each_kind_breaks_no_guarantee(package: Path, tmp_path: Path) -> None:
    setting = Setting(tmp_path, package, seconds=8, posts=FEW, faults=ONE_OF_EACH)
    history = Round(setting).run()
    assert judged(history) == []
    assert {fault.what for fault in history.faults} == {"kill", "cut", "freeze", "hold", "stop"}
    groups = {delivery.group for delivery in history.deliveries}
    assert groups == {"many", "ordered", "pulled", "booked", "reader"}
    assert sum(send.is_stored for send in history.sends) > 50


@pytest.mark.long
def test_a_disk_that_is_slow_and_fails_and_a_clock_that_jumps_break_no_guarantee(
    package: Path, tmp_path: Path
) -> None:
    library = shim.compiled(tmp_path)
    if library is None:
        pytest.skip("no C compiler makes the disk that fails")
    faults = (
        Planned(1.0, "slow-disk", BROKER, 2.0, 0.5),
        Planned(3.5, "clock", BROKER, 0.0, 0.9),
        Planned(5.0, "clock", BROKER, 0.0, 0.2),
        Planned(7.0, "failing-disk", BROKER, 1.5),
        Planned(9.0, "kill", BROKER, 0.2),
    )
    posts = tuple(post for post in SMALL if post.topic != KEYED)
    variables = shim.Control(tmp_path / "shim").variables(library)
    setting = Setting(
        tmp_path, package, seconds=12, posts=posts, faults=faults, variables=variables
    )
    history = Round(setting).run()
    assert judged(history) == []
    assert any(send.outcome != "SEND_OK" for send in history.sends)


@pytest.mark.long
def test_a_disk_that_is_full_for_a_while_breaks_no_guarantee(package: Path, tmp_path: Path) -> None:
    """The broker is killed while it is full, and has to begin without room."""
    faults = (
        Planned(1.0, "full-disk", BROKER, 3.0),
        Planned(6.0, "full-disk", BROKER, 5.0),
        Planned(7.0, "kill", BROKER, 0.5),
        Planned(9.5, "kill", "many-a", 0.5),
    )
    with disk.small(tmp_path / "disk", 44) as is_there:
        if not is_there:
            pytest.skip("this user may mount no tmpfs")
        store = tmp_path / "disk" / "store"
        setting = Setting(tmp_path, package, seconds=13, posts=FEW, faults=faults, store=store)
        assert judged(Round(setting).run()) == []
    assert "no room" in (tmp_path / "serve.log").read_text("utf-8")
