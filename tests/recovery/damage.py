"""``python -m tests.recovery.damage --trials 10000``: stores damaged while stopped, then opened.

Law: a trial is drawn from its number. Whatever was damaged, what a group had not consumed comes as
it was sent, or the broker says in words what it refuses, passes or mended; nothing is lost or
altered in silence.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rocketstream.errors import RocketMQError, StoreDamagedError
from rocketstream.protocol.bodies import TopicConfig
from rocketstream.protocol.message_ext import decode_messages
from rocketstream.server.broker import Broker, BrokerConfig
from rocketstream.server.broker.messages import InnerMessage, MessageWriter
from rocketstream.server.store import StoreConfig
from rocketstream.testing.clock import ManualClock
from tests.kits.stores import HOST, QuickFiles

PAGE_BYTES = 512
TOPIC, GROUP, QUEUES = "T", "G", 2
MESSAGES, CONSUMED = 60, 10
ALLOWED = ("same", "repeated", "refused", "told")
Facts = tuple[str, bytes, str, tuple[tuple[str, str], ...]]


@dataclass
class Trial:
    """One damage and what became of it."""

    number: int
    base: str
    damage: str
    outcome: str = ""
    words: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether the outcome is one that may be."""
        return self.outcome in ALLOWED

    def __str__(self) -> str:
        said = "; ".join(self.words)[:300] or "nothing said"
        return f"trial {self.number} ({self.base}): {self.damage}: {self.outcome}: {said}"


class _Words(logging.Handler):
    """Keeps what a broker says from WARNING on."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextmanager
def _listening() -> Iterator[list[str]]:
    words, root = _Words(), logging.getLogger("rocketstream")
    propagate, root.propagate = root.propagate, False
    root.addHandler(words)
    try:
        yield words.lines
    finally:
        root.removeHandler(words)
        root.propagate = propagate


def _broker(root: Path, clock: ManualClock, *, verified: int) -> Broker:
    store = StoreConfig(
        commit_log_file_bytes=8192,
        consume_queue_file_bytes=400,
        index_slots=50,
        index_entries=200,
        verify_bytes_max=verified,
        memory_bytes=1,
    )
    config = BrokerConfig(host="127.0.0.1", broker_port=0, store_config=store)
    return Broker(config, root, clock, files=QuickFiles())


# --- the stores -----------------------------------------------------------------------------------


def _fill(broker: Broker, begin: int, end: int) -> None:
    writer = MessageWriter(broker.controller)
    for number in range(begin, end):
        properties = {"KEYS": f"k{number}", "TAGS": "AB"[number % 2], "u": f"v{number}"}
        body = b"%04d" % number * (1 + number % 30)
        message = InnerMessage(
            TOPIC, number % QUEUES, body, properties, 0, 0, 1_700_000_000_000, HOST, HOST
        )
        writer.put(message)


async def _make(root: Path, older: Path, *, kill: bool, removed: int) -> None:
    """Make a store in two runs; what the first leaves is yesterday's copy.

    Args:
        removed: files that retention takes from the beginning of the log.
    """
    clock = ManualClock()
    broker = _broker(root, clock, verified=1 << 30)
    await broker.start()
    await broker.controller.put_topic(TopicConfig(TOPIC, QUEUES, QUEUES))
    if removed:  # with a part of the messages
        other = InnerMessage("P", 0, bytes(4000), {}, 0, 0, 1_700_000_000_000, HOST, HOST)
        MessageWriter(broker.controller).put(other)
    _fill(broker, 0, MESSAGES // 2)
    for queue in range(QUEUES):
        broker.controller.offsets.commit(GROUP, TOPIC, queue, CONSUMED // 2)
    await broker.close()
    shutil.copytree(root, older)
    clock.advance(3_600_000)
    broker = _broker(root, clock, verified=1 << 30)
    await broker.start()
    _fill(broker, MESSAGES // 2, MESSAGES)
    for queue in range(QUEUES):
        broker.controller.offsets.commit(GROUP, TOPIC, queue, CONSUMED)
    if removed:
        broker.store.flush()
        broker.store._drop_log_files(removed)
    if kill:
        broker.store.flush()
        broker._persistence.close()
        shutil.copytree(root, root.with_name(f"{root.name}-killed"))
    await broker.close()
    if kill:
        shutil.rmtree(root)
        root.with_name(f"{root.name}-killed").rename(root)


# --- what a group gets ----------------------------------------------------------------------------


def _facts(record: bytes) -> list[tuple[int, Facts]]:
    found = []
    for message in decode_messages(record):
        properties = tuple(sorted(message.properties.items()))
        told = (message.topic, bytes(message.body), message.keys or "", properties)
        found.append((message.queue_offset, told))
    return found


def _consume(broker: Broker, refused: list[str]) -> dict[int, dict[int, Facts]]:
    """Return what the group gets from where it is, by queue and offset."""
    controller, store = broker.controller, broker.store
    config = controller.topics.get(TOPIC)
    got: dict[int, dict[int, Facts]] = {}
    for queue in range(config.read_queue_nums if config else 0):
        got[queue] = {}
        offset = controller.offsets.query(GROUP, TOPIC, queue)
        if offset is None or offset < 0:
            fresh = store.min_offset(TOPIC, queue) == 0 and store.first_entry_in_memory(
                TOPIC, queue
            )
            offset = 0 if fresh else store.max_offset(TOPIC, queue)
        while offset < store.max_offset(TOPIC, queue):
            try:
                result = store.get(TOPIC, queue, offset, 32)
            except StoreDamagedError as error:
                refused.append(error.message)
                break
            for part in result.records:
                for number, facts in _facts(part):
                    if offset <= number < result.next_begin_offset:  # as a careful client does
                        got[queue][number] = facts
            offset = max(result.next_begin_offset, offset + 1)
    return got


Expected = dict[int, dict[int, Facts]]


async def _read_all(root: Path) -> Expected:
    """Return every message of an undamaged store."""
    broker = _broker(root, ManualClock(), verified=1 << 30)
    await broker.start()
    for queue in range(QUEUES):
        broker.controller.offsets.commit(GROUP, TOPIC, queue, 0)
    found = _consume(broker, [])
    await broker.close()
    return found


async def _judge(trial: Trial, root: Path, expected: Expected, verified: int) -> None:
    with _listening() as words:
        broker = _broker(root, ManualClock(1_700_010_000_000), verified=verified)
        refused: list[str] = []
        try:
            await broker.start()
        except RocketMQError as error:
            trial.outcome, trial.words = "refused", [error.message]
            return
        try:
            got = _consume(broker, refused)
            broker.store.query_by_key(TOPIC, "k7", 32, 0, 1 << 60)
        finally:
            broker.store.abandon()
            await broker.close()
        trial.words = words + refused
    trial.outcome = _verdict(got, expected, bool(trial.words))


def _verdict(got: dict[int, dict[int, Facts]], expected: Expected, told: bool) -> str:
    lost = altered = repeated = 0
    for queue, messages in expected.items():
        have = got.get(queue, {})
        for offset, facts in messages.items():
            if offset in have:
                altered += have[offset] != facts
                repeated += offset < CONSUMED
            else:
                lost += offset >= CONSUMED
        altered += len(have.keys() - messages.keys())
    if altered:
        return f"ALTERED {altered}"
    if lost:
        return "told" if told else f"LOST {lost}"
    return "repeated" if repeated else "same"


# --- the damage -----------------------------------------------------------------------------------


def _data_end(data: bytes | bytearray) -> int:
    return max(len(data.rstrip(b"\0")), 1)


def _flip(path: Path, chance: random.Random, _: Path) -> str:
    data = bytearray(path.read_bytes() or b"\0")
    at, bit = chance.randrange(_data_end(data)), chance.randrange(8)
    data[at] ^= 1 << bit
    path.write_bytes(data)
    return f"bit {bit} of byte {at} flips"


def _truncate(path: Path, chance: random.Random, _: Path) -> str:
    data = path.read_bytes()
    size = chance.randrange(_data_end(data))
    path.write_bytes(data[:size])
    return f"truncated to {size}"


def _zero_page(path: Path, chance: random.Random, _: Path) -> str:
    data = bytearray(path.read_bytes())
    at = chance.randrange(_data_end(data)) // PAGE_BYTES * PAGE_BYTES
    page = data[at : at + PAGE_BYTES]
    data[at : at + PAGE_BYTES] = bytes(len(page))
    path.write_bytes(data)
    return f"page at {at} zeroed"


def _exchange(path: Path, chance: random.Random, _: Path) -> str:
    others = [each for each in sorted(path.parent.iterdir()) if each.is_file() and each != path]
    cousins = sorted(path.parent.parent.glob(f"*/{path.name}"))
    others += [each for each in cousins if each != path and each.is_file()]
    if not others:
        return ""
    other = chance.choice(others)
    mine, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(mine)
    return f"exchanged with {other.parent.name}/{other.name}"


def _older(path: Path, chance: random.Random, older: Path) -> str:
    if not older.exists():
        return ""
    shutil.copyfile(older, path)
    return "yesterday's copy"


def _delete(path: Path, chance: random.Random, _: Path) -> str:
    path.unlink()
    return "deleted"


KINDS: dict[str, Callable[[Path, random.Random, Path], str]] = {
    "flip": _flip,
    "truncate": _truncate,
    "zero page": _zero_page,
    "exchange": _exchange,
    "older": _older,
    "delete": _delete,
}


class Campaign:
    """Base stores and the trials drawn from them.

    Args:
        home: an empty directory.
    """

    BASES = ("stopped", "killed", "stopped long ago", "retained", "retained long ago")

    def __init__(self, home: Path) -> None:
        self._home = home
        self._expected: dict[str, Expected] = {}
        for name in ("stopped", "killed", "retained"):
            root, older = home / name, home / f"{name}-older"
            removed = int(name == "retained")
            asyncio.run(_make(root, older, kill=name == "killed", removed=removed))
            copy = home / "probe"
            shutil.copytree(root, copy)
            self._expected[name] = asyncio.run(_read_all(copy))
            shutil.rmtree(copy)
            found = sum(map(len, self._expected[name].values()))
            assert found == MESSAGES or (removed and MESSAGES // 2 < found < MESSAGES - CONSUMED)

    def run(self, number: int) -> Trial:
        """Run one trial; raises what the broker must not raise."""
        chance = random.Random(number)
        base = chance.choice(self.BASES)
        with self._copy(base) as root:
            files = [each for each in sorted(root.rglob("*")) if each.is_file()]
            kinds = sorted({_kind(root, each) for each in files} - {"lock"})
            kind = chance.choice(kinds)
            path = chance.choice([each for each in files if _kind(root, each) == kind])
            where = path.relative_to(root)
            how = chance.choice(sorted(KINDS))
            text = KINDS[how](path, chance, self._home / f"{_store_of(base)}-older" / where)
            trial = Trial(number, base, f"{where}: {text or 'nothing to do'}")
            self._judge(trial, root)
            return trial

    def run_undamaged(self, base: str) -> Trial:
        """Open a store as it was made: whatever is said or refused has no cause."""
        trial = Trial(-1, base, "nothing")
        with self._copy(base) as root:
            self._judge(trial, root)
        return trial

    @contextmanager
    def _copy(self, base: str) -> Iterator[Path]:
        # Alone in its directory: files that are exchanged must not be those of another store.
        root = self._home / "trial" / "store"
        shutil.copytree(self._home / _store_of(base), root)
        try:
            yield root
        finally:
            shutil.rmtree(root.parent)

    def _judge(self, trial: Trial, root: Path) -> None:
        verified = 1_000 if trial.base.endswith("long ago") else 1 << 30
        asyncio.run(_judge(trial, root, self._expected[_store_of(trial.base)], verified))


def _store_of(base: str) -> str:
    return base.removesuffix(" long ago")


def _kind(root: Path, path: Path) -> str:
    """Files of one kind are drawn as often as those of another."""
    where = path.relative_to(root)
    if where.parts[0] == "config":
        return where.name
    return where.parts[0]


def main(arguments: list[str] | None = None) -> int:
    """Run a campaign and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first trial")
    given = parser.parse_args(arguments)
    outcomes: Counter[str] = Counter()
    failed = []
    with tempfile.TemporaryDirectory() as home:
        campaign = Campaign(Path(home))
        for number in range(given.first, given.first + given.trials):
            try:
                trial = campaign.run(number)
            except Exception as error:
                trial = Trial(number, "?", "?", f"RAISED {type(error).__name__}", [str(error)])
            outcomes[trial.outcome.split()[0]] += 1
            if not trial.ok:
                failed.append(trial)
                sys.stdout.write(f"{trial}\n")
                sys.stdout.flush()
    sys.stdout.write(f"{given.trials} trials: {dict(outcomes.most_common())}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
