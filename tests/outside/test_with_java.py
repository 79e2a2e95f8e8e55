"""A round in which Java's producer and consumers work beside ours, in the same groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kits.apache.referee import RefereeUnavailableError
from tests.outside import edn, java_workers, kafka_rules
from tests.outside.faults import BROKER, NETWORK, Planned
from tests.outside.round import KEYED, PLAIN, Post, Round, Setting
from tests.outside.rules import check

POSTS = (
    Post("sync", "sync", PLAIN),
    Post("keyed", "keyed", KEYED),
    Post("java-sync", "java-sync", PLAIN),
    Post("many-a", "push", PLAIN, "many"),
    Post("java-many", "java-push", PLAIN, "many"),
    Post("ordered-a", "orderly", KEYED, "ordered"),
    Post("java-ordered", "java-orderly", KEYED, "ordered"),
    Post("pulled-a", "lite", PLAIN, "pulled"),
)
FAULTS = (
    Planned(1.0, "kill", "java-many", 1.0),
    Planned(2.5, "kill", BROKER, 0.5),
    Planned(5.0, "cut", NETWORK, 0.0),
    Planned(6.0, "freeze", "ordered-a", 2.0),
    Planned(7.0, "kill", "java-ordered", 1.0),
    Planned(8.5, "hold", NETWORK, 1.0),
)

pytestmark = [pytest.mark.interop, pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(600)]


def test_with_java_in_the_same_groups_no_guarantee_is_broken(package: Path, tmp_path: Path) -> None:
    try:
        java = java_workers.command(tmp_path / "classes")
    except RefereeUnavailableError as error:
        pytest.skip(str(error))
    setting = Setting(tmp_path, package, seconds=12, posts=POSTS, faults=FAULTS, java=java)
    history = Round(setting).run()
    verdict = kafka_rules.judge(edn.operations(history), edn.may_repeat(history))
    assert [*map(str, check(history)), *verdict.texts] == []
    givers = {delivery.by.partition("#")[0] for delivery in history.deliveries}
    assert {"many-a", "java-many", "ordered-a", "java-ordered"} <= givers
