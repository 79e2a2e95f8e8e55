"""Hours of healthy load, seen every 10 s: no fault is found in any window of them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator

import pytest

from rocketstream.admin.core.causes import find_causes
from rocketstream.admin.core.evidence import Evidence
from rocketstream.admin.core.verdicts import judge
from rocketstream.admin.state import CauseKind, GroupState, GroupVerdict, Verdict
from rocketstream.watch.windows import Windows
from tests.progress.evidence_maker import causes_of
from tests.progress.healthy_day import DAY_MS, HOUR, SHAPES
from tests.progress.healthy_members import members_of_a_day

FAULTS = {
    Verdict.FALLING_BEHIND,
    Verdict.STALLED,
    Verdict.STOPPED,
    Verdict.REWOUND,
    Verdict.PINNED,
}
SEED = 20_261_122
NEVER_TOLD = {"broadcasting", "job every day", "job every hour"}
"""Shapes of which nobody can say whether all is well."""


def verdicts(states: Iterable[GroupState]) -> Iterator[GroupVerdict]:
    """Judge as the watch does: a sliding window, and what was judged before."""
    windows = Windows()
    before: GroupVerdict | None = None
    for state in states:
        windows.add({state.group: state})
        before = judge(windows.window(state.group), before=before)
        yield before


def day(name: str, span_ms: int) -> Counter[Verdict]:
    found: Counter[Verdict] = Counter()
    for verdict in verdicts(SHAPES[name](random.Random(SEED)).day(span_ms)):
        assert verdict.verdict not in FAULTS, (name, found.total() * 10, verdict)
        found[verdict.verdict] += 1
    return found


@pytest.mark.parametrize(
    "name", ["bursts", "rolling deploys", "lone restarts", "slow work", "query every 5 min"]
)
def test_two_hours_of_healthy_load_are_no_fault(name: str) -> None:
    found = day(name, 2 * HOUR)
    assert found[Verdict.OK] > 0.6 * found.total()


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SHAPES)
def test_half_a_day_of_healthy_load_is_no_fault(name: str) -> None:
    """And a group that is well is mostly called so: UNKNOWN for ever would be no verdict."""
    found = day(name, DAY_MS if name == "job every day" else DAY_MS // 2)
    if name not in NEVER_TOLD:
        assert found[Verdict.OK] + found[Verdict.CATCHING_UP] > 0.8 * found.total(), found


@pytest.mark.parametrize("name", ["rolling deploys", "lone restarts", "rebalances"])
def test_members_that_are_restarted_do_not_come_and_go(name: str) -> None:
    windows = Windows()
    for state in SHAPES[name](random.Random(SEED)).day(2 * HOUR):
        windows.add({state.group: state})
        found = find_causes(Evidence(state), (), windows.window(state.group))
        assert CauseKind.FLAPPING not in {cause.kind for cause in found}, state


def test_evidence_of_healthy_members_names_no_cause() -> None:
    """Busy and idle ones, catching up, restarted, slow by trade, in order, filtered."""
    looked = 0
    for evidence in members_of_a_day(random.Random(SEED), 2_000):
        assert causes_of(evidence) == (), evidence
        looked += 1
    assert looked == 2_000
