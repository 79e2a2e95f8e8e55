"""Write docs/planted-defects.md: the defects that are planted in the product, from their catalogue.

Run `python -m scripts.mutant_table` after changing one; a test fails when the page is stale.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.mutants.catalogue import MUTANTS
from tests.mutants.from_docs import FROM_DOCS
from tests.mutants.mutant import Mutant

PAGE = Path(__file__).resolve().parents[1] / "docs" / "planted-defects.md"
HEAD = """# Planted defects

Generated from `tests/mutants` by `python -m scripts.mutant_table`. `make simulate-mutants` plants
each of them in the product's source, one at a time, and runs seeds of its scenario until one breaks
a promise; a seed counts only where the product as it is keeps them all.
"""
AUTHORS = "By the simulator's authors"
OTHERS = "Thought up by others, from the pages alone"


def table(title: str, mutants: Iterable[Mutant]) -> str:
    """Return one table of defects, with who finds each, or why nobody does."""
    rows = []
    found = 0
    for each in mutants:
        found += not each.unseen
        cell = f"not found: {each.unseen}" if each.unseen else f"`{each.scenario}`"
        rows.append(f"| {each.name} | {each.breaks} | {cell} |")
    count = f"{found} of {len(rows)} must be found."
    top = ["| defect | what it breaks | the scenario that finds it |", "|---|---|---|"]
    return "\n".join([f"## {title}", "", count, "", *top, *rows, ""])


def page() -> str:
    """Return the text the page must have."""
    others = {each.name for each in FROM_DOCS}
    authors = table(AUTHORS, (each for each in MUTANTS if each.name not in others))
    return "\n".join([HEAD, authors, table(OTHERS, FROM_DOCS)])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
