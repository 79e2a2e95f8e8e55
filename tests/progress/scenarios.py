"""23 planted faults and nine healthy loads, each with the verdict, first cause and time expected.

Law: pure; the faults begin ten minutes after the group. ``allows_s`` says how soon the data can
show a fault, and why not sooner stands beside it; a notice is due two minutes later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rocketstream.admin.state import CauseKind, Verdict
from tests.progress.virtual_group import MINUTE, Call, Client, Group, Queue, Stored

BEGIN_MS = 10 * MINUTE
TREND_S = 240
LOOK_S = 90
"""A group is looked into once a minute, those first that stood for half a minute."""
WITHIN_S = 120


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        number: as in the operators' table.
        makes: the group.
        verdict: the verdict it must get; OK or UNKNOWN where none can wake anybody.
        cause: the first cause, once the verdict is there; None where there is none to name.
        allows_s: how long after its beginning the data shows it first; None where no notice is due.
        minutes: how long it is watched.
        lasts: whether it is the same after an hour.
    """

    number: str
    name: str
    makes: Callable[[], Group]
    verdict: Verdict
    cause: CauseKind | None
    allows_s: float | None
    minutes: float = 22
    lasts: bool = True


def broken(at_ms: int) -> bool:
    return at_ms >= BEGIN_MS


def _pinned() -> Group:
    def listener(group: Group, client: Client, queue: Queue, m: Stored, at_ms: int) -> Call:
        if m.key == "pin-me":
            return Call(None, place="com.acme.Dao.wait(Dao.java:42)")
        return Call(20)

    def sends(number: int, at_ms: int) -> tuple[str, str]:
        return ("pin-me" if number == 4 * BEGIN_MS // 1_000 else f"k{number}", "paid")

    return Group("pinned", lambda at: 4, listener, sends=sends)


def _poison(orderly: bool) -> Group:
    def listener(group: Group, client: Client, queue: Queue, m: Stored, at_ms: int) -> Call:
        return Call(20, m.key != "poison-me", "com.acme.Orders.parse(Orders.java:7)")

    def sends(number: int, at_ms: int) -> tuple[str, str]:
        return ("poison-me" if number == 4 * BEGIN_MS // 1_000 else f"k{number}", "paid")

    name = "poison-ordered" if orderly else "poison"
    return Group(name, lambda at: 4, listener, sends=sends, orderly=orderly)


def _slow(name: str, threads: int, call_ms: float, rate: float) -> Callable[[], Group]:
    def listener(group: Group, client: Client, queue: Queue, m: Stored, at_ms: int) -> Call:
        return Call(call_ms if broken(at_ms) else 20, place="com.acme.Mail.send(Mail.java:9)")

    return lambda: Group(name, lambda at: rate, listener, threads=threads)


def _starved() -> Group:
    def listener(group: Group, client: Client, queue: Queue, m: Stored, at_ms: int) -> Call:
        return Call(None if broken(at_ms) else 20, place="com.acme.Pool.take(Pool.java:3)")

    return Group("starved", lambda at: 4, listener, threads=4)


def _mismatch() -> Group:
    def change(group: Group, at_ms: int) -> None:
        if at_ms == BEGIN_MS:
            group.join("10.0.0.2@77", at_ms, "refused")

    return Group("mismatch", lambda at: 4, change=change, expression="paid")


def _crowded() -> Group:
    def change(group: Group, at_ms: int) -> None:
        if at_ms == BEGIN_MS:
            for k in range(2, 6):
                group.join(f"10.0.0.{k}@4711", at_ms)

    def listener(group: Group, client: Client, queue: Queue, m: Stored, at_ms: int) -> Call:
        return Call(2_000 if broken(at_ms) else 20, place="com.acme.Mail.send(Mail.java:9)")

    return Group("crowded", lambda at: 4, listener, change, number=2, threads=2)


def _gone() -> Group:
    def change(group: Group, at_ms: int) -> None:
        if at_ms == BEGIN_MS:
            group.leave("10.0.0.1@4711", at_ms)

    return Group("gone", lambda at: 4, change=change)


def _expired() -> Group:
    def change(group: Group, at_ms: int) -> None:
        if at_ms % MINUTE == 0:
            for queue in group.queues:
                queue.low = max(queue.end - 150, 0)

    def listener(group: Group, client: Client, queue: Queue, m: Stored, at_ms: int) -> Call:
        return Call(4_000 if broken(at_ms) else 20)

    return Group("expired", lambda at: 8, listener, change, threads=4)


def _paused() -> Group:
    def change(group: Group, at_ms: int) -> None:
        for client in group.members.values():
            client.is_paused = broken(at_ms)

    return Group("paused", lambda at: 4, change=change)


def _locked() -> Group:
    def change(group: Group, at_ms: int) -> None:
        if at_ms == BEGIN_MS:
            group.join("10.0.0.1@4711", at_ms)

    return Group(
        "locked", lambda at: 4 if broken(at) else 0, change=change, orderly=True,
        locked_by_other=True, clients=0,
    )  # fmt: skip


def _filtered() -> Group:
    def change(group: Group, at_ms: int) -> None:
        if at_ms == BEGIN_MS:
            group.leave("10.0.0.1@4711", at_ms)
            group.join("10.0.0.1@4712", at_ms, "payed")

    return Group("filtered", lambda at: 4, change=change)


def _read_only() -> Group:
    def change(group: Group, at_ms: int) -> None:
        group.permission = "R" if broken(at_ms) else "RW"

    return Group("readonly", lambda at: 0 if broken(at) else 4, change=change)


def _skewed() -> Group:
    def listener(group: Group, client: Client, queue: Queue, m: Stored, at_ms: int) -> Call:
        return Call(400)

    group = Group("skewed", lambda at: 6, listener, orderly=True)
    group.chooses = lambda number: (
        number if number < 6 * BEGIN_MS // 1_000 or number % 10 == 0 else 0
    )
    return group


def _steady(name: str, **more: object) -> Callable[[], Group]:
    return lambda: Group(name, lambda at: 4, **more)  # type: ignore[arg-type]


def _rewound() -> Group:
    def change(group: Group, at_ms: int) -> None:
        if at_ms == BEGIN_MS:
            (client,) = group.members.values()
            for queue in group.queues:
                queue.committed = 0
            client.queues.clear()
            client.waiting.clear()
            group.rebalance_ms = at_ms

    def listener(group: Group, client: Client, queue: Queue, m: Stored, at_ms: int) -> Call:
        return Call(200)

    return Group("rewound", lambda at: 10, listener, change, threads=5)


def _fails(name: str, of_hundred: int, tries_max: int, reasons: int) -> Callable[[], Group]:
    def listener(group: Group, client: Client, queue: Queue, m: Stored, at_ms: int) -> Call:
        number = int(m.key[1:])
        ok = m.at_ms < BEGIN_MS or number * 37 % 100 >= of_hundred
        return Call(20, ok, f"com.acme.Body{number % reasons}.read(Body.java:{number % reasons})")

    return lambda: Group(name, lambda at: 4, listener, tries_max=tries_max)


def _flapping() -> Group:
    def change(group: Group, at_ms: int) -> None:
        if at_ms >= BEGIN_MS and at_ms % 10_000 == 5_000:
            if at_ms // 10_000 % 2:
                group.leave("10.0.0.2@4711", at_ms)
            else:
                group.join("10.0.0.2@4711", at_ms)

    return Group("flapping", lambda at: 4, change=change, clients=2)


def _twins(language: str) -> Callable[[], Group]:
    def change(group: Group, at_ms: int) -> None:
        if at_ms == BEGIN_MS:
            group.twins = ("10.0.0.8:52000",)
            if language == "JAVA":
                group.leaves_out = 2
                group.rebalance_ms = at_ms

    return lambda: Group(
        f"twins-{language.lower()}", lambda at: 4, change=change, language=language
    )


def _hung() -> Group:
    def change(group: Group, at_ms: int) -> None:
        group.hangs = broken(at_ms)

    return Group("hung", lambda at: 4, change=change)


FAULTS = (
    Fault("1", "one message is stuck in a thread", _pinned,
          Verdict.PINNED, CauseKind.PINNED_MESSAGE, LOOK_S),
    Fault("2", "a poison message, tried again and again", lambda: _poison(False),
          Verdict.OK, CauseKind.POISON_MESSAGE, None),
    Fault("2b", "a poison message in order", lambda: _poison(True),
          Verdict.STALLED, CauseKind.POISON_MESSAGE, 120),
    Fault("3", "a slow listener", _slow("slow", 4, 2_000, 4),
          Verdict.FALLING_BEHIND, CauseKind.SLOW_LISTENER, TREND_S),
    Fault("4", "every thread waits for ever", _starved,
          Verdict.STALLED, CauseKind.STARVED_POOL, LOOK_S),
    Fault("5", "members subscribe differently", _mismatch,
          Verdict.LOSING, CauseKind.SUBSCRIPTION_MISMATCH, LOOK_S),
    Fault("6", "five slow members on two queues", _crowded,
          Verdict.FALLING_BEHIND, CauseKind.SLOW_LISTENER, TREND_S),
    Fault("7", "the last member is gone", _gone,
          Verdict.STOPPED, CauseKind.NO_MEMBERS, 180),
    Fault("8", "retention is quicker than the group", _expired,
          Verdict.LOSING, CauseKind.EXPIRED_OFFSET, 150),
    Fault("9", "a client is paused", _paused,
          Verdict.STALLED, CauseKind.PAUSED, LOOK_S),
    Fault("10", "two threads, 20 s a call, pulls held back", _slow("flow", 2, 20_000, 1.9),
          Verdict.FALLING_BEHIND, CauseKind.SLOW_LISTENER, TREND_S),
    Fault("11", "a client that is no member holds the locks", _locked,
          Verdict.STALLED, CauseKind.DEAD_LOCK_OWNER, LOOK_S + 15),
    Fault("12", "the filter matches nothing", _filtered,
          Verdict.LOSING, CauseKind.FILTERED_TO_NOTHING, LOOK_S + 30),
    Fault("13", "the topic is read-only", _read_only,
          Verdict.OK, CauseKind.BROKER_READ_ONLY, None),
    Fault("14", "one queue gets nearly everything", _skewed,
          Verdict.FALLING_BEHIND, CauseKind.SKEWED_QUEUE, TREND_S),
    Fault("15", "a producer's clock is wrong", _steady("clock"),
          Verdict.OK, None, None),
    Fault("16", "a broadcasting group", _steady("broadcast", model="BROADCASTING"),
          Verdict.UNKNOWN, None, None),
    Fault("17", "offsets are set back", _rewound,
          Verdict.REWOUND, None, 10, 14, lasts=False),
    Fault("18", "one body in ten is too big for the handler", _fails("big", 10, 2, 1),
          Verdict.FAILING, CauseKind.DEAD_LETTERS, 90),
    Fault("19", "three of five fail, for five reasons", _fails("letters", 60, 0, 5),
          Verdict.FAILING, CauseKind.DEAD_LETTERS, LOOK_S),
    Fault("20", "a member comes and goes every 10 s", _flapping,
          Verdict.OK, CauseKind.FLAPPING, None),
    Fault("21", "two Java clients with one id", _twins("JAVA"),
          Verdict.STALLED, CauseKind.SHARED_ID, LOOK_S + 15),
    Fault("22", "two Python clients with one id", _twins("PYTHON"),
          Verdict.OK, CauseKind.SHARED_ID, None),
    Fault("23", "the broker hangs", _hung,
          Verdict.UNKNOWN, CauseKind.BROKER_SILENT, 10),
)  # fmt: skip


# --- healthy --------------------------------------------------------------------------------------


def _bursts() -> Group:
    """3,000 messages in a minute, every hour; they are worked off in two or three."""

    def rate(at_ms: int) -> float:
        return 50.0 if at_ms % (60 * MINUTE) in range(20 * MINUTE, 21 * MINUTE) else 0.5

    def listener(group: Group, client: Client, queue: Queue, m: Stored, at_ms: int) -> Call:
        return Call(200)

    return Group("bursts", rate, listener, threads=5)


def _long_calls() -> Group:
    def listener(group: Group, client: Client, queue: Queue, m: Stored, at_ms: int) -> Call:
        return Call(90_000)

    return Group("long-calls", lambda at: 0.1, listener)


def _retries() -> Group:
    """One in ten fails once."""

    def listener(group: Group, client: Client, queue: Queue, m: Stored, at_ms: int) -> Call:
        return Call(20, bool(m.tries) or int(m.key[1:]) % 10 != 0)

    return Group("retries", lambda at: 2, listener)


def _filter() -> Group:
    def sends(number: int, at_ms: int) -> tuple[str, str]:
        return f"k{number}", "rare" if number % 1_000 == 0 else "paid"

    return Group("one-in-1000", lambda at: 2, sends=sends, expression="rare")


HEALTHY: dict[str, Callable[[], Group]] = {
    "steady": lambda: Group("steady", lambda at: 2),
    "two members": lambda: Group("two", lambda at: 2, clients=2),
    "in order": lambda: Group("orderly", lambda at: 2, orderly=True),
    "bursts of 3,000": _bursts,
    "a filter for one in 1,000": _filter,
    "a listener of 90 s": _long_calls,
    "one in ten fails once": _retries,
    "lite pull": lambda: Group("lite", lambda at: 2, consume_type="CONSUME_ACTIVELY"),
    "idle": lambda: Group("idle", lambda at: 0),
}
