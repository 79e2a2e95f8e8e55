"""The page of behaviours is what the tests cite, and nearly all behaviours are cited."""

from __future__ import annotations

from scripts.coverage_table import (
    PAGE,
    SECTIONS,
    SHARE_MIN,
    cited_in,
    missing,
    page,
    reasons,
    share,
    tests_by_behaviour,
)


def test_the_page_of_behaviours_is_fresh() -> None:
    """Run `python -m scripts.coverage_table` when this fails."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_each_behaviour_is_cited_or_explained() -> None:
    """Run `python -m scripts.coverage_table --missing` when this fails."""
    tests = tests_by_behaviour()
    assert missing(tests) == []
    assert share(tests) >= SHARE_MIN
    in_scope = {number for section in SECTIONS for number in section.ids}
    assert reasons().keys() <= in_scope - tests.keys(), "a reason for something that is tested"


def test_a_range_of_citations_means_all_of_it() -> None:
    """The two ways to cite several at once."""
    assert cited_in("covers C-5, C-9 to C-11") == {5, 9, 10, 11}
    assert cited_in("C-20\u2013C-22 and (C-7)") == {20, 21, 22, 7}
