"""The published list of planted defects is the catalogue's own."""

from __future__ import annotations

from scripts.mutant_table import PAGE, page
from tests.mutants.catalogue import MUTANTS


def test_the_page_of_planted_defects_is_fresh() -> None:
    """Run `python -m scripts.mutant_table` when this fails."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_each_planted_defect_has_a_row() -> None:
    rows = [line for line in page().splitlines() if line.startswith("| ")]
    assert len(rows) == len(MUTANTS) + 2
