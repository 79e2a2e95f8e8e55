"""The changes nobody can notice, by name, with the reason.

Law: reads `equivalents.txt`; a name is module, function, old and new text, so that it outlives
other changes of the file.
"""

from __future__ import annotations

import functools
from pathlib import Path

LIST = Path(__file__).with_name("equivalents.txt")

Name = tuple[str, str, str, str]


@functools.cache
def equivalents() -> dict[Name, str]:
    """Return the reason of each."""
    return parsed(LIST.read_text(encoding="utf-8"))


def parsed(text: str) -> dict[Name, str]:
    """Return the names of a list and their reasons.

    Two lines an entry: ``module | function | old -> new``, then the reason, indented; '#' begins a
    line for readers.

    Raises:
        ValueError: an entry has no reason, or a line is none of these.
    """
    found: dict[Name, str] = {}
    name: Name | None = None
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith(" "):
            if name is None:
                raise ValueError(f"a reason without its change: {line.strip()!r}")
            found[name] = f"{found[name]} {line.strip()}".strip()
            continue
        parts = line.split(" | ", 2)
        if len(parts) != 3 or " -> " not in parts[2]:
            raise ValueError(f"not `module | function | old -> new`: {line!r}")
        old, new = parts[2].split(" -> ", 1)
        name = (f"rocketstream.{parts[0]}", parts[1].strip(), old, new)
        found[name] = ""
    if bare := [name for name, reason in found.items() if not reason]:
        raise ValueError(f"without a reason: {bare}")
    return found
