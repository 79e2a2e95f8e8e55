"""The job from beginning to end; each step's work is in its own module.

Law: order of events and clean-up.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo import chart, consume, land, watch
from demo.consume import SPARK_GROUP
from demo.errors import DemoError, Interrupts
from demo.flights import FLIGHTS, read_airlines
from demo.ledger import Ledger
from demo.listener import FlightListener
from demo.member import PUSH_GROUP, MemberProcess
from demo.place import Place, fresh_place
from demo.produce import QUEUES, TOPIC, produce
from demo.screen import Screen
from demo.server import Addresses, ServerProcess
from demo.totals import Outcomes, Totals, mismatches
from demo.trouble import expected
from demo.watch import Letters
from rocketstream import Producer
from rocketstream.admin import Admin
from rocketstream.cli.dashboard import Wishes, check_installed, serving
from rocketstream.errors import RocketMQError
from rocketstream.pipelines.local_session import check_environment, start_session, stop_session
from rocketstream.pipelines.progress import IngestProgress
from rocketstream.spark.setup.preparation import Java

JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a job of seconds on two cores, compiling thoroughly costs more than it gains."""
GROUPS = (PUSH_GROUP, SPARK_GROUP)
TITLES = {"push consumers": PUSH_GROUP, "Spark listener": SPARK_GROUP}
DASHBOARD_VARIABLE = "DASHBOARD"
"""Set to 1, the demo ends with the dashboard on its own data."""
DIFFERENT = 1
INTERRUPTED = 130


def run(argv: list[str]) -> int:
    """Run the demo with command-line arguments; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m demo", description="Flights through RocketMQ into a table on Spark."
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=Path("demo-data"),
        help="directory for the files of this run (default: ./demo-data)",
    )
    parser.add_argument(
        "--flights",
        type=int,
        default=FLIGHTS,
        metavar="N",
        help="send only the first N flights (default: all of them)",
    )
    arguments = parser.parse_args(argv)
    if not 0 < arguments.flights <= FLIGHTS:
        parser.error(f"--flights is {arguments.flights}; accepted are 1 to {FLIGHTS}")
    interrupts = Interrupts()
    interrupts.install()
    screen = Screen()
    try:
        return Job(screen, interrupts, arguments.data, arguments.flights).run()
    except KeyboardInterrupt:
        screen.console.print("stopped; nothing is left running")
        return 128 + interrupts.signal_number
    except (DemoError, RocketMQError) as error:
        text = " ".join(str(error).split())
        sys.stderr.write(f"error: {text}\n")
        return 1


@dataclass(frozen=True, slots=True)
class Exchange:
    """What came of sending and consuming.

    Attributes:
        csv: figures of what was sent.
        ledgers: what became of it, by group.
        dead: dead letters, by group.
    """

    csv: Totals
    ledgers: dict[str, Ledger]
    dead: dict[str, int]

    def outcomes(self) -> dict[str, Outcomes]:
        """Return what became of the flights, by the consumers' title."""
        found = {}
        for title, group in TITLES.items():
            counts = self.ledgers[group].counts()
            first = counts.consumed - counts.retried
            found[title] = Outcomes(first, counts.retried, self.dead[group])
        return found


class Job:
    """One run."""

    def __init__(self, screen: Screen, interrupts: Interrupts, data: Path, flights: int) -> None:
        self._flights = flights
        self._screen = screen
        self._interrupts = interrupts
        self._data = data
        self._began = time.monotonic()

    def run(self) -> int:
        """Do every step; whatever happens, everything started is ended."""
        shows = os.environ.get(DASHBOARD_VARIABLE, "") not in ("", "0")
        if shows:
            check_installed()
        java = check_environment()
        place = fresh_place(self._data, time.strftime("%Y%m%d-%H%M%S"))
        with ExitStack() as cleanup:
            cleanup.enter_context(_logging_to(place.client_log))
            addresses, spark = self._start(place, java, cleanup)
            admin = cleanup.enter_context(Admin(addresses.namesrv))
            admin.topics.create(TOPIC, QUEUES)
            exchange = self._exchange(spark, addresses, place, admin)
            letters = self._letters(spark, addresses, exchange)
            progress = self._land(spark, addresses, place)
            code = self._prove(spark, exchange, letters, progress)
            if code == 0:
                self._answer(spark, place)
                code = self._show_progress(spark, addresses)
            if code == 0 and shows:
                self._show_dashboard(addresses, place)
        self._screen.say("")
        self._screen.say(f"done in {time.monotonic() - self._began:.0f} s; files in {place.root}")
        return code

    # --- 1: servers -----------------------------------------------------------------------------

    def _start(self, place: Place, java: Java, cleanup: ExitStack) -> tuple[Addresses, Any]:
        self._screen.step(1, "Start name server, broker and Spark")
        server = ServerProcess(place)
        cleanup.callback(server.close)
        with self._screen.busy("starting"):
            # Spark is started before any client: its JVM is forked from this process, which is
            # safest while there are no other threads.
            spark = start_session(
                "flights",
                log_file=place.spark_log,
                jvm_options=JVM_OPTIONS,
                on_interrupt=lambda: self._screen.say("stopping once Spark has started"),
            )
            cleanup.callback(stop_session, spark)
            addresses = server.wait_ready(self._interrupts)
        self._screen.say(f"name server {addresses.namesrv}, broker {addresses.broker}")
        cores = spark.sparkContext.defaultParallelism
        self._screen.say(f"Spark {spark.version}, {cores} cores, on {java}")
        return addresses, spark

    # --- 2 and 3: producer and consumers --------------------------------------------------------

    def _exchange(self, spark: Any, addresses: Addresses, place: Place, admin: Admin) -> Exchange:
        self._screen.step(
            2, f"Send {self._flights:,} flights; push consumers and Spark count them meanwhile"
        )
        folders = {group: place.journal(group) for group in GROUPS}
        ledgers = {group: Ledger(folder) for group, folder in folders.items()}
        listener = FlightListener(str(folders[SPARK_GROUP]))
        bars = self._screen.bars("msg")
        sent = bars.add_task("sent", total=self._flights, note="")
        tasks = {
            group: bars.add_task(title, total=self._flights, note="")
            for group, title in ((PUSH_GROUP, "pushed"), (SPARK_GROUP, "on Spark"))
        }

        def refresh() -> list[tuple[str, int, int, int]]:
            for group, ledger in ledgers.items():
                counts = ledger.counts()
                note = f"{counts.refused} refused" if counts.refused else ""
                bars.update(tasks[group], completed=counts.consumed, note=note)
            return ledgers[PUSH_GROUP].by_carrier()

        with ExitStack() as members:
            pushing = [
                members.enter_context(MemberProcess(addresses.namesrv, place))
                for _ in range(consume.MEMBERS)
            ]
            on_spark = consume.on_spark(spark, addresses.namesrv, place, listener)
            with self._screen.busy("starting the listener on Spark"):
                consume.start(on_spark, members)
                for member in pushing:
                    member.wait_ready(self._interrupts)
            with self._screen.live(bars, refresh):
                with Producer("flight-producer", namesrv_addr=addresses.namesrv) as producer:
                    csv = produce(
                        producer,
                        self._flights,
                        self._interrupts,
                        lambda count: bars.update(sent, completed=count),
                    )
                dead = consume.wait_consumed(
                    admin,
                    ledgers,
                    csv.flights,
                    self._interrupts,
                    lambda: consume.is_working(on_spark),
                )
                for group, count in dead.items():
                    bars.update(tasks[group], total=csv.flights - count)
        return Exchange(csv, ledgers, dead)

    def _letters(self, spark: Any, addresses: Addresses, exchange: Exchange) -> Letters:
        self._screen.step(3, "Retries, and dead letters by cause (Spark SQL)")
        self._screen.outcomes(exchange.outcomes())
        for title, group in TITLES.items():
            counts = exchange.ledgers[group].counts()
            if counts.repeated:
                self._screen.say(
                    f"{title}: {counts.repeated:,} deliveries were repeats, not counted twice"
                )
        if not any(exchange.dead.values()):
            return Letters({group: Totals() for group in GROUPS}, {group: {} for group in GROUPS})
        with self._screen.busy("reading the dead-letter topics"):
            causes = {group: exchange.ledgers[group].causes for group in GROUPS}
            letters = watch.read_letters(spark, addresses.namesrv, causes)
        self._interrupts.check()
        self._screen.causes({f"%DLQ%{group}": letters.causes[group] for group in GROUPS})
        return letters

    # --- 4: Spark -------------------------------------------------------------------------------

    def _land(self, spark: Any, addresses: Addresses, place: Place) -> IngestProgress:
        self._screen.step(4, "Land the topic as a Parquet table with Spark")
        bars = self._screen.bars("row")
        task = bars.add_task("landed", total=self._flights, note="")

        def show(progress: IngestProgress) -> None:
            note = f"micro-batch {progress.batches}"
            bars.update(task, completed=progress.rows, note=note)

        with bars:
            progress = land.land(spark, addresses.namesrv, place, show, self._interrupts.stop)
        self._interrupts.check()
        self._screen.say(f"{place.table}, partitioned by origin")
        return progress

    # --- 5 to 7: proof, answer, progress --------------------------------------------------------

    def _prove(
        self, spark: Any, exchange: Exchange, letters: Letters, progress: IngestProgress
    ) -> int:
        self._screen.step(5, "Prove that nothing is lost, doubled or changed")
        with self._screen.busy("summing the table"):
            table = land.table_totals(spark)
            self._interrupts.check()
            order = land.order_facts(spark)
        found = {
            f"{title} + dead letters": exchange.ledgers[group].totals.plus(letters.totals[group])
            for title, group in TITLES.items()
        }
        found["Parquet table"] = table
        wrong = mismatches(exchange.csv, found, exchange.outcomes(), wanted(self._flights))
        wrong += [
            f"{order[fact]:,} flights {text}"
            for fact, text in (
                ("out_of_order", "of an aircraft are out of order"),
                ("moved", "of an aircraft are in another queue than the one before"),
            )
            if order[fact]
        ]
        if progress.malformed:
            wrong.append(f"{progress.malformed:,} rows did not parse")
        self._screen.proof([("CSV", exchange.csv), *found.items()], equal=not wrong)
        if self._different(wrong):
            return DIFFERENT
        self._screen.say(f"{order['aircraft']:,} aircraft, each in one queue and in the order sent")
        self._interrupts.check()
        return 0

    def _show_dashboard(self, addresses: Addresses, place: Place) -> None:
        """Keep the cluster up and show it in a browser, until Ctrl-C."""
        self._screen.step(8, "Look at it in a browser")
        wishes = Wishes(
            (addresses.namesrv,),
            port=0,
            write=True,
            interval_s=2.0,
            history=place.root / "history.db",
            audit_file=str(place.root / "audit.jsonl"),
        )
        with serving(wishes) as server:
            self._screen.say(f"{server.url}  (Ctrl-C ends it)")
            self._interrupts.stop.wait()
        self._interrupts.stop.clear()  # it was the way to go on

    def _different(self, wrong: list[str]) -> bool:
        for line in wrong:
            self._screen.say(f"DIFFERENT {line}")
        return bool(wrong)

    def _answer(self, spark: Any, place: Place) -> None:
        self._screen.step(6, "Average departure delay in minutes, by carrier and hour (Spark SQL)")
        with self._screen.busy("asking"):
            delays = land.delays(spark)
            airlines = read_airlines()
        self._interrupts.check()
        self._screen.delays(delays, airlines)
        chart.draw(place.chart, delays, airlines)
        self._screen.say(f"chart: {place.chart}")
        self._interrupts.check()

    def _show_progress(self, spark: Any, addresses: Addresses) -> int:
        self._screen.step(7, "Lag of the three groups (Spark SQL over rocketmq-progress)")
        with self._screen.busy("asking"):
            rows = watch.progress(spark, addresses.namesrv, [*GROUPS, land.GROUP])
        self._interrupts.check()
        self._screen.progress(rows)
        _, given_up = expected(self._flights)
        dead = dict.fromkeys(GROUPS, given_up)
        wrong = [line for row in rows for line in row.differences(self._flights, dead)]
        return DIFFERENT if self._different(wrong) else 0


@contextmanager
def _logging_to(path: Path) -> Iterator[None]:
    """Write what the client library logs to a file; the screen shows the sum of it."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logger = logging.getLogger("rocketstream")
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()


def wanted(flights: int) -> Outcomes:
    """Return what must become of the first flights in each group."""
    refused, given_up = expected(flights)
    return Outcomes(flights - refused, refused - given_up, given_up)
