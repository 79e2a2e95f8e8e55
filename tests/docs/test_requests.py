"""The published list of request codes is the dispatch tables' own."""

from __future__ import annotations

from scripts.request_table import PAGE, page


def test_the_page_of_requests_is_fresh() -> None:
    """Run `python -m scripts.request_table` when this fails."""
    assert PAGE.read_text(encoding="utf-8") == page()
