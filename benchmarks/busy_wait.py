"""`python -m benchmarks.busy_wait`: what other work loses while ``send`` looks for its answer.

One thread sends at a set pace and waits for each answer. Beside it either a second thread computes,
or a push consumer's listeners compute for each message. Producers with ``busy_wait`` and without
take turns, and the two of a pair are compared. Work is told by the processor time of the process,
since other processes share the machine: looking that takes time from the work shows there.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import embedded_server
from rocketstream import ConsumeConcurrentlyStatus, Message, MessageExt, Producer, PushConsumer

TOPIC = "BusyWait"
PACE_S = 0.002
ROUND_S = 1.0
STEP = 2_000
BODY = b"x" * 100


class Work:
    """Pure Python work, counted in steps.

    Attributes:
        steps: steps done.
    """

    def __init__(self) -> None:
        self.steps = 0

    def step(self) -> None:
        """Do one step, some tens of microseconds of computing."""
        total = 0
        for number in range(STEP):
            total += number * number
        self.steps += 1


def sent(producer: Producer) -> int:
    """Send at the set pace for the length of a round; return how many."""
    end, count = time.perf_counter() + ROUND_S, 0
    while time.perf_counter() < end:
        producer.send(Message(TOPIC, BODY))
        count += 1
        time.sleep(PACE_S)
    return count


@contextmanager
def computing(work: Work) -> Iterator[None]:
    """A thread that computes all the time."""
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            work.step()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def by_processor_time(work: Work, producer: Producer) -> float:
    """Return the steps of work a second of the process's processor time, in one round."""
    steps, before = work.steps, time.process_time()
    sent(producer)
    return (work.steps - steps) / (time.process_time() - before)


def pairs_of(namesrv: str, rounds: int, work: Work) -> Iterator[tuple[float, float]]:
    """Yield for each pair of rounds what was done with looking, and without."""
    with (
        Producer("busy-on", namesrv_addr=namesrv, busy_wait=True) as looking,
        Producer("busy-off", namesrv_addr=namesrv, busy_wait=False) as sleeping,
    ):
        for number in range(-1, rounds):
            if number % 2:
                with_looking = by_processor_time(work, looking)
                pair = with_looking, by_processor_time(work, sleeping)
            else:
                without = by_processor_time(work, sleeping)
                pair = by_processor_time(work, looking), without
            if number >= 0:  # the first pair warms up
                yield pair


def beside_a_thread(namesrv: str, rounds: int) -> Iterator[tuple[float, float]]:
    """The work is a thread's, all the time."""
    work = Work()
    with computing(work):
        yield from pairs_of(namesrv, rounds, work)


def beside_listeners(namesrv: str, rounds: int) -> Iterator[tuple[float, float]]:
    """The work is that of a push consumer's listeners: some tenths of a millisecond a message."""
    work = Work()

    def listen(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        for _ in messages:
            for _ in range(5):
                work.step()
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    with PushConsumer(
        "busy-listeners", namesrv_addr=namesrv, listener=listen, subscription={TOPIC: "*"}
    ):
        yield from pairs_of(namesrv, rounds, work)


def told(what: str, pairs: list[tuple[float, float]]) -> str:
    """Return a line for people."""
    ratios = sorted(on / off for on, off in pairs)
    low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
    return (
        f"{what}: work by processor time with busy_wait, without being 1: "
        f"{statistics.median(ratios):.3f} (half of the rounds {low:.3f} to {high:.3f})\n"
    )


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="pairs of rounds")
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder, embedded_server(Path(folder)) as server:
        for what, measure in (
            ("a second thread", beside_a_thread),
            ("listeners", beside_listeners),
        ):
            sys.stdout.write(told(what, list(measure(server.namesrv_addr, rounds))))
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
