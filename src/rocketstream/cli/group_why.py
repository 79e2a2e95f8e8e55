"""``rocketstream group why``: how a group does, why it is behind, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from rocketstream.cli.declare import Argument, Commands, Option
from rocketstream.cli.layout import fold
from rocketstream.cli.options import DEFAULT_NAMESRV, Json, Namesrv
from rocketstream.cli.output import as_json, print_json, print_line, room, shown
from rocketstream.cli.start import parse_span

if TYPE_CHECKING:
    from rocketstream.admin.state import Cause, WhyReport

WIDTH_MAX = 100
"""Prose is not drawn wider than this, however wide the terminal."""


def add_to(commands: Commands) -> None:
    """Add the command to ``rocketstream group``."""
    commands.add(why, epilog="Example: `rocketstream group why billing`")


def why(
    group: Annotated[str, Argument(metavar="GROUP", help="The consumer group.")],
    watch_for: Annotated[
        str | None,
        Option(
            "--watch-for",
            metavar="SPAN",
            help="Watch the group first, for 30s or 4m, say: then also whether it catches up.",
        ),
    ] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    as_json_: Json = False,
) -> None:
    """Say how a group does and why it is behind, with evidence and what to do.

    Asks brokers and the group's members twice, a second apart; changes nothing. The first line is
    the verdict; causes follow, the most telling first.
    """
    from rocketstream.admin import Admin

    watch_ms = 0 if watch_for is None else parse_span(watch_for)
    with Admin(namesrv) as admin:
        window = admin.groups.watch(group, watch_ms / 1_000) if watch_ms else ()
        report = admin.groups.why(group, window=window)
    if as_json_:
        print_json(report_json(report))
        return
    print_why(report)


def print_why(report: WhyReport) -> None:
    """Print a report as text that fits the terminal, 80 columns if it is narrower than that."""
    width = min(room() or WIDTH_MAX, WIDTH_MAX)
    _say(f"{report.verdict.verdict}: {report.verdict.sentence}", width)
    for number, cause in enumerate(report.causes, 1):
        print_line("")
        _say(f"{number}. {_heading(cause)}", width, "   ")
        for line in cause.evidence:
            _say(f"   - {line}", width, "     ")
        if cause.stack:
            for line in cause.stack.splitlines():
                print_line(f"     {line}")
        if cause.remedy:
            _say(f"   do: {cause.remedy}", width, "       ")
    if not report.causes:
        print_line("")
        print_line("No cause was found.")
        if report.verdict.verdict == "UNKNOWN":
            # One look cannot tell a message that is pinned from the end of a backlog.
            _say(
                f"Watching tells more: rocketstream group why {report.group} --watch-for 1m", width
            )
    if report.unknown:
        print_line("")
        print_line("Not known:")
        for line in report.unknown:
            _say(f"   - {line}", width, "     ")


def _heading(cause: Cause) -> str:
    return f"{cause.kind.value[0].upper()}{cause.kind.value[1:]}: {cause.sentence}"


def _say(text: str, width: int, indent: str = "") -> None:
    """Print prose folded between words; a name is never cut."""
    first, *rest = fold(shown(text), width - len(indent))
    print_line(first)
    for line in rest:
        print_line(indent + line)


def report_json(report: WhyReport) -> dict[str, object]:
    """Return a report as ``--json`` prints it."""
    told = as_json(report)
    told["verdict"] = as_json(report.verdict)
    told["causes"] = [as_json(cause) for cause in report.causes]
    del told["pinned"]  # they are among the causes
    return told
