"""23 planted faults and nine healthy loads: each gets the right verdict, first cause and notice."""

from __future__ import annotations

import pytest

from rocketstream.admin.state import Verdict
from rocketstream.watch.alerting import BAD
from tests.progress.bench_of_verdicts import GOOD, Course, watched
from tests.progress.scenarios import BEGIN_MS, FAULTS, HEALTHY, WITHIN_S, Fault
from tests.progress.virtual_group import MINUTE

WORKING_DAY_MIN = 8 * 60
"""Nothing in a healthy load comes less often than every hour."""
WHOSE = [f"{fault.number} {fault.name}" for fault in FAULTS]


def course_of(fault: Fault, minutes: float) -> Course:
    group = fault.makes()
    return watched([group], minutes)[group.name]


def check(fault: Fault, course: Course) -> None:
    began = BEGIN_MS / MINUTE
    told = course.told()
    assert course.verdicts[-1][1] is fault.verdict, told
    last = course.causes[-1][1] if course.causes else ()
    assert (last[0] if last else None) is fault.cause, told
    assert all(at >= began for at, _ in course.notices), told
    if fault.allows_s is None:
        assert not course.notices, told
        return
    first = next((at for at, each in course.notices if each.event not in GOOD), None)
    assert first is not None, told
    assert (first - began) * 60 <= fault.allows_s + WITHIN_S, told
    assert not [each for _, each in course.notices if each.event in GOOD], told
    bad = {verdict for _, verdict, _ in course.verdicts if verdict in BAD}
    assert bad <= {fault.verdict}, told


@pytest.mark.parametrize("fault", FAULTS, ids=WHOSE)
def test_a_fault_gets_its_verdict_cause_and_notice(fault: Fault) -> None:
    """And no other bad verdict, and no all-clear."""
    check(fault, course_of(fault, fault.minutes))


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", [f for f in FAULTS if f.lasts], ids=lambda f: f.number)
def test_a_fault_that_stands_for_an_hour_is_called_the_same(fault: Fault) -> None:
    check(fault, course_of(fault, 80))


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_hour_has_no_bad_verdict_and_no_notice(name: str) -> None:
    check_healthy(name, 62)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_working_day_has_no_bad_verdict_and_no_notice(name: str) -> None:
    check_healthy(name, WORKING_DAY_MIN)


def check_healthy(name: str, minutes: float) -> None:
    group = HEALTHY[name]()
    course = watched([group], minutes)[group.name]
    assert not course.notices, course.told()
    assert not {verdict for _, verdict, _ in course.verdicts} & set(BAD), course.told()
    assert course.verdicts[-1][1] in {Verdict.OK, Verdict.CATCHING_UP}, course.told()
