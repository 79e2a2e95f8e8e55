"""What every measured job is made of: it sets itself up once and then does rounds.

Law: tells rounds apart and prints what they say; what is measured is the job's.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TypeAlias

Options: TypeAlias = argparse.Namespace
Round: TypeAlias = Callable[[Options], dict[str, float]]
"""Does a round with these options and returns what it measured."""
Job: TypeAlias = Callable[[Options], AbstractContextManager[Round]]
"""What stays up from round to round is made from the options of the command line."""


def counted(count: int, seconds: float) -> dict[str, float]:
    """What a round says that handled ``count`` messages."""
    return {"count": count, "seconds": seconds, "rate": count / seconds}


def body_of(size: int) -> bytes:
    """A body of ``size`` bytes that does not compress to nothing."""
    pattern = b"".join(b"%d," % (number * 7919 % 10_007) for number in range(size // 4 + 1))
    return pattern[:size]


def run_job(parser: argparse.ArgumentParser, jobs: Mapping[str, Job]) -> None:
    """Run the job named on the command line; a JSON line for each of its rounds."""
    parser.add_argument("job", choices=sorted(jobs))
    parser.add_argument("--rounds", type=int, default=1, help="how many, when not told on stdin")
    parser.add_argument("--told", action="store_true", help="a round for each line of stdin")
    options = parser.parse_args()
    with jobs[options.job](options) as once:
        for now in rounds_of(parser, options):
            before = time.process_time()
            told = once(now)
            spent = time.process_time() - before
            if told.get("count"):
                told["cpu_us"] = spent / told["count"] * 1e6
            sys.stdout.write(json.dumps({"event": "round", **told}) + "\n")
            sys.stdout.flush()


def rounds_of(parser: argparse.ArgumentParser, options: Options) -> Iterator[Options]:
    """The options of each round, one after the other."""
    if not options.told:
        for _ in range(options.rounds):
            yield options
        return
    for line in sys.stdin:
        more: list[str] = []
        for word in line.split():
            name, _, value = word.partition("=")
            more += [f"--{name.replace('_', '-')}", value]
        yield parser.parse_args([*sys.argv[1:], *more])
