"""From sides that do rounds to figures: who is compared with whom, and what is told beside.

Law: knows no broker and no client.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.harness import Figure
from benchmarks.rounds import Rounds, Rule, in_turn
from benchmarks.sides import Side

_PEER = "the peer"


def compared(
    unit: str, ours: Mapping[str, Side], rule: Rule, peer_name: str = "", peer: Side | None = None
) -> Iterator[Figure]:
    """Let all sides do rounds in turn; one figure for each of ours, each next to the same peer."""
    sides = dict(ours) if peer is None else {_PEER: peer, **ours}
    done = in_turn(sides, rule)
    for name, side in ours.items():
        notes = told_beside("ours", side, done[name])
        if peer is None:
            yield Figure(name, unit, done[name], notes=notes)
        else:
            notes |= told_beside("peer", peer, done[_PEER])
            yield Figure(name, unit, done[name], peer_name, done[_PEER], notes)


def told_beside(word: str, side: Side, rounds: Rounds) -> dict[str, Any]:
    """Processor time a message of client and servers, over the rounds that are reported."""
    found: dict[str, Any] = {}
    for key in ("cpu_us", "server_us"):
        median = side.median(key, rounds)
        if median is not None:
            found[f"{word}_{key}"] = round(median, 1)
    return found
