"""The screen of ``top``: keys in, the view chosen by them drawn again after every sweep.

Law: asks no broker. The collector has the figures, ``views`` decides which are shown. Nothing is
logged to the terminal while the screen is drawn.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import ClassVar, Final

from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.coordinate import Coordinate
from textual.message import Message
from textual.widgets import DataTable, Input, Static

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.admin import Admin
from rocketstream.admin.core.words import moment, span
from rocketstream.admin.state import WhyReport, counted
from rocketstream.cli import signals
from rocketstream.cli.failure import describe, one_line
from rocketstream.cli.tables import GAP, shown
from rocketstream.cli.top.views import (
    BROKERS,
    GROUPS,
    TOPICS,
    Fitted,
    Row,
    View,
    ViewData,
    arranged,
    fit,
    members_of,
    queues_of,
    why_of,
)
from rocketstream.errors import RocketMQError
from rocketstream.watch import Collector, Update, kept_past

VIEWS: Final = {view.title: view for view in (GROUPS, TOPICS, BROKERS)}
COMMANDS: Final = {
    "g": "groups", "group": "groups", "groups": "groups",
    "t": "topics", "topic": "topics", "topics": "topics",
    "b": "brokers", "broker": "brokers", "brokers": "brokers",
    "q": "quit", "quit": "quit", "q!": "quit", "h": "help", "help": "help",
}  # fmt: skip
HELP: Final = (
    ("enter", "open the row: a group's queues, a topic's groups, what a broker tells"),
    ("esc", "back; ends a filter first"),
    (":", "another view: groups, topics, brokers (g, t, b), q to quit"),
    ("/", "only rows with this text, a verdict too; empty shows all"),
    ("s", "sort by the next column; S turns the order round"),
    ("1 2 3", "in a group: its queues, its members, why it is behind"),
    ("a", "also retry, dead-letter and system topics"),
    ("r", "look at the cluster now"),
    ("up down j k", "move; g and G first and last, ctrl-f and ctrl-b by pages"),
    ("? h", "this help; any key ends it"),
    ("q", "quit"),
)
DEPTH_MAX: Final = 16
"""Views one can go back through."""


@dataclass(slots=True)
class Place:
    """Where the user is: a view, and how it is filtered and sorted."""

    view: View
    wanted: str = ""
    column: int | None = None
    backwards: bool = False
    row: str | None = None


@dataclass(slots=True)
class _Drawn:
    """The content of the table, so that only differences are redrawn."""

    shape: object = None
    lines: list[tuple[str, ...]] = field(default_factory=list)
    styles: list[tuple[str, ...]] = field(default_factory=list)


class Top(App[None]):
    """The terminal application.

    Args:
        watched: the collector, started by the caller.
        where: the name servers asked, as they are shown.
        view: shown first: ``groups``, ``topics`` or ``brokers``.
        wanted: the filter to begin with.
        why: finds out why a group is behind; may block for seconds, and runs on a thread.
    """

    ENABLE_COMMAND_PALETTE: ClassVar[bool] = False
    CSS: ClassVar[str] = """
    Screen { layout: vertical; }
    #head { height: auto; text-style: bold; }
    #alarm { height: auto; background: darkred; color: white; display: none; }
    #intro { height: auto; max-height: 12; display: none; }
    #table { height: 1fr; scrollbar-size-vertical: 1; }
    #help { height: 1fr; display: none; }
    #ask { height: 1; border: none; padding: 0; display: none; }
    #foot { height: 1; color: $text-muted; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("colon", "ask(':')"),
        ("slash", "ask('/')"),
        ("question_mark,h", "help"),
        ("escape", "leave"),
        ("s", "sort"),
        ("S", "turn"),
        ("a", "internal"),
        ("r", "look"),
        ("1", "queues"),
        ("2", "members"),
        ("3", "why"),
        ("j", "move(1)"),
        ("k", "move(-1)"),
        ("g", "move(-1000000)"),
        ("G", "move(1000000)"),
        ("ctrl+f", "page(1)"),
        ("ctrl+b", "page(-1)"),
        ("q", "quit"),
        Binding("ctrl+c", "quit", priority=True),  # also while a line is typed
    ]

    class Swept(Message):
        """A sweep is over."""

    class Told(Message):
        """A warning of the packages below."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def __init__(
        self,
        watched: Collector,
        where: str,
        *,
        view: str = "groups",
        wanted: str = "",
        why: Callable[[str], WhyReport] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__()
        self._find_why = why
        self._why: tuple[str, WhyReport | str | None] = ("", None)
        self._watched = watched
        self._where = where
        self._clock = clock
        self._places = [Place(VIEWS[view], wanted)]
        self._internal = False
        self._asking = ""
        self._drawn = _Drawn()
        self._rows: list[Row] = []
        self._said = ""
        self._is_shown = False
        self._leave: Callable[[], None] = lambda: None

    # --- life ---------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        """Return the parts of the screen, from top to bottom."""
        yield Static(id="head", markup=False)
        yield Static(id="alarm", markup=False)
        yield Static(id="intro", markup=False)
        table: DataTable[Text] = DataTable(id="table", cursor_type="row", cell_padding=0)
        yield table
        yield Static(id="help", markup=False)
        yield Input(id="ask", select_on_focus=False)
        yield Static(id="foot", markup=False)

    def on_mount(self) -> None:
        """Begin to follow the collector."""
        self._is_shown = True
        self._leave = self._watched.subscribe(lambda _: self.post_message(self.Swept()))
        self._table.focus()
        self.set_interval(1, self._draw_head)
        self._draw()

    def on_unmount(self) -> None:
        """Follow it no longer."""
        self._is_shown = False
        self._leave()

    def on_top_swept(self) -> None:
        """Draw the result of the sweep."""
        self._draw()

    class Explained(Message):
        """It was found out why a group is behind, or not."""

        def __init__(self, group: str, report: WhyReport | str) -> None:
            super().__init__()
            self.group = group
            self.report = report

    def on_top_explained(self, event: Explained) -> None:
        """Show why."""
        if self._why[0] == event.group:
            self._why = (event.group, event.report)
            self._draw()

    def on_top_told(self, event: Told) -> None:
        """Show the warning."""
        self.say(event.text)

    def on_resize(self, event: events.Resize) -> None:
        """Fit the table to the new width."""
        self.call_after_refresh(self._draw)

    def say(self, text: str) -> None:
        """Show a sentence in the last line until the next key."""
        self._said = text
        self._draw_foot()

    # --- keys ---------------------------------------------------------------------------------

    def action_ask(self, kind: str) -> None:
        """Ask for a view (``:``) or a filter (``/``)."""
        self._close_help()
        self._asking = kind
        ask = self.query_one("#ask", Input)
        ask.value = kind if kind == ":" else f"/{self._place.wanted}"
        ask.cursor_position = len(ask.value)
        ask.display = True
        self.query_one("#foot").display = False
        ask.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while it is typed; deleting the sign before it ends asking."""
        if not self._asking:
            return
        if not event.value.startswith(self._asking):
            self._end_asking()
        elif self._asking == "/":
            self._place.wanted = event.value[1:]
            self._draw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Carry out the requested action."""
        kind, text = self._asking, event.value[1:].strip()
        self._end_asking()
        if kind == ":" and text:
            self._command(text)

    def _command(self, text: str) -> None:
        command = COMMANDS.get(text.lower())
        if command is None:
            self.say(f"no view {shown(text)!r}; there are groups, topics, brokers")
        elif command == "quit":
            self.exit()
        elif command == "help":
            self.action_help()
        else:
            self._places = [Place(VIEWS[command])]
            self._draw()

    def _end_asking(self) -> None:
        self._asking = ""
        self.query_one("#ask").display = False
        self.query_one("#foot").display = True
        self._table.focus()

    def on_key(self, event: events.Key) -> None:
        """End the help by any key, and asking by escape; forget what was said."""
        if self._said:
            self._said = ""
            self._draw_foot()
        if self._asking:
            self._key_while_asking(event)
        elif self.query_one("#help").display and event.key not in ("q", "ctrl+q", "ctrl+c"):
            self._close_help()
            event.stop()
            event.prevent_default()

    def _key_while_asking(self, event: events.Key) -> None:
        """Take escape, and keys typed so fast that they came before the input had the focus."""
        ask = self.query_one("#ask", Input)
        if event.key == "escape":
            if self._asking == "/":
                self._place.wanted = ""
            self._end_asking()
            self._draw()
        elif event.key == "enter":
            self.on_input_submitted(Input.Submitted(ask, ask.value))
        elif event.character is not None and event.is_printable:
            ask.insert_text_at_cursor(event.character)
        else:
            return
        event.stop()
        event.prevent_default()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Open the row."""
        key = self._key_at(event.cursor_row)
        opened = None if key is None else self._place.view.opened(key)
        if opened is not None:
            self._place.row = key
            self._places = [*self._places, Place(opened)][-DEPTH_MAX:]
            self._draw()

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Remember the row, to stay on it when others move; the top one stays the top one."""
        self._place.row = event.row_key.value if event.cursor_row else None

    def action_leave(self) -> None:
        """End the filter, else go back to the view before."""
        if self._place.wanted:
            self._place.wanted = ""
        elif len(self._places) > 1:
            self._places.pop()
        self._draw()

    def action_help(self) -> None:
        """Show the keys."""
        lines = ["keys", "", *(f"  {keys:<12} {text}" for keys, text in HELP)]
        self.query_one("#help", Static).update(Text("\n".join(lines)))
        self.query_one("#help").display = True
        self._table.display = False

    def _close_help(self) -> None:
        self.query_one("#help").display = False
        self._table.display = True
        self._table.focus()

    def action_sort(self) -> None:
        """Sort by the next column that is shown; after the last one, in the view's own order."""
        chosen = self._fitted().chosen
        place = self._place
        later = [i for i in chosen if place.column is None or i > place.column]
        place.column = later[0] if later else None
        place.backwards = False
        self._draw()

    def action_turn(self) -> None:
        """Turn the order round."""
        self._place.backwards = not self._place.backwards
        self._draw()

    def action_internal(self) -> None:
        """Show RocketMQ's own topics, or hide them."""
        self._internal = not self._internal
        self._draw()

    def action_look(self) -> None:
        """Ask for a sweep; returns at once."""
        if self._place.view.asks:
            self.action_why()
            return
        self._watched.refresh()
        self.say("looking at the cluster now")

    def action_queues(self) -> None:
        """Show the queues of the group."""
        self._of_group(queues_of)

    def action_members(self) -> None:
        """Show the members of the group."""
        self._of_group(members_of)

    def action_why(self) -> None:
        """Find out why the group is behind: brokers and members are asked."""
        group, find = self._place.view.group, self._find_why
        if find is None or group is None:
            return
        self._why = (group, None)

        def ask() -> None:
            try:
                report: WhyReport | str = find(group)
            except (RocketMQError, OSError) as error:
                report = describe(error)
            self.post_message(self.Explained(group, report))

        self.run_worker(ask, thread=True, group="why", exclusive=True)
        self._of_group(why_of)

    def _of_group(self, kind: Callable[[str], View]) -> None:
        group = self._place.view.group
        if group is not None:
            self._places[-1] = Place(kind(group))
            self._draw()

    def action_move(self, by: int) -> None:
        """Move the cursor."""
        last = max(self._table.row_count - 1, 0)
        self._table.move_cursor(row=min(max(self._table.cursor_row + by, 0), last))

    def action_page(self, by: int) -> None:
        """Move the cursor over the rows of the table."""
        self.action_move(by * max(self._table.size.height - 1, 1))

    # --- drawing ------------------------------------------------------------------------------

    @property
    def _place(self) -> Place:
        return self._places[-1]

    @property
    def _table(self) -> DataTable[Text]:
        return self.query_one("#table", DataTable)

    @property
    def _room(self) -> int:
        return max(self.size.width - 1, 10)  # the last one is the scroll bar's

    def _key_at(self, row: int) -> str | None:
        return self._rows[row].key if 0 <= row < len(self._rows) else None

    def _seen(self) -> ViewData:
        return ViewData(
            self._watched.update(),
            self._watched.window,
            self._clock.now_ms(),
            self._internal,
            self._why[1],
        )

    def _fitted(self) -> Fitted:
        return fit(self._place.view.heads, self._rows, self._room)

    def _draw(self) -> None:
        if not self._is_shown:
            return
        place, seen = self._place, self._seen()
        self._rows = arranged(
            place.view, place.view.rows(seen), place.wanted, place.column, place.backwards
        )
        intro = self.query_one("#intro", Static)
        lines = place.view.intro(seen, self._room)
        intro.update(Text("\n".join(shown(line) for line in lines)))
        intro.display = bool(lines)
        self._draw_table(self._fitted())
        self._draw_head()
        self._draw_foot()

    def _draw_table(self, fitted: Fitted) -> None:
        place, table = self._place, self._table
        titles = [self._title(i) for i in fitted.chosen]
        shape = (place.view, titles, fitted.sizes, fitted.heights, [row.key for row in self._rows])
        styles = [tuple(row.styles[i] for i in fitted.chosen) for row in self._rows]
        if shape == self._drawn.shape:
            self._redraw_cells(fitted.lines, styles)
            return
        self._drawn = _Drawn(shape, list(fitted.lines), styles)
        wanted = place.row
        table.clear(columns=True)
        last = len(titles) - 1
        for n, (title, size, i) in enumerate(zip(titles, fitted.sizes, fitted.chosen, strict=True)):
            number = place.view.heads[i].number
            text = title.rjust(size) if number else title.ljust(size)
            table.add_column(Text(text), width=size + (0 if n == last else GAP), key=str(n))
        for row, lines, height, style in zip(
            self._rows, fitted.lines, fitted.heights, styles, strict=True
        ):
            cells = [Text(line, style=one) for line, one in zip(lines, style, strict=True)]
            table.add_row(*cells, height=height, key=row.key)
        keys = [row.key for row in self._rows]
        if wanted in keys:
            table.move_cursor(row=keys.index(wanted), scroll=True)

    def _redraw_cells(
        self, lines: Sequence[tuple[str, ...]], styles: Sequence[tuple[str, ...]]
    ) -> None:
        drawn = self._drawn
        for r, (texts, looks) in enumerate(zip(lines, styles, strict=True)):
            if texts == drawn.lines[r] and looks == drawn.styles[r]:
                continue
            for c, (text, look) in enumerate(zip(texts, looks, strict=True)):
                if (text, look) != (drawn.lines[r][c], drawn.styles[r][c]):
                    self._table.update_cell_at(Coordinate(r, c), Text(text, style=look))
        drawn.lines, drawn.styles = list(lines), list(styles)

    def _title(self, column: int) -> str:
        return self._place.view.heads[column].title

    def _draw_head(self) -> None:
        alarms = self.query("#alarm").results(Static)
        if (alarm := next(alarms, None)) is None:
            return  # the timer's last tick may come while the screen is being taken down
        seen = self._seen()
        place, update = self._place, seen.update
        outage = update.outage
        alarm.display = outage is not None or bool(update.down)
        if outage is not None:
            text = f"NOT ANSWERING {_since(outage.since_ms, seen.now_ms)}: {shown(outage.error)}"
            if update.state is not None:
                text += f"; below is what was found at {moment(update.state.taken_ms)}"
            alarm.update(Text(text))
        elif update.down:
            each = update.down[0]
            text = f"NOT ANSWERING: broker {each.broker_name} "
            text += f"{_since(each.since_ms, seen.now_ms)}: {shown(each.error)}"
            if len(update.down) > 1:
                text += f"; and {len(update.down) - 1} more"
            alarm.update(Text(text))
        lines = [f"{place.view.title} of {self._where}"]
        if place.wanted:
            lines[0] += f"  filter: {place.wanted}"
        if place.column is not None:
            order = ", turned round" if place.backwards else ""
            lines[0] += f"  by {place.view.heads[place.column].title}{order}"
        summary = _summary(update)
        if summary or outage is None:
            lines.append(summary or f"looking at {self._where} …")
        self.query_one("#head", Static).update(Text("\n".join(shown(line) for line in lines)))

    def _draw_foot(self) -> None:
        foot = self.query_one("#foot", Static)
        if self._said:
            foot.update(Text(self._said, style="bold"))
            return
        cost, update = self._watched.cost(), self._watched.update()
        parts = ["? help  : view  / filter  s sort  q quit"]
        if update.state is not None:
            parts.append(f"sweep {cost.sweep_ms} ms every {cost.interval_s:.0f} s")
        if cost.requests_per_s is not None:
            parts.append(f"{cost.requests_per_s:.1f} requests/s")
        text = parts[0]
        for part in parts[1:]:
            if len(text) + 3 + len(part) <= self._room:
                text += f" | {part}"
        foot.update(Text(text))


def _since(at_ms: int, now_ms: int) -> str:
    return f"since {moment(at_ms)} ({span(now_ms - at_ms)})"


def _summary(update: Update) -> str:
    """Return how many groups have which verdict, the worst first."""
    if update.state is None:
        return ""
    counts = counted(update.verdicts.values())
    told = [f"{number} {verdict.value}" for verdict, number in counts.items()]
    groups = len(update.state.groups)
    return f"{groups} group{'' if groups == 1 else 's'}" + (": " if told else "") + ", ".join(told)


try:
    import termios
except ImportError:  # Windows: a console's modes end with the process
    termios = None  # type: ignore[assignment]

_SCREEN_OFF = (
    "\x1b[?2004l\x1b[?7h\x1b[?2048l"  # pasted text marked, lines not wrapped, sizes reported
    "\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1004l"  # mouse and focus reported
    "\x1b[<u\x1b[?1049l\x1b[?25h"  # keys in full, the other screen, no cursor
)
"""Ends every mode that Textual's drivers switch on."""


@contextmanager
def given_back() -> Iterator[None]:
    """Give the terminal back when the context ends by an error, the process by a second Ctrl-C."""
    if termios is None:
        yield
        return
    place = sys.__stdin__.fileno() if sys.__stdin__ is not None else 0
    out = sys.__stdout__.fileno() if sys.__stdout__ is not None else 1
    before = termios.tcgetattr(place)

    def give_back() -> None:
        with suppress(OSError, termios.error):
            os.write(out, _SCREEN_OFF.encode())
            termios.tcsetattr(place, termios.TCSANOW, before)

    signals.on_forced_exit(give_back)
    try:
        yield
    except BaseException:  # an interrupt within the screen's own work leaves it as it is
        give_back()
        raise
    finally:
        signals.on_forced_exit(None)


def run(namesrv: str, interval_s: float, wanted: str, view: str) -> None:
    """Show the cluster until the user quits; blocks.

    The terminal says how large it is, also after it was resized: ``COLUMNS`` and ``LINES``, which
    Textual would believe first, are a size of the past where a shell or a library exported them.
    """
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)
    collector = Collector(
        lambda: Admin(namesrv), interval_s=interval_s, past=lambda: kept_past(namesrv)
    )

    def why(group: str) -> WhyReport:
        return collector.look(group).report

    app = Top(collector, namesrv, view=view, wanted=wanted, why=why)
    with _log_in_last_line(app), given_back(), collector:
        draw(app)


def draw(app: Top) -> None:
    """Run the screen until the user quits or a signal ends it; blocks.

    A signal asks the screen to end in its own order. An exception within the event loop's work
    would leave tasks of the screen half done, and each of them would write a traceback.
    """
    asked: list[int] = []
    loops: list[asyncio.AbstractEventLoop] = []

    def end(number: int) -> None:
        asked.append(number)
        for loop in loops:
            with suppress(RuntimeError):  # it is closed: the screen has ended
                loop.call_soon_threadsafe(app.exit)

    async def drawn() -> None:
        loops.append(asyncio.get_running_loop())
        if not asked:
            await app.run_async()

    with signals.on_signal(end):
        asyncio.run(drawn())
    if asked:
        raise KeyboardInterrupt if asked[0] == signal.SIGINT else signals.TerminatedError


@contextmanager
def _log_in_last_line(app: Top) -> Iterator[None]:
    """Show warnings in the screen's last line: written to stderr they would tear it."""
    log = logging.getLogger("rocketstream")
    before = list(log.handlers)
    log.handlers = [_LastLine(app)]
    try:
        yield
    finally:
        log.handlers = before


class _LastLine(logging.Handler):
    def __init__(self, app: Top) -> None:
        super().__init__(logging.WARNING)
        self._app = app

    def emit(self, record: logging.LogRecord) -> None:
        self._app.post_message(Top.Told(shown(one_line(record.getMessage()))))
