"""`python -m benchmarks.verdicts`: planted faults and healthy loads, our verdicts beside Burrow's.

Law: in virtual time, through the collector, its looks and the rules of notices; the scenarios are
those of the tests.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from tests.progress.bench_of_verdicts import GOOD, Course, watched
from tests.progress.burrow import OK
from tests.progress.scenarios import BEGIN_MS, FAULTS, HEALTHY, Fault
from tests.progress.virtual_group import MINUTE

BEGAN = BEGIN_MS / MINUTE


def _notice(course: Course) -> str:
    first = next((at for at, each in course.notices if each.event not in GOOD), None)
    return "none" if first is None else f"{first - BEGAN:.1f} min"


def _burrow(course: Course) -> str:
    cells = []
    for seen in (course.burrow, course.quick):
        found = [(at, status) for at, status in seen if status != OK and at >= BEGAN]
        cells.append(f"{found[0][1]}, {found[0][0] - BEGAN:.1f} min" if found else OK)
    return " | ".join(cells)


def of_fault(fault: Fault) -> str:
    """Return the row of a fault."""
    group = fault.makes()
    course = watched([group], fault.minutes)[group.name]
    right = next((at for at, verdict, _ in course.verdicts if verdict is fault.verdict), 0.0)
    when = f", {right - BEGAN:.1f} min" if right >= BEGAN else ""
    causes = course.causes[-1][1] if course.causes else ()
    return (
        f"| {fault.number} | {fault.name} | {course.verdicts[-1][1]}{when} | "
        f"{causes[0] if causes else '–'} | {_notice(course)} | {_burrow(course)} |"
    )


def of_healthy(minutes: float) -> Iterator[str]:
    """Yield the rows of the healthy loads, watched so long."""
    for name, makes in HEALTHY.items():
        group = makes()
        course = watched([group], minutes)[group.name]
        seen = ", ".join(dict.fromkeys(verdict for _, verdict, _ in course.verdicts))
        burrow = " | ".join(
            f"{len(bad)} alarms" if (bad := [s for _, s in told if s != OK]) else OK
            for told in (course.burrow, course.quick)
        )
        yield f"| – | {name} | {seen} | – | {len(course.notices) or 'none'} | {burrow} |"


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.verdicts", description=__doc__)
    parser.add_argument(
        "--hours", type=float, default=24, help="how long healthy loads are watched"
    )
    hours = parser.parse_args().hours
    heads = ("#", "Fault", "Verdict", "First cause", "Notice", "Burrow, 10 min", "Burrow, 50 s")
    sys.stdout.write(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|\n")
    for fault in FAULTS:
        sys.stdout.write(of_fault(fault) + "\n")
        sys.stdout.flush()
    for row in of_healthy(hours * 60):
        sys.stdout.write(row + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
