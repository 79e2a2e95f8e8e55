"""Tables, fields, sentences and JSON on standard output, with ``--watch`` again and again.

``tables`` decides which columns fit.
"""

from __future__ import annotations

import dataclasses
import io
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TextIO

from click.exceptions import Exit

from rocketstream._util.clock import SYSTEM_CLOCK
from rocketstream.admin.core.words import moment, plural
from rocketstream.cli.failure import describe, say
from rocketstream.cli.tables import Cell, Column, fold, lay, shown, shown_json, width
from rocketstream.errors import ConfigurationError, RocketMQError

_ROOM_DEFAULT: Final = 80
_LABEL_MAX: Final = 40
_STYLES: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}


class _Look:
    """The output settings of this run of the command; ``reset`` when it begins."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget the options of an earlier command."""
        self.wide = False


look: Final = _Look()
"""``look.wide``: tables take their full width on every terminal; ``--wide`` sets it."""


def room() -> int | None:
    """Return the cells of a line; None where lines may be as long as they take."""
    if look.wide or not sys.stdout.isatty():
        return None
    told = os.environ.get("COLUMNS", "")
    if told.isdecimal() and int(told) > 0:
        return int(told)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or _ROOM_DEFAULT
    except (OSError, ValueError):
        return _ROOM_DEFAULT


def coloured() -> bool:
    """Return whether to use colours: on a terminal, unless NO_COLOR or TERM say no."""
    return (
        sys.stdout.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM", "") != "dumb"
    )


def let_all_through() -> None:
    """Let stdout and stderr spell out characters their encoding lacks (LANG=C) instead of
    failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def render(
    rows: Iterable[Any], columns: Sequence[Column], as_json: bool, *, footer: str | None = None
) -> None:
    """Print rows as JSON, or as a table with a line below it.

    Args:
        rows: values of the model, or tables ready for JSON.
        columns: how a row's cells are made.
    """
    if as_json:
        print_json(list(rows))
    else:
        cells = [[column.cell(row) for column in columns] for row in rows]
        print_table(columns, cells, footer=footer)


def print_table(
    columns: Sequence[Column], rows: Iterable[Sequence[str]], *, footer: str | None = None
) -> None:
    """Print a table that fits the terminal, and a line below it.

    Names and numbers are never cut: columns of little importance are left out, and a line says
    which and how to see them; where the rest does not fit either, each row is stacked into lines.
    """
    space = room()
    laid = lay(columns, list(rows), space, rule="─" if _can_print("─") else "-")
    colours = coloured()
    lines = ["".join(_painted(cell, colours) for cell in line).rstrip() for line in laid.lines]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    if footer:
        print_line(footer)
    if laid.left_out:
        titles = ", ".join(laid.left_out)
        print_prose(f"(not shown at this width: {titles}; --wide or --json shows all)")


def _painted(cell: Cell, colours: bool) -> str:
    if not colours or cell.colour is None:
        return cell.text
    return f"\x1b[{_STYLES[cell.colour]}m{cell.text}\x1b[0m"


def print_fields(pairs: Iterable[tuple[str, str]]) -> None:
    """Print ``label  value`` lines, the values below each other; long text folds under itself."""
    cells = [(shown(label), shown(value)) for label, value in pairs]
    indent = min(max((width(label) for label, _ in cells), default=0), _LABEL_MAX) + 2
    space = room()
    for label, value in cells:
        head = label + " " * max(2, indent - width(label))
        lines = [value] if space is None else fold(value, max(space - indent, 1))
        for at, line in enumerate(lines):
            print_line((head if at == 0 else " " * indent) + line)


def print_prose(text: str) -> None:
    """Print sentences, folded between words where a terminal is narrower."""
    space = room()
    for line in [text] if space is None else fold(text, space):
        print_line(line)


def print_line(text: str) -> None:
    """Print one line (or several) to stdout at once; control characters are spelled out."""
    sys.stdout.write(shown(text, lines=True) + "\n")
    sys.stdout.flush()


def print_json(value: Any) -> None:
    """Print a value of the model, or one ready for JSON, indented."""
    print_line(_dumped(json_of(value), indent=2))


def json_line(value: Any) -> str:
    """Return it as JSON on one line."""
    return _dumped(json_of(value), separators=(",", ":"))


def _dumped(value: Any, **form: Any) -> str:
    import json  # a table needs none

    text = shown_json(json.dumps(value, ensure_ascii=False, **form))
    if text.isascii() or _can_print(text):
        return text
    return json.dumps(value, ensure_ascii=True, **form)


def _can_print(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


_TOLD: Final = {
    "ChangeDone": "operation=plan.operation name=plan.name steps",
    "ChangePlan": "operation name losses warnings problems steps",
    "GroupState": "group members=member_count message_model topics lag queues_unknown time_lag_ms "
    "expired retrying delayed delayed_is_exact dead_letters errors",
    "LetterCauses": "group letters kept is_complete causes",
    "QueueState": "topic broker_name queue_id broker_offset=max_offset "
    "consumer_offset=committed_offset lag last_consumed_ms client_id kind min_offset expired "
    "matching matching_is_exact error",
    "ResetDone": "group=plan.group undo=undo_path queues=rows left_alone=left",
    "ResetDoneRow": "*row stored_offset moved note",
    "ResetPlan": "group topic target=target.describe how members new_group repeated skipped "
    "expired problems warnings queues=rows",
    "ResetRow": "topic broker_name queue_id min_offset max_offset from_offset to_offset repeated "
    "skipped expired clamped by",
    "RunningQueueRow": "topic broker_name queue_id commit_offset cached cached_mib locked dropped "
    "last_pull_ms last_consume_ms oldest newest",
    "SearchPage": "messages examined ended_by reached_timestamp=reached_ms resume problems",
    "Step": "step=kind where name topic=queue.topic queue_id=queue.queue_id before after",
    "StepDone": "*step done note",
    "TraceTimeline": "topic msg_id store_timestamp=store_ms store_host sends tries ends problems",
    "WhyReport": "group verdict causes unknown took_ms",
}
"""The names in the JSON of values that are not told field by field; ``*`` is all of a part."""
_UNKNOWN_ORIGIN: Final = "(origin not known)"


def json_of(value: Any) -> Any:
    """Return a value of the model as JSON, with names in camelCase as RocketMQ's own JSON has
    them."""
    if hasattr(value, "as_json"):
        return value.as_json()
    if isinstance(value, Mapping):
        return {_UNKNOWN_ORIGIN if k is None else k: json_of(each) for k, each in value.items()}
    if dataclasses.is_dataclass(value):
        told = _TOLD.get(type(value).__name__)
        names = told.split() if told else [field.name for field in dataclasses.fields(value)]
        row: dict[str, Any] = {}
        for name in names:
            if name.startswith("*"):
                row |= json_of(getattr(value, name[1:]))
            else:
                name, _, path = name.partition("=")
                row[_camel(name)] = json_of(_at(value, path or name))
        return row
    return [json_of(each) for each in value] if isinstance(value, list | tuple) else value


def _at(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = None if value is None else getattr(value, name)
    return value() if callable(value) else value


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


_COLOUR: Final = re.compile(r"\x1b\[\d*m")
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_BEGIN, _END = "\x1b[?2026h\x1b[H", "\x1b[J\x1b[?2026l"
"""A frame: terminals that know 2026 show it at once; the others overwrite, never clear first."""


def repeat(
    run: Callable[[], None],
    seconds: float,
    pause: Callable[[float], object] | None = None,
) -> None:
    """Run a command again and again until Ctrl-C, which does not count as a failure here.

    On a terminal each round is drawn over the one before; elsewhere rounds follow each other. The
    first round fails as the command does; later ones show their error and go on.
    """
    pause = pause or threading.Event().wait
    out = sys.stdout
    text = _round(run, out)
    last = text
    try:
        with _screen(out) as is_screen:
            while True:
                if is_screen:
                    out.write(_frame(text, seconds, os.get_terminal_size(out.fileno())))
                else:
                    out.write(text)
                out.flush()
                pause(seconds)
                try:
                    last = text = _round(run, out)
                except ConfigurationError:
                    raise
                except (RocketMQError, OSError) as error:
                    if isinstance(error, BrokenPipeError):
                        raise
                    complaint = f"error: {shown(describe(error))}\n"
                    if not is_screen:
                        say(complaint.rstrip())
                    text = complaint + last if is_screen else ""
    except KeyboardInterrupt as interrupt:
        if type(interrupt) is not KeyboardInterrupt:  # SIGTERM
            raise
        if out.isatty():
            out.write(last)
            out.flush()


def _round(run: Callable[[], None], out: TextIO) -> str:
    frame = _Frame(out)
    sys.stdout = frame
    try:
        run()
    except Exit:
        pass  # a bound was exceeded: shown, and watched on
    finally:
        sys.stdout = out
    return frame.getvalue()


class _Frame(io.StringIO):
    """Takes one round's output, and answers for the terminal behind it."""

    def __init__(self, out: TextIO) -> None:
        super().__init__()
        self._out = out

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._out.encoding

    def isatty(self) -> bool:
        return self._out.isatty()

    def fileno(self) -> int:
        return self._out.fileno()


@contextmanager
def _screen(out: TextIO) -> Iterator[bool]:
    """The terminal's second screen for the time of watching; no screen where there is none."""
    if not out.isatty() or os.environ.get("TERM") == "dumb":
        yield False
        return
    out.write(_ENTER)
    try:
        yield True
    finally:
        out.write(_LEAVE)
        out.flush()


def _frame(text: str, seconds: float, size: os.terminal_size) -> str:
    head = f"{moment(SYSTEM_CLOCK.now_ms())[11:]}, every {seconds:g} s; Ctrl-C ends"
    lines = text.splitlines()
    fitting, space = 0, size.lines - 2
    for line in lines:
        space -= max(1, -(-width(_COLOUR.sub("", line)) // size.columns))
        fitting += space >= 0
    if fitting < len(lines):
        lines = [*lines[: max(fitting - 1, 0)], _too_many(len(lines) - max(fitting - 1, 0))]
    return _BEGIN + "".join(f"{line}\x1b[K\r\n" for line in [head[: size.columns], *lines]) + _END


def _too_many(count: int) -> str:
    return f"({plural(count, 'more line')} below)"
