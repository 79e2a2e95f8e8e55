"""A campaign: many seeds in several processes, with a report of failures and faults."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from rocketstream._util.clock import SYSTEM_CLOCK
from rocketstream.errors import ConfigurationError, SimulationError
from rocketstream.testing.sim.cluster import Cluster
from rocketstream.testing.sim.options import (
    FAULT_KINDS,
    FLIP_AT_WORK,
    IN_HANDSHAKE,
    SLOW_DISK,
    STATE_FILE,
    Options,
)
from rocketstream.testing.sim.runs import SeedResult, run_world, simulated
from tests.scenarios.draws import draw_options
from tests.scenarios.workloads import SCENARIOS

COUNTED = (
    *FAULT_KINDS[:15],
    *FAULT_KINDS[22:],
    SLOW_DISK,
    STATE_FILE,
    FLIP_AT_WORK,
    IN_HANDSHAKE,
    "short write",
    "short read",
    "EIO on write",
    "EIO on read",
    "EIO on sync",
    "ENOSPC",
    "bit flipped",
    "page lost",
    "page torn",
    "names lost",
)
"""The kinds of fault that must have happened in every 1,000 seeds for a campaign to count."""
SEEDS_THAT_COUNT = 1_000
"""From this many seeds on, every kind of fault must have happened."""
FAILURES_MAX = 20
"""A campaign ends after this many failing seeds."""
_CHUNK = 5
_HASH_SEED = "PYTHONHASHSEED"
_COLLECT_EVERY = 25


def run_seed(
    seed: int,
    scenario: str | None = None,
    options: Options | None = None,
    trace: bool = False,
) -> SeedResult:
    """Run one seed from its beginning to its verdict; blocks.

    Args:
        seed: where all chance comes from.
        scenario: its name; drawn when None.
        options: the options; drawn when None.
        trace: whether to keep the story.
    """
    names = sorted(SCENARIOS)
    name = scenario or (options.scenario if options else "") or random.Random(seed).choice(names)
    if name not in SCENARIOS:
        raise SimulationError(f"no scenario {name!r}; there are {', '.join(names)}")
    options = options or draw_options(seed, name)
    with simulated(seed, options, trace=trace) as world:
        Cluster(world)
        return run_world(world, SCENARIOS[name](world))


def told(result: SeedResult) -> str:
    """Return the text a reader needs to look into a failure, and to see it again."""
    again = f"--replay {result.seed} --scenario {result.scenario} --trace"
    return f"{result.report()}\n  again: python -m tests.scenarios {again}"


@dataclass
class CampaignReport:
    """The result of a campaign.

    Attributes:
        seeds: how many ran.
        failures: results of the seeds that failed.
        faults: faults that happened, by kind.
        scenarios: seeds by scenario.
        messages: messages sent in all seeds together.
        virtual_s: time simulated.
        elapsed_s: time it took.
    """

    seeds: int = 0
    failures: list[SeedResult] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    scenarios: Counter[str] = field(default_factory=Counter)
    messages: int = 0
    virtual_s: float = 0.0
    elapsed_s: float = 0.0

    def add(self, result: SeedResult) -> None:
        """Count a seed."""
        self.seeds += 1
        self.faults.update(result.faults)
        self.scenarios[result.scenario] += 1
        self.messages += result.messages
        self.virtual_s += result.virtual_ms / 1000
        if not result.ok:
            self.failures.append(result)

    @property
    def missing_faults(self) -> list[str]:
        """Return the fault kinds that never happened although there were enough seeds."""
        if self.seeds < SEEDS_THAT_COUNT:
            return []
        return [kind for kind in COUNTED if not self.faults[kind]]

    @property
    def ok(self) -> bool:
        """Whether nothing failed and every kind of fault happened."""
        return not self.failures and not self.missing_faults

    def text(self) -> str:
        """Return the figures as text."""
        rate = self.seeds / self.elapsed_s if self.elapsed_s else 0.0
        anomalies = sum(max(len(each.anomalies), 1) for each in self.failures)
        lines = [
            f"{self.seeds} seeds in {self.elapsed_s:.0f} s ({rate:.1f} a second), "
            f"{self.virtual_s / 3600:.1f} virtual hours, {self.messages} messages, "
            f"{len(self.failures)} seeds failed, {anomalies} anomalies",
            "scenarios: " + _counted(self.scenarios),
            "faults: " + _counted(self.faults),
        ]
        if self.missing_faults:
            lines.append(f"these faults never happened: {', '.join(self.missing_faults)}")
        return "\n".join(lines)


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def parse_seeds(text: str) -> range:
    """Return the seeds a text names: ``500`` (0 to 499) or ``100-199``.

    Raises:
        ConfigurationError: the text is neither a number nor a range.
    """
    first, dash, last = text.partition("-")
    if not (first.isdigit() and (last.isdigit() if dash else not last)):
        raise ConfigurationError(f"seeds {text!r}: give a number, or a range such as 1000-1999")
    return range(int(first), int(last) + 1) if dash else range(int(first))


def run_campaign(
    seeds: Iterable[int],
    *,
    processes: int = 1,
    scenario: str | None = None,
    failures_max: int = FAILURES_MAX,
    on_result: Callable[[SeedResult], None] | None = None,
) -> CampaignReport:
    """Run seeds until they are done or too many failed; blocks.

    Args:
        seeds: the seeds to run.
        processes: how many processes share them.
        scenario: run this one only.
        failures_max: stop after this many failing seeds.
        on_result: called with each result as it comes.
    """
    report = CampaignReport()
    began_ms = SYSTEM_CLOCK.monotonic_ms()
    for result in _results([(seed, scenario) for seed in seeds], processes):
        report.add(result)
        if on_result is not None:
            on_result(result)
        if len(report.failures) >= failures_max:
            break
    report.elapsed_s = (SYSTEM_CLOCK.monotonic_ms() - began_ms) / 1000
    return report


_Job = tuple[int, str | None]


def _results(jobs: list[_Job], processes: int) -> Iterator[SeedResult]:
    if processes <= 1:
        yield from map(_run, jobs)
        return
    # Not a fork: each process begins as a fresh program does, and sees the hash seed set here.
    before = os.environ.get(_HASH_SEED)
    os.environ[_HASH_SEED] = "0"
    try:
        pool = multiprocessing.get_context("spawn").Pool(processes)
    finally:
        if before is None:
            del os.environ[_HASH_SEED]
        else:
            os.environ[_HASH_SEED] = before
    with pool:
        yield from pool.imap_unordered(_run, jobs, chunksize=_CHUNK)


def _run(job: _Job) -> SeedResult:
    seed, scenario = job
    if seed % _COLLECT_EVERY == 0:
        gc.collect()
    return run_seed(seed, scenario)
