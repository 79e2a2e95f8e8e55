"""Planted defects are where they say, and the quick ones are found; `make simulate-mutants` finds
them all."""

from __future__ import annotations

import ast

import pytest

from tests.mutants.__main__ import ROOT, SEEDS, find, table
from tests.mutants.catalogue import MUTANTS
from tests.mutants.from_docs import FROM_DOCS
from tests.mutants.mutant import Edit, Mutant
from tests.mutants.plant import edited, plant_changes, source_of

PAGE = ROOT / "docs/simulation.md"
QUICK = (
    "lite-commits-the-cache",
    "suspend-means-done",
    pytest.param("commit-the-largest", marks=pytest.mark.long),
    pytest.param("rollback-means-commit", marks=pytest.mark.long),
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_a_mutant_stands_where_it_says_and_is_python(mutant: Mutant) -> None:
    """When this fails the product's text has changed: give the mutant the new one."""
    for module in {edit.module for edit in mutant.edits}:
        edits = [edit for edit in mutant.edits if edit.module == module]
        text = source_of(module)
        assert ast.dump(ast.parse(edited(text, edits))) != ast.dump(ast.parse(text))


def test_every_mutant_has_a_name_of_its_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_the_page_says_how_many_are_to_be_found_and_how_many_are_not() -> None:
    """A mutant that is taken out, or given a reason not to be found, is told there."""
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    unseen = [mutant for mutant in MUTANTS if mutant.unseen]
    assert {*unseen} <= {*FROM_DOCS} <= {*MUTANTS}
    said = {
        f"plants {len(MUTANTS) - len(unseen)} defects, one at a time, and must find each within "
        f"{SEEDS:,} seeds",
        f"Of these, {len(FROM_DOCS) - len(unseen)} are found",
        f"Not found are {len(unseen)}:",
    }
    assert {each for each in said if each not in text} == set()
    assert len(FROM_DOCS) == 30, "the page says thirty"


def test_a_text_that_stands_twice_is_no_place_for_a_mutant() -> None:
    with pytest.raises(ValueError, match="2 times 'a'"):
        edited("a a", [Edit("m", "a", "b")])


def test_what_was_imported_already_cannot_be_planted() -> None:
    with pytest.raises(RuntimeError, match="ast imported before the defect was planted"):
        plant_changes({"ast": str})


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_a_quick_mutant_is_found(name: str) -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    found = find(mutant, seeds=50)
    assert found.seeds is not None, table([found])
