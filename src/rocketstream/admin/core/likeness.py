"""Known names similar to a given one, for errors that help.

Pure: names in, names out.
"""

from __future__ import annotations

from collections.abc import Iterable

NAMES_MAX = 3


def like(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'a', 'b'?``, or an empty text when no known name is similar."""
    import difflib  # needed only where a name is wrong

    # Ignore case first: an upper-case topic is the commonest slip.
    by_folded: dict[str, str] = {}
    for each in known:
        by_folded.setdefault(each.casefold(), each)
    folded = name.casefold()
    close = difflib.get_close_matches(folded, by_folded, n=NAMES_MAX, cutoff=0.6)
    if folded:
        # A name cut short, or with an extra part, may share too few letters to count as close.
        close += sorted(each for each in by_folded if folded in each or each in folded)
    close = list(dict.fromkeys(close))[:NAMES_MAX]
    if not close:
        return ""
    return "; did you mean " + " or ".join(repr(by_folded[each]) for each in close) + "?"
