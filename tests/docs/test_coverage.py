"""The page of behaviours is what the tests cite, and nearly all behaviours are cited."""

from __future__ import annotations

from scripts import coverage_table as table


def test_the_page_of_behaviours_is_fresh() -> None:
    """Run `python -m scripts.coverage_table` when this fails."""
    assert table.PAGE.read_text(encoding="utf-8") == table.page()


def test_each_behaviour_is_cited_or_explained() -> None:
    """Run `python -m scripts.coverage_table --missing` when this fails."""
    cited = table.tests_by_behaviour()
    assert table.missing(cited) == []
    assert table.share(cited) >= table.SHARE_MIN
    in_scope = {number for section in table.SECTIONS for number in section.ids}
    assert table.reasons().keys() <= in_scope - cited.keys(), "a reason for what is tested"


def test_a_range_of_citations_means_all_of_it() -> None:
    """The two ways to cite several at once."""
    assert table.cited_in("covers A-1 C-5, C-9 to C-11") == {5, 9, 10, 11}
    assert table.cited_in("C-20\u2013C-22 and (C-7)") == {20, 21, 22, 7}
