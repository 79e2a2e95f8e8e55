"""The scenes, by name."""

from __future__ import annotations

from collections.abc import Callable

from tests.interleaving import consuming, producing, pulling, talking
from tests.interleaving.stage import Stage, run_scene

_PLAYED = (
    producing.sending,
    producing.sharing,
    producing.beginning,
    producing.ending,
    consuming.listening,
    consuming.listening_in_order,
    consuming.dividing,
    consuming.changing,
    pulling.polling,
    pulling.pulling,
    pulling.scheduled,
    talking.transactions,
    talking.asking,
)
SCENES: dict[str, Callable[[Stage], None]] = {play.__name__: play for play in _PLAYED}


def warm() -> None:
    """Play each scene once: what is made once in a process is made here, not by some seed."""
    if not _warmed:
        _warmed.append(True)
        for name, play in SCENES.items():
            run_scene(name, play, -1)


_warmed: list[bool] = []


def scene_of(seed: int) -> str:
    """Return the name of a seed's scene; they take turns."""
    return list(SCENES)[seed % len(SCENES)]
