"""From sides that do rounds to figures: who is compared with whom, and what is told beside.

Law: knows no broker and no client.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.harness import Figure
from benchmarks.rounds import Rounds, Rule, in_turn
from benchmarks.sides import Side


def compared(
    unit: str, ours: Mapping[str, Side], rule: Rule, peers: Mapping[str, Side] | None = None
) -> Iterator[Figure]:
    """Let all sides do rounds in turn; one figure for each of ours next to each of the peers."""
    others = peers or {}
    done = in_turn({**others, **ours}, rule)
    for name, side in ours.items():
        notes = told_beside("ours", side, done[name])
        if not others:
            yield Figure(name, unit, done[name], notes=notes)
        for peer, other in others.items():
            beside = {**notes, **told_beside("peer", other, done[peer])}
            yield Figure(name, unit, done[name], peer, done[peer], beside)


def told_beside(word: str, side: Side, rounds: Rounds) -> dict[str, Any]:
    """Processor time a message of client and servers, over the rounds that are reported.

    And the share of the machine that others had meanwhile.
    """
    found: dict[str, Any] = {}
    others = side.median("others", rounds)
    if others is not None:
        found[f"{word}_others"] = round(others, 3)
    for key in ("cpu_us", "server_us"):
        median = side.median(key, rounds)
        if median is not None:
            found[f"{word}_{key}"] = round(median, 1)
    return found
