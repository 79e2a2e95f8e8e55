"""``rocketstream top``: the screen driven by Textual's pilot, over states of made-up clusters."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import re
import signal
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, cast

import pytest
from textual._wait import wait_for_idle
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from rocketstream.admin.rows import MemberRow
from rocketstream.admin.state import (
    BrokerState,
    Cause,
    CauseKind,
    ClusterState,
    GroupState,
    GroupVerdict,
    QueueKind,
    TopicQueue,
    TopicState,
    Verdict,
    WhyReport,
)
from rocketstream.cli.signals import TerminatedError
from rocketstream.cli.tables import Column
from rocketstream.cli.top.screen import Top, draw
from rocketstream.cli.top.views import (
    BROKERS,
    GROUPS,
    Row,
    ViewData,
    bars,
    fit,
    queues_of,
    rank,
    rank_text,
)
from rocketstream.errors import ConnectError
from rocketstream.testing.clock import START_MS, ManualClock
from rocketstream.watch import BrokerDown, Cost, Outage, Update
from tests.kits.states import group, queue

LONG = "a-consumer-group-whose-name-is-much-longer-than-any-column-of-a-narrow-terminal"


class Watched:
    """What a collector would tell."""

    def __init__(self, update: Update) -> None:
        self.now = update
        self.asked = 0
        self.callbacks: list[Callable[[Update], object]] = []

    def update(self) -> Update:
        return self.now

    def window(self, group: str) -> list[GroupState]:
        state = self.now.state
        return [state.groups[group]] if state is not None and group in state.groups else []

    def cost(self) -> Cost:
        return Cost(3.5, 21, 17, 5.0, 9, 0)

    def refresh(self, timeout_s: float | None = None) -> bool:
        self.asked += 1
        return False

    def subscribe(self, callback: Callable[[Update], object]) -> Callable[[], None]:
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback)

    def sweep(self, update: Update) -> None:
        self.now = update
        for callback in self.callbacks:
            callback(update)


def behind(name: str, lag: int, at_ms: int = START_MS) -> GroupState:
    return dataclasses.replace(
        group(
            name,
            at_ms,
            queue(end=10_000_000, committed=10_000_000 - lag, next_stored_ms=at_ms - 754_000),
            queue(f"%RETRY%{name}", end=9, committed=6, kind=QueueKind.RETRY),
            queue(f"%DLQ%{name}", end=4, committed=None, kind=QueueKind.DEAD_LETTER),
        ),
        members=(MemberRow(f"10.0.0.9@{name}", "10.0.0.9:5000", "JAVA", 409),),
    )


def update_of(
    *found: tuple[GroupState, Verdict], outage: Outage | None = None, at_ms: int = START_MS
) -> Update:
    broker = BrokerState("east", "broker-a", at_ms, {0: "10.0.0.1:10911"}, "V4_9_7", {"a": "b"})
    orders = TopicState(
        "orders",
        "normal",
        at_ms,
        "RW",
        (TopicQueue("orders", "broker-a", 0, 0, 10_000_000, at_ms),),
    )
    orders = dataclasses.replace(orders, consumers=tuple(g.group for g, _ in found))
    hidden = TopicState(
        "%RETRY%x", "retry", at_ms, "RW", (TopicQueue("%RETRY%x", "broker-a", 0, 0, 5, at_ms),)
    )
    state = ClusterState(
        at_ms,
        20,
        17,
        (broker,),
        {"orders": orders, "%RETRY%x": hidden},
        {g.group: g for g, _ in found},
    )
    verdicts = {
        g.group: GroupVerdict(
            g.group, v, f"sentence about {g.group}", START_MS - 60_000, None, 12.5, 340.0
        )
        for g, v in found
    }
    return Update(state, verdicts, outage=outage)


THREE = update_of(
    (behind("audit", 0), Verdict.OK),
    (behind("billing", 1_234_567), Verdict.STALLED),
    (behind("crm", 9_876), Verdict.FALLING_BEHIND),
)


@pytest.fixture(autouse=True)
def pauses_until_nothing_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Textual takes a process for idle that uses no processor: also one that gets none."""

    async def wait(*args: float) -> None:
        await wait_for_idle(*args)
        due: collections.deque[object] = cast("Any", asyncio.get_running_loop())._ready
        quiet = 0
        while quiet < 3:
            await asyncio.sleep(0)
            quiet = 0 if due else quiet + 1

    monkeypatch.setattr("textual.pilot.wait_for_idle", wait)


def drive(
    watched: Watched,
    play: Callable[[Pilot[None], Top], Awaitable[None]],
    size: tuple[int, int] = (80, 24),
    wanted: str = "",
    why: Callable[[str], WhyReport] | None = None,
) -> Top:
    """Run the screen, let ``play`` press keys, and return it after its end."""
    app = Top(cast(Any, watched), "127.0.0.1:9876", wanted=wanted, why=why, clock=ManualClock())

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await play(pilot, app)

    asyncio.run(run())
    return app


def keys(app: Top) -> list[str]:
    """Return the keys of the rows from top to bottom."""
    table = app.query_one(DataTable)
    return [row.key.value or "" for row in table.ordered_rows]


def lines(app: Top) -> list[str]:
    """Return what the screen shows, line by line."""
    return [
        "".join(segment.text for segment in line).rstrip()
        for line in app.screen._compositor.render_strips()
    ]


def text_of(app: Top, name: str) -> str:
    return str(app.query_one(f"#{name}", Static).render())


def test_groups_that_need_somebody_come_first_and_no_number_is_cut_at_80_columns() -> None:
    async def play(pilot: Pilot[None], app: Top) -> None:
        assert keys(app) == ["billing", "crm", "audit"]
        shown = lines(app)
        row = next(line for line in shown if line.startswith("billing"))
        for word in ("STALLED", "1 min", "1,234,570", "12 min 34 s", "12", "340", "3", "4"):
            assert f" {word} " in f"{row} ", (word, row)
        assert all(len(line) <= 80 for line in shown)
        assert "3 groups: 1 STALLED, 1 FALLING BEHIND, 1 OK" in "\n".join(shown)

    drive(Watched(THREE), play)


@pytest.mark.parametrize("width", [40, 66, 80, 132])
def test_columns_give_way_and_names_fold_at_any_width(width: int) -> None:
    long = update_of((behind(LONG, 1_234_567), Verdict.FALLING_BEHIND))

    async def play(pilot: Pilot[None], app: Top) -> None:
        shown = lines(app)
        assert "1,234,570" in "\n".join(shown)
        start = next(n for n, line in enumerate(shown) if line.startswith("a-consumer"))
        name = "".join(line.split()[0] for line in shown[start:] if re.match(r"[a-z-]+", line))
        assert name == LONG
        assert all(len(line) <= width for line in shown)

    drive(Watched(long), play, (width, 24))


def test_enter_opens_a_group_and_escape_goes_back_to_the_same_row() -> None:
    async def play(pilot: Pilot[None], app: Top) -> None:
        await pilot.press("j", "enter")
        assert "queues of group crm" in text_of(app, "head")
        assert "FALLING BEHIND: sentence about crm" in text_of(app, "intro")
        assert [key.split("\0")[0] for key in keys(app)] == ["orders", "%RETRY%crm", "%DLQ%crm"]
        await pilot.press("2")
        assert keys(app) == ["10.0.0.9@crm"]
        await pilot.press("1", "escape")
        assert keys(app)[app.query_one(DataTable).cursor_row] == "crm"

    drive(Watched(THREE), play)


def test_3_finds_out_why_on_a_thread_and_says_so_where_it_cannot() -> None:
    answers: list[WhyReport | Exception] = [
        ConnectError("broker-a does not answer"),
        WhyReport(
            "crm",
            GroupVerdict("crm", Verdict.PINNED, "One message holds queue 3."),
            (
                Cause(
                    CauseKind.PINNED_MESSAGE,
                    "Message 7F01 with key order-9 never leaves 10.0.0.9@crm.",
                    ("it has been there for 12 min",),
                    "restart the member",
                    "at Listener.consume(Listener.java:42)",
                ),
            ),
            ("member b did not say",),
        ),
    ]
    asked: list[str] = []

    def why(group: str) -> WhyReport:
        asked.append(group)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def play(pilot: Pilot[None], app: Top) -> None:
        await pilot.press("3")
        assert asked == [], "no group is open"
        await pilot.press("j", "enter", "3")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert "could not be asked: broker-a does not answer" in text_of(app, "intro")
        await pilot.press("r")
        await app.workers.wait_for_complete()
        await pilot.pause()
        shown = " ".join("\n".join(lines(app)).split())
        assert "PINNED: One message holds queue 3." in shown
        assert "pinned message" in shown
        for word in ("7F01", "order-9", "12 min", "Do: restart", "Listener.java:42", "did not say"):
            assert word in shown
        assert asked == ["crm", "crm"]

    drive(Watched(THREE), play, why=why)


def test_a_colon_changes_the_view_and_says_what_there_is() -> None:
    async def play(pilot: Pilot[None], app: Top) -> None:
        await pilot.press("colon", *"topics", "enter")
        assert keys(app) == ["orders"]
        await pilot.press("a")
        assert keys(app) == ["orders", "%RETRY%x"]
        await pilot.press("enter")
        assert "groups of topic orders" in text_of(app, "head")
        assert set(keys(app)) == {"audit", "billing", "crm"}
        await pilot.press("colon", "b", "enter")
        assert keys(app) == ["broker-a"]
        await pilot.press("enter")
        assert keys(app) == ["a"]
        await pilot.press("colon", *"pods", "enter")
        assert "groups, topics, brokers" in text_of(app, "foot")
        await pilot.press("colon", "q", "enter")

    assert drive(Watched(THREE), play).return_code == 0


def test_a_filter_narrows_as_it_is_typed_and_escape_ends_it() -> None:
    async def play(pilot: Pilot[None], app: Top) -> None:
        await pilot.press("slash", *"BIL")
        assert keys(app) == ["billing"]
        await pilot.press("enter")
        assert "filter: BIL" in text_of(app, "head")
        await pilot.press("escape")
        assert len(keys(app)) == 3
        await pilot.press("slash", *"falling", "enter")
        assert keys(app) == ["crm"]
        await pilot.press("slash", "escape")
        assert len(keys(app)) == 3

    drive(Watched(THREE), play)


def test_a_tick_while_the_screen_is_taken_down_draws_nothing() -> None:
    """A busy machine's timer came between the widgets' end and its own: a traceback at the end."""

    async def play(pilot: Pilot[None], app: Top) -> None:
        await app.query("Static").remove()
        app._draw_head()

    drive(Watched(THREE), play)


def test_s_sorts_by_one_column_after_the_other_and_S_turns_round() -> None:
    async def play(pilot: Pilot[None], app: Top) -> None:
        await pilot.press("s")
        assert keys(app) == ["audit", "billing", "crm"]
        await pilot.press("S")
        assert keys(app) == ["crm", "billing", "audit"]
        await pilot.press("s", "s", "s")
        assert "by LAG" in text_of(app, "head")
        assert keys(app) == ["billing", "crm", "audit"]

    drive(Watched(THREE), play)


def test_the_cursor_stays_on_its_group_when_others_move() -> None:
    async def play(pilot: Pilot[None], app: Top) -> None:
        await pilot.press("j")
        worse = update_of(
            (behind("crm", 5), Verdict.OK),
            (behind("new", 10), Verdict.PINNED),
            (behind("billing", 7), Verdict.STALLED),
        )
        watched.sweep(worse)
        await pilot.pause()
        assert keys(app) == ["new", "billing", "crm"]
        assert app.query_one(DataTable).cursor_row == 2

    watched = Watched(THREE)
    drive(watched, play)


def test_a_cursor_nobody_moved_stays_at_the_top() -> None:
    async def play(pilot: Pilot[None], app: Top) -> None:
        worse = update_of((behind("audit", 0), Verdict.OK), (behind("new", 5), Verdict.PINNED))
        watched.sweep(worse)
        await pilot.pause()
        watched.sweep(THREE)
        await pilot.pause()
        await pilot.press("enter")
        assert "group billing" in text_of(app, "head")

    watched = Watched(update_of((behind("audit", 0), Verdict.OK)))
    drive(watched, play)


def test_new_figures_appear_in_their_place() -> None:
    async def play(pilot: Pilot[None], app: Top) -> None:
        watched.sweep(update_of((behind("billing", 2_222_222), Verdict.PINNED)))
        await pilot.pause()
        watched.sweep(update_of((behind("billing", 3_333_333), Verdict.STOPPED)))
        await pilot.pause()
        row = next(line for line in lines(app) if line.startswith("billing"))
        assert "3,333,336" in row
        assert "STOPPED" in row

    watched = Watched(THREE)
    drive(watched, play)


def test_a_broker_that_is_down_is_said_above_everything() -> None:
    async def play(pilot: Pilot[None], app: Top) -> None:
        alarm = text_of(app, "alarm")
        assert "NOT ANSWERING: broker broker-b since" in alarm
        assert "no answer within 5000 ms; and 1 more" in alarm

    down = (
        BrokerDown("broker-b", START_MS - 42_000, "no answer within 5000 ms"),
        BrokerDown("broker-c", START_MS, "refused"),
    )
    update = update_of((behind("billing", 5), Verdict.UNKNOWN))
    drive(Watched(dataclasses.replace(update, down=down)), play)


def test_a_broker_of_several_disks_shows_its_fullest() -> None:
    """Apache's brokers tell the emptiest of several paths under the plain name."""
    update = update_of()
    assert update.state is not None
    facts = {
        "commitLogDiskRatio": "0.25",
        "commitLogDiskRatio_/data1": "0.25",
        "commitLogDiskRatio_/data2": "0.75",
        "putTps": "61.5 7 7",
        "getTransferredTps": "30.25 1 1",
    }
    broker = dataclasses.replace(update.state.brokers[0], facts=facts)
    state = dataclasses.replace(update.state, brokers=(broker,))
    watched = Watched(dataclasses.replace(update, state=state))
    (row,) = BROKERS.rows(ViewData(watched.now, watched.window, START_MS))
    shown = dict(zip((head.title for head in BROKERS.heads), row.cells, strict=True))
    assert (shown["DISK"], shown["IN/s"], shown["OUT/s"]) == ("75%", "62", "30")


def test_an_outage_says_since_when_and_keeps_what_was_found() -> None:
    async def play(pilot: Pilot[None], app: Top) -> None:
        alarm = text_of(app, "alarm")
        assert "NOT ANSWERING since" in alarm
        assert "connect to 127.0.0.1:9876 refused" in alarm
        assert "42 s" in alarm
        assert keys(app) == ["billing"]
        watched.sweep(THREE)
        await pilot.pause()
        assert not app.query_one("#alarm").display

    outage = Outage(START_MS - 42_000, "connect to 127.0.0.1:9876 refused", 3)
    watched = Watched(update_of((behind("billing", 5), Verdict.UNKNOWN), outage=outage))
    drive(watched, play)


def test_figures_of_a_broker_that_hangs_stay_with_their_age() -> None:
    silent = group("billing", START_MS, queue(end=None, committed=None))
    last = behind("billing", 1_234, START_MS - 180_000)
    update = update_of((silent, Verdict.UNKNOWN))
    seen = ViewData(
        dataclasses.replace(update, last_known={"billing": last}), lambda _: [], START_MS
    )
    (row,) = GROUPS.rows(seen)
    assert row.cells[3].startswith("1,237 (3 min")
    assert row.cells[3].endswith(" ago)")
    assert row.styles[3] == "dim"
    assert row.ranks[3] == rank(None), "it is sorted as what it is: unknown"
    assert "ago: lag 1,237, " in queues_of("billing").intro(seen, 80)[1]


def test_before_anything_is_found_it_says_whom_it_asks() -> None:
    async def play(pilot: Pilot[None], app: Top) -> None:
        assert "looking at 127.0.0.1:9876" in text_of(app, "head")
        await pilot.press("enter", "s", "j", "question_mark", "x", "r")

    watched = Watched(Update(None, {}))
    drive(watched, play)
    assert watched.asked == 1


def test_help_names_every_key_and_any_key_ends_it() -> None:
    async def play(pilot: Pilot[None], app: Top) -> None:
        await pilot.press("question_mark")
        shown = "\n".join(lines(app))
        for word in ("enter", "esc", ":", "/", "sort", "members", "quit"):
            assert word in shown
        await pilot.press("j")
        assert not app.query_one("#help").display
        assert app.query_one(DataTable).cursor_row == 0
        await pilot.press("q")

    assert drive(Watched(THREE), play).return_code == 0


@pytest.mark.parametrize("before", ["j", "slash"])
def test_ctrl_c_ends_it_also_while_a_line_is_typed(before: str) -> None:
    async def play(pilot: Pilot[None], app: Top) -> None:
        await pilot.press(before)
        await pilot.press("ctrl+c")

    assert drive(Watched(THREE), play).return_code == 0


def test_a_resize_fits_the_table_anew() -> None:
    async def play(pilot: Pilot[None], app: Top) -> None:
        before = len(app.query_one(DataTable).columns)
        await pilot.resize_terminal(44, 24)
        await pilot.pause()
        narrow = len(app.query_one(DataTable).columns)
        await pilot.resize_terminal(160, 24)
        await pilot.pause()
        assert narrow < before < len(app.query_one(DataTable).columns)

    drive(Watched(THREE), play)


def test_hostile_names_are_text() -> None:
    evil = "[red]x\x1b[2J\x07\u202e[/nothing]"
    found = update_of((behind(evil, 5), Verdict.OK))

    async def play(pilot: Pilot[None], app: Top) -> None:
        shown = "\n".join(lines(app))
        assert "[red]x\\x1b[2J" in shown.replace("\n", "")
        assert "\x1b" not in shown
        await pilot.press("enter")
        assert "[red]" in text_of(app, "head")

    drive(Watched(found), play, (160, 24))


def test_a_filter_from_the_command_line_holds() -> None:
    async def play(pilot: Pilot[None], app: Top) -> None:
        assert keys(app) == ["crm"]

    drive(Watched(THREE), play, wanted="crm")


def test_many_sweeps_keep_no_more_than_the_last() -> None:
    async def play(pilot: Pilot[None], app: Top) -> None:
        for n in range(10):
            watched.sweep(update_of((behind(f"g{n}", n), Verdict.OK)))
            await pilot.pause()
        assert keys(app) == ["g9"]
        assert len(app._drawn.lines) == 1
        assert len(watched.callbacks) == 1

    watched = Watched(THREE)
    drive(watched, play)
    assert watched.callbacks == []


def test_unknown_is_said_and_sorted_last() -> None:
    rows = [
        Row("a", ("a", "unknown"), (rank_text("a"), rank(None))),
        Row("b", ("b", "5"), (rank_text("b"), rank(5))),
    ]
    assert sorted(rows, key=lambda row: row.ranks[1])[0].key == "b"
    assert bars([None, 0, 5, 10], 10) == " ▁▄█"


def test_columns_that_never_give_way_are_there_at_any_width() -> None:
    heads = (Column("NAME"), Column("N", number=True), Column("LESS", number=True, importance=1))
    row = Row("k", ("x" * 30, "1,234", "9"), (rank_text("x"), rank(1), rank(9)))
    for room in range(1, 60):
        fitted = fit(heads, [row], room)
        assert {0, 1} <= set(fitted.chosen)
        name, number = fitted.lines[0][:2]
        assert name.replace("\n", "").strip() == "x" * 30
        assert number.strip() == "1,234"


class _Ending:
    """Stands for the screen: gets the signal amid a task of its loop, and ends when told."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.ended_in_order = False
        self._ended = asyncio.Event()

    async def run_async(self) -> None:
        asyncio.get_running_loop().call_soon(signal.raise_signal, self.number)
        await self._ended.wait()
        self.ended_in_order = True

    def exit(self) -> None:
        self._ended.set()


@pytest.mark.parametrize(
    ("number", "raised"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, TerminatedError)],
)
def test_a_signal_ends_the_screen_in_order_and_the_command_then(
    number: int, raised: type[BaseException]
) -> None:
    before = signal.getsignal(number)
    screen = _Ending(number)
    with pytest.raises(KeyboardInterrupt) as caught:
        draw(cast("Any", screen))
    assert type(caught.value) is raised
    assert screen.ended_in_order
    assert signal.getsignal(number) is before


def test_a_signal_before_the_screen_is_drawn_ends_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = _Ending(signal.SIGTERM)
    run = asyncio.run

    def late(drawn: Coroutine[Any, Any, None]) -> None:
        signal.raise_signal(signal.SIGTERM)
        run(drawn)

    monkeypatch.setattr(asyncio, "run", late)
    with pytest.raises(TerminatedError):
        draw(cast("Any", screen))
    assert not screen.ended_in_order
