"""Campaigns: which seeds, what is counted, what fails them, and the command."""

from __future__ import annotations

import pytest

from rocketstream.errors import ConfigurationError, StoreDamagedError
from rocketstream.testing.sim import cluster
from rocketstream.testing.sim.options import FLIP_AT_WORK, Options
from rocketstream.testing.sim.runs import SeedResult
from tests.scenarios.__main__ import main
from tests.scenarios.campaign import (
    COUNTED,
    CampaignReport,
    parse_seeds,
    run_campaign,
    run_seed,
    told,
)


def test_seeds_are_a_number_or_a_range() -> None:
    assert parse_seeds("3") == range(3)
    assert parse_seeds("10-12") == range(10, 13)


@pytest.mark.parametrize("text", ["", "x", "1-", "-1", "1-x"])
def test_other_seeds_are_refused_with_what_to_give(text: str) -> None:
    with pytest.raises(ConfigurationError, match="a number, or a range"):
        parse_seeds(text)


def test_fault_kind_that_never_happened_fails_a_long_campaign() -> None:
    report = CampaignReport()
    result = SeedResult(1, "clustering", Options(1))
    result.faults.update(dict.fromkeys(COUNTED[1:], 1))
    for _ in range(999):
        report.add(result)
    assert report.ok
    report.add(result)
    assert not report.ok
    assert report.missing_faults == [COUNTED[0]]
    assert COUNTED[0] in report.text()


def test_failed_seed_fails_the_campaign_and_says_how_to_see_it_again() -> None:
    report = CampaignReport()
    report.add(SeedResult(7, "orderly", Options(7, scenario="orderly"), failure="lost: one"))
    assert not report.ok
    text = told(report.failures[0])
    assert "--replay 7 --scenario orderly" in text
    assert "Options(seed=7" in text


def test_campaign_gives_the_same_results_in_two_processes() -> None:
    digests = {}

    def note(result: SeedResult) -> None:
        digests[result.seed] = result.digest

    report = run_campaign(range(20, 24), processes=2, on_result=note)
    assert report.seeds == 4
    assert digests == {seed: run_seed(seed).digest for seed in range(20, 24)}


def test_command_runs_and_replays(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "20-21"]) == 0
    assert "2 seeds" in capsys.readouterr().out
    assert main(["--replay", "20", "--trace"]) == 0
    story = capsys.readouterr().out
    assert "broker-a starts 1" in story
    assert run_seed(20).digest in story
    assert main(["--list"]) == 0
    assert "orderly" in capsys.readouterr().out


def test_command_refuses_what_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--replay", "1", "--scenario", "nonsense"]) == 2
    assert "there are administering, asking, broadcasting" in capsys.readouterr().out


def test_an_exception_in_the_check_itself_fails_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended the campaign with a traceback, and nobody knew which seed to repeat."""

    def unreadable(*_: object) -> list[object]:
        raise StoreDamagedError("a record")

    monkeypatch.setattr(cluster, "_read_queue", unreadable)
    result = run_seed(7, "clustering")
    assert result.failure == "the check itself failed: StoreDamagedError: a record"
    assert "--replay 7 --scenario clustering" in told(result)


@pytest.mark.parametrize(
    ("kind", "seed"), [("bit flip", 5), ("bit flip", 8), ("bit flip", 15), (FLIP_AT_WORK, 5)]
)
def test_a_bit_that_flipped_as_faults_ended_is_put_right_before_the_run_is_judged(
    kind: str, seed: int
) -> None:
    options = Options(
        seed, queues=1, messages=20, members=3, body_bytes_max=20, delay_levels="1s 1s 1s 1s",
        faults=(kind,), fault_ms=10_000, fault_interval_ms=300, flush_interval_ms=100,
        keep_interval_ms=200, persist_interval_ms=500, commit_log_file_bytes=262_144,
        heartbeat_ms=5_000, rebalance_ms=1_000, consume_batch=5, request_timeout_ms=500,
    )  # fmt: skip
    result = run_seed(seed, "clustering", options)
    assert result.ok, result.report()
    assert result.faults[kind] > 3
