"""How far three groups were behind, and when, as a picture: the history of a progress stream.

One topic, three groups of push consumers: ``billing`` keeps up; ``search`` writes to a database
that is slow for a while, falls behind and recovers; in ``audit`` a call hangs, and the group
stands. Spark follows them with ``format("rocketmq-progress")`` and keeps every snapshot in a table;
what is drawn is a query of that table.

Run it against any cluster (NAMESRV_ADDR=host:9876 python examples/spark/lag_over_time.py lag.svg)
or without one: it then starts an embedded server of its own. It needs the extra
``rocketstream[demo]``, which brings matplotlib, and takes a good minute.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocketstream import (
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
)
from rocketstream.admin import Admin
from rocketstream.errors import RouteNotFoundError

TOPIC = "example-bookings"
QUEUES = 4
COLOURS = {"billing": "#0072B2", "search": "#009E73", "audit": "#D55E00"}
WORDS = {"billing": "keeps up", "search": "falls\nbehind, recovers", "audit": "stands"}
SLOW_S, BRISK_S = 0.02, 0.001
"""What a call costs ``search`` while its database is slow, and when it is not."""

LAG_SQL = """
SELECT group, unix_micros(observedAt) / 1e6 AS at, SUM(lag) AS behind
FROM history WHERE kind = 'topic'
GROUP BY group, observedAt HAVING behind IS NOT NULL ORDER BY at
"""

Points = list[tuple[float, int]]
"""Seconds since 1970 and messages behind."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is sent, and what happens meanwhile.

    Attributes:
        rate: messages a second.
        calm: messages until the trouble begins.
        trouble: messages sent while the database is slow.
        after: messages sent afterwards.
        interval: between two snapshots, as the source's option says it.
    """

    rate: int = 300
    calm: int = 3_600
    trouble: int = 6_000
    after: int = 7_200
    interval: str = "500ms"

    @property
    def messages(self) -> int:
        """All of them."""
        return self.calm + self.trouble + self.after


@dataclass(frozen=True, slots=True)
class Seen:
    """What came of it.

    Attributes:
        lag: by group.
        slow: when the database began to be slow and when it no longer was, s since 1970.
        consumed: messages finished by each group.
    """

    lag: dict[str, Points]
    slow: tuple[float, float]
    consumed: dict[str, int]


class Members:
    """One push consumer for each of the three groups."""

    def __init__(self, namesrv_addr: str, topic: str, plan: Plan) -> None:
        self._namesrv_addr = namesrv_addr
        self._topic = topic
        self._plan = plan
        self.slow = threading.Event()
        self.let_go = threading.Event()
        self.consumed = dict.fromkeys(COLOURS, 0)

    def start(self, stack: ExitStack) -> None:
        """Start them; with the stack the call that hangs returns, and they are shut down."""
        for group, work in (
            ("billing", lambda number: None),
            ("search", self._search),
            ("audit", self._audit),
        ):
            member = PushConsumer(
                group,
                namesrv_addr=self._namesrv_addr,
                consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
                consume_thread_min=1,
                consume_thread_max=1,
                persist_consumer_offset_interval_ms=200,
            )
            member.subscribe(self._topic)
            member.register_message_listener(self._listener(group, work))
            stack.enter_context(member)
        stack.callback(self.let_go.set)

    def _listener(
        self, group: str, work: Callable[[int], None]
    ) -> Callable[[list[MessageExt]], ConsumeConcurrentlyStatus]:
        def listener(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
            for message in messages:
                work(int(message.body))
                self.consumed[group] += 1
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

        return listener

    def _search(self, number: int) -> None:
        self.let_go.wait(SLOW_S if self.slow.is_set() else BRISK_S)

    def _audit(self, number: int) -> None:
        if number >= self._plan.calm:
            self.let_go.wait()


def send(namesrv_addr: str, topic: str, plan: Plan, slow: threading.Event) -> tuple[float, float]:
    """Send at a steady rate; switch the database to slow and back. Return when."""
    began = time.monotonic()
    changed = []
    pause = threading.Event()
    with Producer("example-desk", namesrv_addr=namesrv_addr) as producer:
        for number in range(plan.messages):
            if number in (plan.calm, plan.calm + plan.trouble):
                slow.clear() if slow.is_set() else slow.set()
                changed.append(time.time())
            producer.send(Message(topic, str(number)))
            early = began + number / plan.rate - time.monotonic()
            if early > 0:
                pause.wait(early)
    return changed[0], changed[1]


def follow(spark: Any, namesrv_addr: str, topic: str, plan: Plan, home: Path) -> Any:
    """Start the query that keeps snapshots of the three groups; return it after the first one."""
    reader = spark.readStream.format("rocketmq-progress").option("nameServer", namesrv_addr)
    snapshots = reader.options(
        groups=",".join(COLOURS), topic=topic, interval=plan.interval, owners="false"
    ).load()
    writer = snapshots.writeStream.format("parquet").option("path", str(home / "history"))
    query = writer.option("checkpointLocation", str(home / "checkpoint")).start()
    wait_until(lambda: _snapshots(query) > 0, "the first snapshot")
    return query


def watch(spark: Any, namesrv_addr: str, topic: str, plan: Plan, home: Path) -> Seen:
    """Let everything happen once, and return it as the history has it; blocks."""
    members = Members(namesrv_addr, topic, plan)
    with ExitStack() as stack:
        admin = stack.enter_context(Admin(namesrv_addr))
        members.start(stack)
        query = follow(spark, namesrv_addr, topic, plan, home)
        stack.callback(query.stop)
        slow = send(namesrv_addr, topic, plan, members.slow)
        for group in ("billing", "search"):
            wait_until(
                lambda group=group: admin_lag(admin, group, topic) == 0,  # type: ignore[misc]
                f"{group} to catch up",
            )
        last = _snapshots(query)
        wait_until(lambda: _snapshots(query) >= last + 2, "two more snapshots")
        consumed = dict(members.consumed)
    return Seen(lag_over_time(spark, home), slow, consumed)


def lag_over_time(spark: Any, home: Path) -> dict[str, Points]:
    """Ask the history how far each group was behind, and when."""
    spark.read.parquet(str(home / "history")).createOrReplaceTempView("history")
    lag: dict[str, Points] = {group: [] for group in COLOURS}
    for row in spark.sql(LAG_SQL).collect():
        lag[row["group"]].append((row["at"], row["behind"]))
    return lag


def draw(path: Path, seen: Seen) -> Any:
    """Write the picture, as the suffix says (``.svg``, ``.png``); return matplotlib's figure."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "rocketstream"  # the same figures make the same file
    from matplotlib.figure import Figure

    zero = min(points[0][0] for points in seen.lag.values() if points)
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    axes = figure.subplots()
    begin, end = (moment - zero for moment in seen.slow)
    axes.axvspan(begin, end, color="#eeeeee", zorder=0)
    axes.text(
        (begin + end) / 2, 0.97, "database of\nsearch is slow", ha="center", va="top", fontsize=11,
        color="#555555", transform=axes.get_xaxis_transform(),
    )  # fmt: skip
    for group, points in seen.lag.items():
        xs = [at - zero for at, _ in points]
        ys = [behind for _, behind in points]
        axes.plot(xs, ys, color=COLOURS[group], linewidth=2.4, label=group)
        place = _label_place(group, xs, ys)
        axes.annotate(
            f"{group} {WORDS[group]}", place[0], xytext=place[1], textcoords="offset points",
            ha=place[2], va="center", color=COLOURS[group], fontsize=13, fontweight="bold",
        )  # fmt: skip
    axes.set_xlabel("Seconds", fontsize=12)
    axes.set_ylabel("Messages behind", fontsize=12)
    axes.set_title("Lag of three groups of one topic", fontsize=14, loc="left")
    axes.tick_params(labelsize=12)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.margins(y=0.08)
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)
    return figure


def _label_place(
    group: str, xs: list[float], ys: list[int]
) -> tuple[tuple[float, int], tuple[int, int], str]:
    """Return a point at a line, the way from there to its label in points, and its alignment."""
    if group == "audit":
        at = len(xs) * 3 // 4
        return (xs[at], ys[at]), (-10, 12), "right"
    if group == "search":
        at = max(range(len(ys)), key=ys.__getitem__)
        return (xs[at], ys[at] * 2 // 5), (8, 0), "center"
    at = next(number for number, x in enumerate(xs) if x >= xs[-1] / 6)
    return (xs[at], ys[at]), (0, 13), "center"


def admin_lag(admin: Admin, group: str, topic: str) -> int | None:
    """Return how far a group is behind now, None where that is not known yet."""
    try:
        lags = [row.lag for row in admin.groups.lag(group, topic)]
    except RouteNotFoundError:
        return None
    return None if None in lags else sum(lag for lag in lags if lag is not None)


def _snapshots(query: Any) -> int:
    progress = query.lastProgress
    if not query.isActive:
        raise RuntimeError(f"the query has ended: {query.exception()}")
    return 0 if progress is None else int(progress.batchId) + 1


def wait_until(reached: Callable[[], bool], what: str, seconds: float = 120) -> None:
    """Look until something is reached.

    Raises:
        TimeoutError: it was not, in so many seconds.
    """
    pause, until = threading.Event(), time.monotonic() + seconds
    while not reached():
        if time.monotonic() > until:
            raise TimeoutError(f"{what}: not within {seconds:.0f} s")
        pause.wait(0.1)


def summary(lag: Mapping[str, Points]) -> str:
    """Return what the picture shows, in words."""
    return ", ".join(
        f"{group} {points[-1][1]:,} behind (at most {max(behind for _, behind in points):,})"
        for group, points in lag.items()
    )


def main() -> None:
    """Watch the three groups for a minute and draw what was seen."""
    from pyspark.sql import SparkSession

    from rocketstream.spark import prepare

    path = Path(sys.argv[1] if len(sys.argv) > 1 else "lag.svg")
    prepare()
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        builder = SparkSession.builder.master("local[2]").appName("lag over time")
        spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
        # Spark logs a trace when a query is stopped in a micro-batch, as this one may be.
        spark.sparkContext.setLogLevel("OFF")
        stack.callback(spark.stop)
        namesrv_addr = os.environ.get("NAMESRV_ADDR", "")
        if not namesrv_addr:
            from rocketstream.server.embedded import EmbeddedCluster

            namesrv_addr = stack.enter_context(EmbeddedCluster()).namesrv_addr
        with Admin(namesrv_addr) as admin:
            admin.topics.create(TOPIC, QUEUES)
        seen = watch(spark, namesrv_addr, TOPIC, Plan(), home)
        draw(path, seen)
        print(summary(seen.lag))
        print(f"drawn in {path}")


if __name__ == "__main__":
    main()
