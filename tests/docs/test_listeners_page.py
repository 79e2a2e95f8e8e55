"""The page on listeners: its unit tests pass as printed, and would not for another listener."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).resolve().parents[2] / "docs/listeners.md").read_text(encoding="utf-8")
EXAMPLE = re.compile(r"<!-- test: listener -->\n```python\n(.*?)```", re.DOTALL)


def functions_of(program: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(program, names)  # noqa: S102 - our own page
    return {name: each for name, each in names.items() if name.startswith("test_")}


def test_the_example_tests_its_listener() -> None:
    (program,) = EXAMPLE.findall(PAGE)
    tests = functions_of(program)
    assert len(tests) == 2
    for test in tests.values():
        test()
    broken = functions_of(program.replace("+ message.reconsume_times", ""))
    with pytest.raises(AssertionError):
        broken["test_an_order_for_later_waits_longer_each_time"]()
