"""``python -m tests.interleaving``: plays scenes, or repeats one."""

from __future__ import annotations

import argparse
import sys

from tests.interleaving.scenes import SCENES, scene_of, warm
from tests.interleaving.stage import run_scene


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns 0 when nothing failed, 1 when something did."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.interleaving",
        description="Have threads call a client, stopped at steps that are drawn from seeds.",
    )
    parser.add_argument("--seeds", type=int, default=300, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--scene", choices=sorted(SCENES), help="this one only")
    parser.add_argument("--replay", type=int, metavar="SEED", help="play one seed again")
    parser.add_argument("--failures", type=int, default=5, help="stop after so many")
    given = parser.parse_args(arguments)
    first, count = (given.first, given.seeds) if given.replay is None else (given.replay, 1)
    seeds = range(first, first + count)
    warm()
    failures = 0
    for seed in seeds:
        name = given.scene or scene_of(seed)
        result = run_scene(name, SCENES[name], seed)
        if given.replay is not None:
            _say(f"digest {result.digest}")
        if result.problems:
            _say(result.told())
            failures += 1
            if failures >= given.failures:
                break
    _say(f"{failures} of {len(seeds)} seeds broke a promise" if failures else "all is well")
    return 1 if failures else 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
