"""The changes are what they say, the fork server tells a noticed one from a survivor, and every
listed equivalent still stands in the source; `make check-mutants` runs the changes themselves."""

from __future__ import annotations

import ast
import gc
import importlib.util
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests.mutation import __main__ as command
from tests.mutation import forks
from tests.mutation.__main__ import table
from tests.mutation.areas import AREAS, ROOT, Area
from tests.mutation.changes import Change, changed, changes_of
from tests.mutation.equivalents import equivalents, parsed
from tests.mutation.reached import Kept, Probes
from tests.mutation.running import UNSURE, failing_of
from tests.mutation.swapping import functions_of, swap

SOURCE = '''
"""A module."""
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

logger = logging.getLogger("a")
LIMIT = 3


def least(values: list[int], at: int = 2) -> int | None:
    """Docstring."""
    logger.warning("low")
    if not values or at < 1:
        return None
    values.sort()
    at += LIMIT
    return values[0] * 7


class Room:
    size = 5

    def is_open(self, now: int) -> bool:
        raise ValueError(f"{now + 1}")
'''


def told(source: str) -> set[str]:
    return {f"{each.where}: {each.old} -> {each.new}" for each in changes_of("m", source)}


def imported(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_rule_makes_its_change_and_nothing_else_is_changed() -> None:
    assert told(SOURCE) == {
        "LIMIT: 3 -> 4",
        "LIMIT: 3 -> 2",
        "least: 2 -> 3",
        "least: 2 -> 1",
        "least: not values or at < 1 -> not values and at < 1",
        "least: not values or at < 1 -> not (not values or at < 1)",
        "least: at < 1 -> at <= 1",
        "least: 1 -> 2",
        "least: 1 -> 0",
        "least: values.sort() -> pass",
        "least: at += LIMIT -> at -= LIMIT",
        "least: return values[0] * 7 -> return None",
        "least: values[0] * 7 -> values[0] // 7",
        "least: 0 -> 1",
        "least: 0 -> -1",
        "least: 7 -> 8",
        "least: 7 -> 6",
        "Room.size: 5 -> 6",
        "Room.size: 5 -> 4",
    }


@pytest.mark.parametrize("area", AREAS, ids=[area.name for area in AREAS])
def test_an_area_has_modules_and_tests_that_exist(area: Area) -> None:
    assert list(area.files())
    assert all((ROOT / "tests" / place).exists() for place in area.tests)


def test_every_change_of_a_module_is_python_and_differs() -> None:
    file = ROOT / "src" / "rocketstream" / "client" / "consumer" / "consume" / "orderly_queue.py"
    source = file.read_text(encoding="utf-8")
    whole = ast.dump(ast.parse(source))
    changes = changes_of("m", source)
    assert changes
    for change in changes:
        tree = changed(source, change.number)
        compile(tree, str(file), "exec")
        assert ast.dump(tree) != whole, change


def test_a_change_acts_on_functions_that_were_imported_already(tmp_path: Path) -> None:
    file = tmp_path / "m.py"
    file.write_text("def twice(n):\n    return [each * 2 for each in n]\n", encoding="utf-8")
    room = imported(file)
    change = next(each for each in changes_of("m", file.read_text()) if each.new == "3")
    assert room.twice([1, 2]) == [2, 4]
    gc.freeze()  # as what pytest collected is
    assert swap(change, file, functions_of([file]))
    assert room.twice([1, 2]) == [3, 6]


def test_a_change_of_what_is_made_at_import_is_left_to_a_new_process(tmp_path: Path) -> None:
    file = tmp_path / "m.py"
    file.write_text("LIMIT = 2\n", encoding="utf-8")
    (change, _) = changes_of("m", file.read_text(encoding="utf-8"))
    assert change.at_import
    assert not swap(change, file, functions_of([file]))


def test_a_fork_answers_dies_or_is_late() -> None:
    def dies(answer: Callable[[str], None]) -> str:
        raise ValueError

    def hangs(answer: Callable[[str], None]) -> str:
        threading.Event().wait()
        return "never"

    def answers(answer: Callable[[str], None]) -> str:
        answer("at once")
        return "later"

    jobs = [forks.Job(dies, 60), forks.Job(hangs, 0.05), forks.Job(answers, 60)]
    found = dict(forks.run([*jobs, forks.Job(lambda answer: "x" * 200_000, 60)], 2))
    assert found == {0: forks.DIED, 1: forks.TIMED_OUT, 2: "at once", 3: "x" * 200_000}


def test_no_fork_begins_when_the_time_is_over() -> None:
    assert list(forks.run([forks.Job(lambda answer: "x", 60)], 1, until=0.0)) == []


def test_probes_note_the_statements_of_their_files_in_threads_too(tmp_path: Path) -> None:
    file = tmp_path / "m.py"
    file.write_text(
        "def first():\n    return 1\n\n\n"
        "def other(n):\n    def inner():\n        return n\n\n"
        "    if n < 0:\n        return 1\n    elif n:\n        return inner()\n    return 2\n"
    )
    room = imported(file)
    functions = functions_of([file])
    probes = Probes([str(file)])
    probes.install(functions)
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(room.other(7)))
    thread.start()
    thread.join()
    assert found == [7]
    assert probes.noted() == {str(file): [6, 7, 9, 11, 12]}
    probes.begin()
    assert room.first() == 1
    assert probes.noted() == {str(file): [2]}


def test_what_was_reached_is_found_again_for_the_same_texts_alone(tmp_path: Path) -> None:
    module, test = tmp_path / "m.py", tmp_path / "test_m.py"
    module.write_text("a")
    test.write_text("b")
    Kept([str(module)], tmp_path / "kept").keep(test, "{}")
    assert Kept([str(module)], tmp_path / "kept").find(test) == "{}"
    test.write_text("c")
    assert Kept([str(module)], tmp_path / "kept").find(test) is None
    test.write_text("b")
    module.write_text("d")
    assert Kept([str(module)], tmp_path / "kept").find(test) is None


def change_told(answer: str, new: str = "n") -> dict[str, object]:
    change = Change("rocketstream.m", 0, 3, (3, 3), "f", False, "o", new)
    return {**vars(change), "answer": answer, "tests": 2}


def test_the_table_counts_what_was_noticed_and_names_what_was_not() -> None:
    changes = [change_told(answer) for answer in ("failed tests/a.py", "time out", "survived")]
    text, share = table({"area": "a", "unfit": ["tests/b.py::c"], "changes": changes})
    assert share == pytest.approx(2 / 3)
    assert "src/rocketstream/m.py:3 (f, 2 tests) o -> n" in text
    assert "tests/b.py::c" in text
    assert "noticed: by a failing test 1, by a time out 1" in text


@pytest.mark.parametrize(("survivors", "code"), [(5, 0), (6, 1)])
def test_the_command_fails_where_an_area_is_below_95_of_a_hundred(
    survivors: int, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One area of two is enough."""
    first, other = (area.name for area in AREAS[:2])

    def run(area: str, _: object) -> dict[str, object]:
        missed = survivors if area == other else 0
        answers = ["survived"] * missed + ["failed tests/a.py"] * (100 - missed)
        return {"area": area, "unfit": [], "changes": [change_told(each) for each in answers]}

    monkeypatch.setattr(command, "run", run)
    monkeypatch.setattr("sys.argv", ["mutation", first, other])
    assert command.main() == code
    assert (f"below 95%: {other}" in capsys.readouterr().out) == bool(code)


def test_what_fails_without_the_change_too_has_not_noticed_it() -> None:
    text, share = table({"area": "a", "unfit": [], "changes": [change_told(UNSURE)]})
    assert share == 0
    assert "fails without it too: src/rocketstream/m.py:3" in text


def test_an_equivalent_has_a_reason() -> None:
    assert parsed("# c\na.b | f | x < 1 -> x <= 1\n  never\n  one\n") == {
        ("rocketstream.a.b", "f", "x < 1", "x <= 1"): "never one"
    }
    with pytest.raises(ValueError, match="without a reason"):
        parsed("a.b | f | x < 1 -> x <= 1\n")


def test_every_listed_equivalent_still_stands_in_the_source() -> None:
    """When this fails the product's text has changed: look whether the reason still holds."""
    every = {
        change.key
        for area in AREAS
        for module, file in area.files()
        for change in changes_of(module, file.read_text(encoding="utf-8"))
    }
    assert not set(equivalents()) - every


def test_what_failed_is_read_from_the_summary() -> None:
    """Parameters may have spaces, and the text of one test begin that of another."""
    told = "x\nFAILED tests/a.py::b[- 1] - assert 0\nERROR tests/a.py::c\n1 failed, 1 error in 1s\n"
    names = ["tests/a.py::b", "tests/a.py::b[- 1]", "tests/a.py::c", "tests/a.py::d"]
    assert failing_of(names, told) == names[1:3]


def test_a_default_is_near_to_tests_that_run_the_body_of_its_function() -> None:
    """What a call without the argument does is seen there, wherever the words of it stand."""
    (default, *_) = [each for each in changes_of("m", SOURCE) if each.old == "2"]
    assert default.at_import
    first, last = default.lines
    body = SOURCE.splitlines()[first - 1 : last]
    assert body[0].strip() == '"""Docstring."""'
    assert body[-1].strip() == "return values[0] * 7"
