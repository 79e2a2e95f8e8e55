"""The job from beginning to end; each step's work is in its own module.

Law: order of events and clean-up.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from demo import chart, consume, land
from demo.errors import DemoError, Interrupts
from demo.flights import FLIGHTS, read_airlines
from demo.place import Place, fresh_place
from demo.produce import QUEUES, TOPIC, produce
from demo.screen import Screen
from demo.server import Addresses, ServerProcess
from demo.totals import Totals, differences
from demo.trouble import expected
from rocketstream import Producer
from rocketstream.admin import Admin
from rocketstream.errors import RocketMQError, RouteNotFoundError
from rocketstream.pipelines.local_session import check_environment, start_session, stop_session
from rocketstream.pipelines.progress import IngestProgress
from rocketstream.spark.setup.java import Java

JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a job of seconds on two cores, compiling thoroughly costs more than it gains."""
_POLL_S = 0.2
_STALLED_S = 60.0
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
        java = check_environment()
        place = fresh_place(self._data, time.strftime("%Y%m%d-%H%M%S"))
        with ExitStack() as cleanup:
            cleanup.enter_context(_logging_to(place.client_log))
            addresses, spark = self._start(place, java, cleanup)
            admin = cleanup.enter_context(Admin(addresses.namesrv))
            admin.topic_create(TOPIC, QUEUES)
            csv, consumed, dead = self._exchange(addresses, admin)
            progress = self._land(spark, addresses, place)
            code = self._prove(spark, csv, consumed.plus(dead), progress)
            if code == 0:
                self._answer(spark, place)
            self._show_lag(admin)
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

    def _exchange(self, addresses: Addresses, admin: Admin) -> tuple[Totals, Totals, Totals]:
        self._screen.step(2, f"Send {self._flights:,} flights; two consumers count them meanwhile")
        listener = consume.FlightListener()
        bars = self._screen.bars("msg")
        sent = bars.add_task("sent", total=self._flights, note="")
        counted = bars.add_task("consumed", total=self._flights, note="")

        def refresh() -> list[tuple[str, int, int, int]]:
            counts = listener.counts()
            note = f"{counts.refused} refused" if counts.refused else ""
            bars.update(counted, completed=counts.consumed, note=note)
            return listener.by_carrier()

        with ExitStack() as members:
            for _ in range(consume.MEMBERS):
                members.enter_context(consume.member(addresses.namesrv, listener)).start()
            with self._screen.live(bars, refresh):
                with Producer("flight-producer", namesrv_addr=addresses.namesrv) as producer:
                    csv = produce(
                        producer,
                        self._flights,
                        self._interrupts,
                        lambda count: bars.update(sent, completed=count),
                    )
                dead_count = self._wait_consumed(listener, admin, csv.flights)
                bars.update(counted, total=csv.flights - dead_count)
        dead = self._dead_letters(addresses, dead_count, listener)
        return csv, listener.totals, dead

    def _wait_consumed(self, listener: consume.FlightListener, admin: Admin, flights: int) -> int:
        """Wait until every flight is consumed or a dead letter; return how many are the latter."""
        _, given_up = expected(flights)
        dead = 0
        last, since = -1, time.monotonic()
        while True:
            consumed = listener.counts().consumed
            if consumed + given_up >= flights:
                dead = _message_count(admin, _dead_letter_topic())
                if consumed + dead >= flights:
                    return dead
            if consumed + dead != last:
                last, since = consumed + dead, time.monotonic()
            elif time.monotonic() - since > _STALLED_S:
                raise DemoError(
                    f"{flights - last:,} of {flights:,} flights were neither consumed nor dead "
                    f"letters and nothing came for {_STALLED_S:.0f} s"
                )
            self._interrupts.wait(_POLL_S)

    def _dead_letters(
        self, addresses: Addresses, count: int, listener: consume.FlightListener
    ) -> Totals:
        self._screen.step(3, "Retries and dead letters")
        counts = listener.counts()
        self._screen.say(
            f"the listener raised {counts.refused:,} times; {counts.retried:,} flights were "
            f"consumed at a later delivery"
        )
        dead = Totals()
        if count:
            dead = consume.read_dead_letters(
                addresses.namesrv, _dead_letter_topic(), count, self._wait_until
            )
        letters = "dead letter" if dead.flights == 1 else "dead letters"
        self._screen.say(f"{dead.flights:,} {letters} in {_dead_letter_topic()}")
        if counts.repeated:
            self._screen.say(f"{counts.repeated:,} deliveries were repeats, not counted twice")
        return dead

    def _wait_until(self, reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _STALLED_S
        while not reached():
            if time.monotonic() > deadline:
                raise DemoError(f"the dead letters did not arrive within {_STALLED_S:.0f} s")
            self._interrupts.wait(_POLL_S)

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

    def _prove(self, spark: Any, csv: Totals, consumed: Totals, progress: IngestProgress) -> int:
        self._screen.step(5, "Prove that nothing is lost, doubled or changed")
        with self._screen.busy("summing the table"):
            table = land.table_totals(spark)
            self._interrupts.check()
            order = land.order_facts(spark)
        wrong = [f"push consumers: {line}" for line in differences(csv, consumed)]
        wrong += [f"Parquet table: {line}" for line in differences(csv, table)]
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
        self._screen.proof(
            [("CSV", csv), ("push consumers + dead letters", consumed), ("Parquet table", table)],
            equal=not wrong,
        )
        if wrong:
            for line in wrong:
                self._screen.say(f"DIFFERENT {line}")
            return DIFFERENT
        self._screen.say(f"{order['aircraft']:,} aircraft, each in one queue and in the order sent")
        self._interrupts.check()
        return 0

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

    def _show_lag(self, admin: Admin) -> None:
        self._screen.step(7, f"Progress of the group {consume.GROUP}")
        self._screen.lag(admin.group_lag(consume.GROUP, TOPIC))


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


def _dead_letter_topic() -> str:
    return f"%DLQ%{consume.GROUP}"


def _message_count(admin: Admin, topic: str) -> int:
    try:
        return sum(row.message_count for row in admin.topic_status(topic))
    except RouteNotFoundError:
        return 0
