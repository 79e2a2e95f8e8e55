"""The faults of a run, their times and durations, all drawn from the seed."""

from __future__ import annotations

import errno
import functools
import math
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import NamedTuple

from rocketstream.limits import LOCK_GRACE_MS
from rocketstream.protocol.names import (
    SCHEDULE_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
)
from rocketstream.server.store.consume_queue import UNIT
from rocketstream.server.store.key_index import HEADER_BYTES
from rocketstream.testing.history.events import ClockJumped, Disturbed
from rocketstream.testing.sim.cluster import Cluster, SimBroker
from rocketstream.testing.sim.disk import Disk, Flip, Trouble
from rocketstream.testing.sim.network import Endpoint
from rocketstream.testing.sim.options import FLIP_AT_WORK, IN_HANDSHAKE, SLOW_DISK, STATE_FILE
from rocketstream.testing.sim.world import Node, World

_HOUR_MS = 3_600_000
MOMENTS = (
    ("write", "/commitlog/"),
    ("sync", "/commitlog/"),
    ("write", "/consumequeue/"),
    ("sync", "/consumequeue/"),
    ("write", "/checkpoint"),
    ("sync", "/checkpoint"),
    ("write", "/config/"),
    ("rename", "/config/"),
    ("unlink", ""),
)
"""Changes of files that the broker may be ended at: the kind of change, and a part of the name."""
_STOPS_WITHIN_S = 5.0
_CUT_WITHIN_S = 30.0
"""A connection chosen to be cut usually carries the drawn number of bytes within this time."""
_HANDSHAKE_BYTES = 1_500
_FOUND_OUT_S = 45.0
"""A client has noticed a connection that went silent: its pulls and heartbeats have timed out."""
_LOG, _QUEUES, _INDEX = "/commitlog/", "/consumequeue/", "/index/"
_WAITING = {name.encode() for name in (SCHEDULE_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC)}
"""Topics of messages that are named and passed where they are damaged, as they hold nobody up."""
UNIT_COMPARED = 12
"""So many bytes of a unit are compared: all but the code of the tag."""
_CHECKPOINT = "/store/checkpoint"
_BODY_AT = 84
"""Position of the body length in a record with IPv4 hosts."""
_Strike = tuple[tuple[str, str], int, Callable[[Node], bool]]
"""Which change of a file a broker ends at, how many of them are left until then, and how."""


class Faults:
    """Makes faults happen in one world until ``end``.

    Args:
        world: with its cluster and its clients.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = world.random("faults")
        self._active = False
        self._cluster: Cluster = world.cluster
        self._flipped: list[tuple[Node, str, Flip]] = []
        self._strikes: dict[Node, list[_Strike]] = defaultdict(list)
        self._server_ended_ms = -math.inf
        self._table: dict[str, Callable[[], bool]] = {
            "delay": self._delay,
            "stall": self._stall,
            "reset": self._reset,
            "cut in mid-frame": self._cut,
            "silence": self._silence,
            "partition": lambda: self._partition(both=True),
            "one-sided partition": lambda: self._partition(both=False),
            "broker killed": lambda: self._kill(self._one_of("broker")),
            "broker power loss": lambda: self._power(self._one_of("broker")),
            "name server killed": lambda: self._kill(self._one_of("name server")),
            "client killed": lambda: self._kill(self._one_of("client")),
            "client power loss": lambda: self._power(self._one_of("client")),
            "broker paused": lambda: self._pause(self._one_of("broker")),
            "client paused": lambda: self._pause(self._one_of("client")),
            "clock jump": self._jump,
            "short writes": lambda: self._trouble(short_write=0.2),
            "short reads": lambda: self._trouble(short_read=0.2),
            "EIO on write": lambda: self._trouble(eio_write=0.05),
            "EIO on read": lambda: self._trouble(eio_read=0.3),
            "EIO on sync": lambda: self._trouble(eio_sync=0.2),
            "disk full": lambda: self._trouble(full=True),
            SLOW_DISK: lambda: self._trouble(slow_s=self._chance.choice((0.5, 6.0))),
            "bit flip": self._flip,
            FLIP_AT_WORK: self._flip_at_work,
            STATE_FILE: self._damage,
            "broker stopped": self._stop,
            "queue added": self._add_queue,
            IN_HANDSHAKE: self._strike_next,
            "broker killed at a write": lambda: self._strike(self._kill),
            "broker power loss at a write": lambda: self._strike(self._power),
        }

    def begin(self) -> None:
        """Let faults happen from now on."""
        self._active = True
        if self._world.options.faults:
            self._next()

    def _next(self) -> None:
        mean_s = self._world.options.fault_interval_ms / 1000
        pause_s = self._chance.expovariate(1 / mean_s)
        self._world.scheduler.call_later(pause_s, self._one)

    def _one(self) -> None:
        if not self._active:
            return
        kind = self._chance.choice(self._world.options.faults)
        if self._table[kind]():
            self._world.faults[kind] += 1
        self._next()

    def end(self) -> None:
        """End every fault: network and disks work, every process runs, clocks are right."""
        self._active = False
        world = self._world
        world.network.strike = None
        world.network.heal()
        for place in list(self._flipped):
            self._put_right(*place)
        for node in world.nodes.values():
            node.disk.on_change = None
            node.disk.trouble = Trouble()
            jump_ms = -node.clock.skew_ms
            world.history.append(ClockJumped(world.now_ms, node.name, jump_ms))
            node.clock.jump(jump_ms)
            node.wake()
            if not node.is_alive:
                node.start()
        for broker in self._cluster.brokers:
            if broker.broker is not None and not broker.broker.store.is_writable:
                broker.restart()
                self._told(f"{broker.name} is stopped and started", _STOPS_WITHIN_S)

    def count_disks(self) -> Counter[str]:
        """Return what happened on all disks, by kind."""
        return sum((node.disk.counts for node in self._world.nodes.values()), Counter())

    # --- choices ----------------------------------------------------------------------------------

    def _told(self, text: str, lasts_s: float = 0.0) -> bool:
        now = self._world.now_ms
        self._world.history.append(Disturbed(now, now + lasts_s * 1000, text))
        self._world.trace.add(f"fault: {text}")
        return True

    def _one_of(self, kind: str) -> Node:
        return self._chance.choice([n for n in self._world.nodes.values() if n.kind == kind])

    def _broker(self) -> SimBroker:
        return self._chance.choice(self._cluster.brokers)

    def _may_end(self, node: Node) -> bool:
        """Tell whether a process may be ended; of servers this is the last for a while."""
        now = self._world.now_ms
        if node.kind != "client":
            if now - self._server_ended_ms < self._world.options.apart_ms:
                return False
            self._server_ended_ms = now
        return True

    def _later(self, low_s: float, high_s: float, callback: Callable[[], object]) -> float:
        pause_s = self._chance.uniform(low_s, high_s)
        self._world.scheduler.call_later(pause_s, callback)
        return pause_s

    def _hosts(self) -> tuple[str, str]:
        first, second = self._chance.sample(sorted(self._world.network.hosts), 2)
        return first, second

    # --- network ----------------------------------------------------------------------------------

    def _delay(self) -> bool:
        network, (source, target) = self._world.network, self._hosts()
        extra_s = self._chance.choice((0.05, 0.5, 3.0))
        network.slow_down(source, target, extra_s)
        lasts = self._later(0.5, 5.0, lambda: network.slow_down(source, target, 0.0))
        return self._told(f"{source} to {target} up to {extra_s} s slower for {lasts:.1f} s", lasts)

    def _stall(self) -> bool:
        streams = self._world.network.connections()
        if not streams:
            return False
        stream = self._chance.choice(streams)
        seconds = self._chance.choice((0.2, 0.4, 1.0, 3.0))
        stream.stall(seconds)
        return self._told(
            f"a segment of {stream.source.local} > {stream.target.local} is lost", seconds
        )

    def _reset(self) -> bool:
        streams = self._world.network.connections()
        if not streams:
            return False
        stream = self._chance.choice(streams)
        stream.break_both()
        return self._told(f"connection {stream.source.local} > {stream.target.local} is reset")

    def _cut(self) -> bool:
        streams = self._world.network.connections()
        if not streams:
            return False
        stream = self._chance.choice(streams)
        stream.cut_after(self._chance.randint(1, 400))
        text = f"{stream.source.local} > {stream.target.local} will be cut"
        return self._told(text, _CUT_WITHIN_S)

    def _silence(self) -> bool:
        streams = self._world.network.connections()
        if not streams:
            return False
        stream = self._chance.choice(streams)
        stream.silence()
        both = self._chance.random() < 0.5
        if both and stream.target.out is not None:
            stream.target.out.silence()
        arrow = "<>" if both else ">"
        text = f"connection {stream.source.local} {arrow} {stream.target.local} goes silent"
        return self._told(text, _FOUND_OUT_S)

    def _strike_next(self) -> bool:
        """Have the next connection fail before it is usable; counted when it happens."""
        self._world.network.strike = self._struck
        return False

    def _struck(self, mine: Endpoint) -> None:
        assert mine.out is not None
        assert mine.incoming is not None
        streams, chance = (mine.out, mine.incoming), self._chance
        how = chance.choice(("cut", "silent", "half silent", "answered by another"))
        if how == "cut":
            chance.choice(streams).cut_after(chance.randint(1, _HANDSHAKE_BYTES))
        elif how == "answered by another":
            mine.incoming.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            mine.incoming.cut_after(100)
        for stream in streams if how == "silent" else ():
            stream.silence()
        if how == "half silent":
            chance.choice(streams).silence()
        self._world.faults[IN_HANDSHAKE] += 1
        self._told(f"{mine.local} > {mine.remote} begins {how}", _FOUND_OUT_S)

    def _partition(self, *, both: bool) -> bool:
        network = self._world.network
        if self._chance.random() < 0.4:
            pairs = [self._hosts()]
        else:
            alone = self._chance.choice(sorted(network.hosts))
            pairs = [(alone, other) for other in network.hosts if other != alone]
            if not both and self._chance.random() < 0.5:
                pairs = [(other, mine) for mine, other in pairs]
        ways = pairs + [(b, a) for a, b in pairs] if both else pairs
        for way in ways:
            network.block(*way)

        def heal() -> None:
            for way in ways:
                network.unblock(*way)

        lasts = self._later(0.2, 8.0 if self._chance.random() < 0.8 else 45.0, heal)
        return self._told(f"blocked for {lasts:.1f} s: {ways}", lasts)

    # --- processes --------------------------------------------------------------------------------

    def _kill(self, node: Node) -> bool:
        if not node.is_alive or not self._may_end(node):
            return False
        node.kill()
        node.restart_later(self._chance.choice((0.05, 0.3, 1.0, 4.0)))
        return self._told(f"{node.name} is killed")

    def _power(self, node: Node) -> bool:
        if not node.is_alive:
            return False
        if node.kind == "broker":
            self._world.power_lost = True
        node.lose_power()
        node.restart_later(self._chance.choice((0.5, 2.0, 6.0)))
        return self._told(f"{node.name} loses power")

    def _stop(self) -> bool:
        """Stop a broker as an operator does, and start it again."""
        broker = self._broker()
        if not broker.is_ready or not self._may_end(broker.node):
            return False
        broker.restart()
        return self._told(f"{broker.name} is stopped and started", _STOPS_WITHIN_S)

    def _strike(self, end: Callable[[Node], bool]) -> bool:
        """Have a broker end where it changes a file next but a few; counted when it happens."""
        node = self._one_of("broker")
        moment, times = self._chance.choice(MOMENTS), self._chance.randint(1, 4)
        self._strikes[node].append((moment, times, end))
        node.disk.on_change = functools.partial(self._has_done, node)
        return False

    def _has_done(self, node: Node, what: str, name: str) -> None:
        """End a broker, which has just done something to a file, where that is drawn."""
        if not node.is_alive:
            return
        strikes = self._strikes[node]
        for number, ((kind, part), left, end) in enumerate(strikes):
            if kind != what or part not in name:
                continue
            strikes[number] = (kind, part), left - 1, end
            if left == 1:
                del strikes[number]
                end(node)
                by = "killed" if end == self._kill else "power loss"
                self._world.faults[f"broker {by} at a write"] += 1
                raise OSError(errno.EBADF, "this simulated process has just ended")

    def _add_queue(self) -> bool:
        """Have the workload's topic have one queue more, as an operator does."""
        return self._broker().add_queue() and self._told("a queue is added")

    def _pause(self, node: Node) -> bool:
        if not node.is_alive or node.loop.is_paused:
            return False
        long = self._world.options.fault_ms > 30_000
        seconds = self._chance.choice((0.1, 1.0, 4.0, 40.0, 70.0) if long else (0.1, 0.5, 1.0, 4.0))
        node.pause(seconds)
        return self._told(f"{node.name} is paused for {seconds} s")

    def _jump(self) -> bool:
        node = self._chance.choice(list(self._world.nodes.values()))
        by_ms = self._chance.choice((-_HOUR_MS, -5_000, 5_000, 60_000, _HOUR_MS, 80 * _HOUR_MS))
        node.clock.jump(by_ms)
        self._world.history.append(ClockJumped(self._world.now_ms, node.name, by_ms))
        return self._told(f"the clock of {node.name} jumps by {by_ms} ms")

    # --- disk -------------------------------------------------------------------------------------

    def _trouble(self, **shares: float) -> bool:
        node = self._one_of("broker")
        disk = node.disk
        for name, share in shares.items():
            setattr(disk.trouble, name, share)

        def end() -> None:
            for name in shares:
                setattr(disk.trouble, name, type(shares[name])(0))

        lasts = self._later(0.2, 3.0, end)
        return self._told(f"disk of {node.name} for {lasts:.1f} s: {shares}", lasts)

    def _flip(self) -> bool:
        """Flip a bit of a stored message body while the broker is down.

        Either the broker refuses to start, and then the bit is restored, or it has not read that
        part.
        """
        broker = self._one_of("broker")
        records = _records(broker.disk)
        if not records or not broker.is_alive:
            return False
        broker.kill()
        broker.restart_later(0.3)
        return self._flip_bit(broker, *self._chance.choice(records).place(None), lasts_s=0.35)

    def _flip_at_work(self) -> bool:
        """Flip a bit of a store while its broker runs, in what is compared with something.

        Of a record since the broker's start that is its place, and all by clients, but a condition
        is asked of its properties as they are. Of a unit it is all but the code of the tag.
        """
        broker, chance = self._one_of("broker"), self._chance
        part = chance.choice((_LOG, _QUEUES, _INDEX))
        if part == _LOG:
            records = [each for each in _records(broker.disk) if each.topic not in _WAITING]
            places = [each.place(chance.randrange(each.head_bytes)) for each in records]
        else:
            places = _bytes_of(broker.disk, part)
        disk = broker.disk
        flipped = {(name, flip.position) for node, name, flip in self._flipped if node is broker}
        places = [
            place for place in places if disk.may_be_read_again(*place) and place not in flipped
        ]
        if not places or not broker.is_alive:
            return False
        place = chance.choice(places)
        self._world.index_damaged |= part == _INDEX
        return self._flip_bit(broker, *place, lasts_s=chance.choice((0.1, 1.0, 4.0)))

    def _flip_bit(self, node: Node, name: str, position: int, *, lasts_s: float) -> bool:
        bit = self._chance.randrange(8)
        flip = node.disk.flip_bit(name, position, bit)
        if flip is not None:
            self._flipped.append((node, name, flip))
            self._world.scheduler.call_later(lasts_s, self._put_right, node, name, flip)
        return self._told(f"bit {bit} of byte {position} of {name} flips", lasts_s)

    def _damage(self) -> bool:
        """Flip a bit in a file of a broker's state while it is down; its backup is as good.

        Holders of queues have no backup: members in order wait until no lease can be relied on.
        """
        node = self._one_of("broker")
        names = [
            name
            for name, file in sorted(node.disk.files.items())
            if "/config/" in name and name.endswith(".json") and file.data
        ]
        if not names or not node.is_alive or not self._may_end(node):
            return False
        name = self._chance.choice(names)
        size, bit = len(node.disk.files[name].data), self._chance.randrange(8)
        position = self._chance.randrange(size)
        node.kill()
        node.disk.flip_bit(name, position, bit)
        node.restart_later(0.3)
        waits_s = LOCK_GRACE_MS / 1000 if "Locks" in name else 0.0
        return self._told(f"bit {bit} of byte {position} of {name} flips", waits_s)

    def _put_right(self, node: Node, name: str, flip: Flip) -> None:
        if (node, name, flip) not in self._flipped:
            return  # at the end of all faults, before its time
        self._flipped.remove((node, name, flip))
        node.disk.put_right(flip)
        self._told(f"byte {flip.position} of {name} is put right")


def _bytes_of(disk: Disk, part: str) -> list[tuple[str, int]]:
    """Return the bytes of queues' entries, but of tags, or of indexes behind their headers."""
    skip, size, count = (HEADER_BYTES, 4, 4) if part == _INDEX else (0, UNIT.size, UNIT_COMPARED)
    return [
        (name, at + byte)
        for name in sorted(name for name in disk.files if part in name)
        for data in [disk.files[name].data]
        for at in range(skip, len(data), size)
        if any(data[at : at + size])
        for byte in range(count)
    ]


class _Record(NamedTuple):
    """A record of a log: where it is, and what it holds."""

    name: str
    at: int
    body_bytes: int
    topic: bytes

    @property
    def head_bytes(self) -> int:
        """How many bytes stand before its properties."""
        return _BODY_AT + 5 + self.body_bytes + len(self.topic) + 2

    def place(self, byte: int | None) -> tuple[str, int]:
        """Return where one of its bytes is; None is in the middle of its body."""
        in_body = _BODY_AT + 4 + self.body_bytes // 2
        return self.name, self.at + (in_body if byte is None else byte)


def _records(disk: Disk) -> list[_Record]:
    """Return the records with a body of the commit log that are known to be on the disk.

    Never the last one: damage there is taken for a torn write, and reported as one.
    """
    marks, found = disk.files.get(_CHECKPOINT), []
    safe_offset = 0 if marks is None else int.from_bytes(marks.data[24:32], "big")
    for name in sorted(name for name in disk.files if _LOG in name):
        data, at = disk.files[name].data, 0
        safe = safe_offset - int(name.rpartition("/")[2])
        while at + _BODY_AT + 4 < min(len(data), safe):
            size = int.from_bytes(data[at : at + 4], "big")
            body = int.from_bytes(data[at + _BODY_AT : at + _BODY_AT + 4], "big")
            if size <= _BODY_AT or not 0 < body < size or at + size > safe:
                break
            topic_at = at + _BODY_AT + 5 + body
            topic = data[topic_at : topic_at + data[topic_at - 1]]
            found.append(_Record(name, at, body, topic))
            at += size
    return found[:-1]
