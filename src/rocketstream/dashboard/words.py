"""Values as pages show them: names of queues, JSON, and text that cannot deceive.

Pure: values in, text out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from rocketstream._util.unseen import spelled_out
from rocketstream.admin.state import QueueState, Verdict

NONE: Final = "–"


def visible(text: str) -> str:
    """Return a text in which characters that hide or reorder others are spelled out: ``\u202e``."""
    return spelled_out(text, kept="\n\t")


def slug(verdict: Verdict) -> str:
    """Return the CSS class of a verdict."""
    return verdict.value.lower().replace(" ", "-")


def by_topic(queues: Iterable[QueueState]) -> list[tuple[str, str]]:
    """Return topics with their queue ids as ranges: ``0–3, 7``."""
    ids: dict[str, list[int]] = {}
    for queue in queues:
        ids.setdefault(queue.topic, []).append(queue.queue_id)
    return [(topic, ranges(found)) for topic, found in sorted(ids.items())]


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers with consecutive ones joined: ``0–3, 7``."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{a}" if a == b else f"{a}–{b}" for a, b in runs)


def clipped(text: str, most: int) -> str:
    """Return at most ``most`` characters of a text; a mark shows that some are left out."""
    return text if len(text) <= most else text[:most] + "…"


def as_json(value: Any) -> str:
    """Return JSON indented for reading."""
    return json.dumps(value, indent=2, ensure_ascii=False)
