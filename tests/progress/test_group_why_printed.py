"""How a report on a group is printed."""

from __future__ import annotations

import json

import pytest

from rocketstream.admin.state import Cause, CauseKind, GroupVerdict, Verdict, WhyReport
from rocketstream.cli import group as group_commands
from rocketstream.cli.output import json_of
from rocketstream.cli.tables import width

CLIENT = "172.17.240.101@4711#1234567890123456"
REPORT = WhyReport(
    "billing",
    GroupVerdict(
        "billing",
        Verdict.STALLED,
        "Stands: no message was finished for 3 min 20 s although 2 members are connected; 2,500 "
        "messages wait.",
    ),
    (
        Cause(
            CauseKind.STARVED_POOL,
            f"The pool of {CLIENT} is starved: all 20 listener threads are inside a listener that "
            "does not return; 800 messages wait for a thread.",
            ("nothing was finished for 5 min", "threads stand: 20 at com.acme.Dao.save(Dao.java)"),
            "see what the threads wait for (stack); then restart the member",
            "ConsumeMessageThread_billing_1 (WAITING)\n    at com.acme.Dao.save(Dao.java:42)",
        ),
        Cause(
            CauseKind.EXPIRED_OFFSET, "4 messages were deleted 订单 before.", ("committed 1,000",)
        ),
    ),
    ("member c2 did not tell what it does: no answer within 900 ms",),
    812,
)


def test_the_first_line_is_the_verdict_and_nothing_is_cut_at_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commands, "room", lambda: 80)
    group_commands.print_why(REPORT)
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert max(map(width, lines)) <= 80
    assert lines[0].startswith("STALLED: Stands: no message was finished for 3 min 20 s")
    flat = " ".join(text.split())
    for cause in REPORT.causes:
        for part in (cause.sentence, *cause.evidence, *([cause.remedy] if cause.remedy else [])):
            assert part in flat
    assert CLIENT in flat
    assert "1. Starved pool: " in text
    assert "         at com.acme.Dao.save(Dao.java:42)" in lines
    assert "Not known:" in lines
    assert "member c2 did not tell" in flat


def test_no_cause_is_said_to_be_none(capsys: pytest.CaptureFixture[str]) -> None:
    fine = GroupVerdict("billing", Verdict.OK, "Caught up: no message waits.")
    group_commands.print_why(WhyReport("billing", fine, ()))
    assert capsys.readouterr().out.splitlines() == [
        "OK: Caught up: no message waits.",
        "",
        "No cause was found.",
    ]


def test_what_steers_a_terminal_is_shown_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    """Keys of messages come from anybody."""
    cause = Cause(CauseKind.POISON_MESSAGE, "Message AC1 (key \x1b[2J) fails.", stack="x\x1b[31m")
    fine = GroupVerdict("billing", Verdict.OK, "Caught up.")
    group_commands.print_why(WhyReport("billing", fine, (cause,)))
    assert "\x1b" not in capsys.readouterr().out


def test_the_report_as_json_has_everything() -> None:
    told = json.loads(json.dumps(json_of(REPORT)))
    assert told["verdict"]["verdict"] == "STALLED"
    assert told["causes"][0]["kind"] == "starved pool"
    assert told["causes"][0]["evidence"][0] == "nothing was finished for 5 min"
    assert told["unknown"] == list(REPORT.unknown)
    assert told["tookMs"] == 812
