"""``python -m tests.scenarios``: runs a campaign, or repeats one seed."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from rocketstream.errors import RocketMQError
from rocketstream.testing.sim.runs import SeedResult
from tests.scenarios.campaign import (
    FAILURES_MAX,
    parse_seeds,
    run_campaign,
    run_seed,
    told,
)
from tests.scenarios.workloads import SCENARIOS


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns 0 when nothing failed, 1 when something did, 2 for bad arguments."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        if given.list:
            _say("\n".join(sorted(SCENARIOS)))
            return 0
        if given.replay is not None:
            return _replay(given.replay, given.scenario, trace=given.trace)
        seeds = parse_seeds(given.seeds)
    except RocketMQError as error:
        _say(f"error: {error}")
        return 2
    report = run_campaign(
        seeds,
        processes=given.processes,
        scenario=given.scenario,
        failures_max=given.failures,
        on_result=_show,
    )
    _say(report.text())
    return 0 if report.ok else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.scenarios",
        description="Simulate RocketMQ under faults; every run is drawn from its seed.",
    )
    parser.add_argument("--seeds", default="100", help="a number, or a range such as 1000-1999")
    parser.add_argument("--processes", type=int, default=1, help="how many share the seeds")
    parser.add_argument("--scenario", help="run this one only; see --list")
    parser.add_argument("--failures", type=int, default=FAILURES_MAX, help="stop after so many")
    parser.add_argument("--replay", type=int, metavar="SEED", help="run one seed again")
    parser.add_argument("--trace", action="store_true", help="with --replay: tell its story")
    parser.add_argument("--list", action="store_true", help="name the scenarios")
    return parser


def _replay(seed: int, scenario: str | None, *, trace: bool) -> int:
    result = run_seed(seed, scenario, trace=trace)
    if trace:
        _say(result.story)
    if result.ok:
        _say(f"seed {seed} ({result.scenario}) is fine; digest {result.digest}\n{result.options}")
        return 0
    _say(told(result))
    return 1


def _show(result: SeedResult) -> None:
    if not result.ok:
        _say(told(result))


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of a set then is the same as in the campaign.
        _command = [sys.executable, "-m", "tests.scenarios", *sys.argv[1:]]
        raise SystemExit(
            subprocess.run(_command, env=os.environ | {"PYTHONHASHSEED": "0"}).returncode
        )
    raise SystemExit(main())
