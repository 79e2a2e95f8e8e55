"""Count what the simulation reaches of client and server: `python -m scripts.simulated_lines 25`.

Run by hand, for docs/simulation.md: so many seeds, the scenarios in turn. Counts lines inside
functions: what a module's import runs, it runs without a simulation too. Modules that decide
("Pure:" in their docstring) are told apart.
"""

from __future__ import annotations

import ast
import itertools
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1] / "src"
PARTS = ("rocketstream/client", "rocketstream/server")
_IS_FUNCTION = 0x1
_SAYS_PURE = re.compile(r"^Pure[:,]", re.MULTILINE)
SHOWN = 15


@dataclass
class Source:
    """A module's file: the lines of its functions, and those that ran."""

    path: Path
    is_pure: bool
    functions: dict[str, set[int]]
    reached: set[int] = field(default_factory=set)

    @property
    def lines(self) -> set[int]:
        """The lines of all its functions."""
        return set().union(*self.functions.values())


def _functions(code: CodeType, name: str = "") -> Iterator[tuple[str, set[int]]]:
    """Yield each outermost function with its lines, those of functions inside it among them."""
    for each in code.co_consts:
        if not isinstance(each, CodeType):
            continue
        inner = f"{name}.{each.co_name}" if name else each.co_name
        if each.co_flags & _IS_FUNCTION:
            yield inner, set(_lines(each))
        else:
            yield from _functions(each, inner)


def _lines(code: CodeType) -> Iterator[int]:
    yield from (line for _, _, line in code.co_lines() if line and line != code.co_firstlineno)
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _lines(each)


def sources() -> dict[str, Source]:
    """Return the modules by the name of their file."""
    found = {}
    for part in PARTS:
        for path in sorted((ROOT / part).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            functions: dict[str, set[int]] = defaultdict(set)
            for name, lines in _functions(compile(text, str(path), "exec", dont_inherit=True)):
                functions[name] |= lines
            is_pure = bool(_SAYS_PURE.search(ast.get_docstring(ast.parse(text)) or ""))
            found[str(path)] = Source(path, is_pure, dict(functions))
    return found


def trace(found: dict[str, Source]) -> None:
    """Note every line of these files that runs from now on."""

    done: set[CodeType] = set()

    def call(frame: FrameType, _event: str, _argument: Any) -> Any:
        code = frame.f_code
        source = found.get(code.co_filename)
        if source is None or code in done:
            return None
        if {line for _, _, line in code.co_lines() if line} <= source.reached:
            done.add(code)
            return None
        add = source.reached.add

        def line(frame: FrameType, event: str, _argument: Any) -> Any:
            if event == "line":
                add(frame.f_lineno)
            return line

        return line

    sys.settrace(call)


def _share(some: list[Source]) -> str:
    lines = sum(len(each.lines) for each in some)
    reached = sum(len(each.lines & each.reached) for each in some)
    return f"{reached:6,} of {lines:6,} lines ({100 * reached / max(lines, 1):.0f} %)"


def main() -> None:
    """Run the seeds and print the shares."""
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 25
    found = sources()
    from tests.scenarios.campaign import run_seed
    from tests.scenarios.workloads import SCENARIOS

    trace(found)
    for seed, scenario in zip(range(seeds), itertools.cycle(sorted(SCENARIOS)), strict=False):
        run_seed(seed, scenario)
    sys.settrace(None)
    kept = [each for each in found.values() if each.lines]
    pure = [each for each in kept if each.is_pure]
    rows = [f"all   {_share(kept)}", f"pure  {_share(pure)}", ""]
    for each in kept:
        mark = "pure" if each.is_pure else "    "
        rows.append(f"{mark}  {_share([each])}  {each.path.relative_to(ROOT)}")
    missed = [
        (len(lines - each.reached), f"{each.path.relative_to(ROOT)} {name}")
        for each in pure
        for name, lines in each.functions.items()
    ]
    rows += ["", "most lines that decide, and are not reached:"]
    rows += [f"{count:6} {name}" for count, name in sorted(missed, reverse=True)[:SHOWN]]
    sys.stdout.write("\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
