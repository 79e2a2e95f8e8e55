"""A planted defect: texts of the product's source, and others in their place.

Law: texts only; a text that is to be replaced stands exactly once in its module.
"""

from __future__ import annotations

from dataclasses import dataclass

CLIENT, BROKER, STORE = (
    "rocketstream.client",
    "rocketstream.server.broker",
    "rocketstream.server.store",
)
LOST = "lost, misplaced, not consumed, does not hold"
AHEAD = "committed ahead, lost, not consumed, committed"
ORDER = "owned twice, reordered, went backwards"


@dataclass(frozen=True)
class Edit:
    """A text of a module, and what stands there instead."""

    module: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutant:
    """A planted defect.

    Attributes:
        name: in a word.
        breaks: what it breaks, in one line.
        scenario: the workload that is to find it.
        shows: words one of which is in what is found; other failures do not count.
        edits: where it is planted.
        unseen: why no seed finds it; empty for one that must be found.
    """

    name: str
    breaks: str
    scenario: str
    shows: tuple[str, ...]
    edits: tuple[Edit, ...]
    unseen: str = ""

    def is_shown_by(self, failure: str) -> bool:
        """Tell whether a failure is one this defect makes."""
        return any(word in failure for word in self.shows)


def mutant(
    name: str,
    breaks: str,
    scenario: str,
    shows: str,
    *edits: tuple[str, str, str],
    unseen: str = "",
) -> Mutant:
    """Return a planted defect; ``shows`` are words with commas between them."""
    words = tuple(shows.split(", "))
    return Mutant(name, breaks, scenario, words, tuple(Edit(*edit) for edit in edits), unseen)
