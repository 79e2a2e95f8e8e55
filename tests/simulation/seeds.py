"""Running a part of the seeds; each part is a file of its own, so that processes share them."""

from __future__ import annotations

import gc
from collections.abc import Iterable

from tests.scenarios.campaign import run_campaign, told

SEEDS = 100


def check(seeds: Iterable[int]) -> None:
    report = run_campaign(seeds, failures_max=5)
    gc.collect()  # what killed processes leave behind is this test's, not the next one's
    failed = "\n".join(told(each) for each in report.failures)
    assert report.ok, f"{report.text()}\n{failed}"
    assert report.messages
    assert report.faults
