"""The common ground of the services of ``Admin``: connections and the memory of sweeps they share,
operations they declare.

Law: the memory is lent to one sweep at a time, and bounded. An operation is declared once, as a
method marked ``question`` or ``change``; the blocking face and the awaited one are both made from
it. Its arguments are checked here and nowhere else.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from types import MethodType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from rocketstream import limits
from rocketstream._util.clock import Clock
from rocketstream.admin.wire.looking import AdminWire
from rocketstream.checks import check_call
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.errors import ClientStateError

if TYPE_CHECKING:  # topics are listed without them
    from rocketstream.admin.core.joining import BrokerAnswers, Times
    from rocketstream.admin.messages.masking import Masking
    from rocketstream.admin.messages.shown import Showing
    from rocketstream.admin.safety import AuditLog, ChangeGate
    from rocketstream.admin.state import ClusterState, GroupState, QueueState

P = ParamSpec("P")
R = TypeVar("R")
Spot = tuple[str, int, int]
"""Topic, queue and offset."""


@dataclass(slots=True)
class BrokerMemory:
    """The remembered answers of one broker.

    Attributes:
        delayed: the group of each message waiting for its delay, by delay level and offset; blank
            where the message is not a group's retry.
        ahead_ms: by how much its clock was ahead of ours when it was last asked.
    """

    delayed: dict[int, dict[int, str]] = field(default_factory=dict)
    ahead_ms: int | None = None
    _times: dict[Spot, Times] = field(default_factory=dict)
    _used: dict[Spot, Times] = field(default_factory=dict)
    _ends: dict[tuple[str, int], int] = field(default_factory=dict)

    def times_at(self, queue: QueueState) -> Times | None:
        """Return the store times at a group's place; they do not change while it stands there."""
        times = self._times.get(spot(queue))
        if times is not None:
            self._used[spot(queue)] = times
        return times

    def keep_times(self, queue: QueueState, times: Times) -> None:
        """Remember store times that were answered."""
        if times[0] is not None:
            self._used[spot(queue)] = times

    def compare_ends(self, broker: BrokerAnswers) -> None:
        """Forget queues that have fewer messages than before: they were deleted and made again."""
        renewed: set[tuple[str, int]] = set()
        for topic, ends in broker.ends.items():
            for queue_id, held in ends.items():
                if held.max_offset < self._ends.get((topic, queue_id), 0):
                    renewed.add((topic, queue_id))
                self._ends[topic, queue_id] = held.max_offset
        if renewed:
            self._times = {at: t for at, t in self._times.items() if at[:2] not in renewed}

    def end_sweep(self, everything: bool) -> None:
        """Keep the used answers; of the rest keep those a smaller sweep did not look at."""
        kept = {} if everything else self._times
        if len(kept) + len(self._used) > limits.ADMIN_STORE_TIMES_MAX:
            kept = {}
        self._times = {**kept, **self._used}
        self._used = {}
        stood_in = {at[:2] for at in self._times}  # the ends of others tell nothing
        self._ends = {queue: end for queue, end in self._ends.items() if queue in stood_in}

    def forget_delivered(self, level: int, first: int) -> range:
        """Forget delivered messages; return the known offsets from ``first`` on."""
        known = self.delayed.setdefault(level, {})
        if sum(map(len, self.delayed.values())) > limits.ADMIN_DELAYED_KEPT_MAX:
            known.clear()
        for offset in [offset for offset in known if offset < first]:
            del known[offset]
        return range(first, max(known, default=first - 1) + 1)

    def delayed_by_topic(self) -> dict[str, int]:
        """Return how many messages wait for their delay, by the topic they will go to."""
        found: dict[str, int] = {}
        for known in self.delayed.values():
            for topic in known.values():
                found[topic] = found.get(topic, 0) + 1
        return found


@dataclass(slots=True)
class SweepMemory:
    """The memory of one ``Admin`` of its cluster, or of those that took it over one by one.

    Attributes:
        brokers: the answers of each broker, by its name.
        seen: cluster, and when it was last registered, of each broker by its name: one may vanish.
        queues: the queues each broker reported of each group, in case it falls silent.
        routes: how many queues each broker has of a topic, by topic, while a broker is silent.
    """

    brokers: dict[str, BrokerMemory] = field(default_factory=dict)
    seen: dict[str, tuple[str, float]] = field(default_factory=dict)
    queues: dict[str, dict[str, frozenset[tuple[str, int]]]] = field(default_factory=dict)
    routes: dict[str, dict[str, int]] = field(default_factory=dict)

    def recall(self, groups: Iterable[GroupState], now: ClusterState, now_ms: float) -> bool:
        """Take queues of groups at brokers that are registered no more, as a sweep before this
        memory began told of them; return whether there were such brokers.

        Args:
            now: the first sweep since.
            now_ms: the time of the clock that ``seen`` is by.
        """
        here = {broker.broker_name: broker.cluster for broker in now.brokers}
        lost: dict[str, dict[str, frozenset[tuple[str, int]]]] = {}
        for state in groups:
            for queue in state.queues:
                if queue.broker_name not in here:
                    told = lost.setdefault(queue.broker_name, {})
                    known = told.get(state.group, frozenset())
                    told[state.group] = known | {(queue.topic, queue.queue_id)}
        self.queues = {**self.queues, **lost}
        cluster = next(iter(here.values()), "")
        self.seen = {**self.seen, **dict.fromkeys(lost, (cluster, now_ms))}
        return bool(lost)


def spot(queue: QueueState) -> Spot:
    """Return where a group's next message is: deleted ones will not be consumed."""
    following = max(queue.committed_offset or 0, queue.min_offset or 0)
    return queue.topic, queue.queue_id, following


class Reach:
    """One cluster within reach: the connections, the clock and the rules all services share.

    Args:
        timeout_ms: bound of one request.
        audit: where changes are written down; None writes nothing.
        read_only: whether every change is refused.
        masking: which parts of messages are hidden; None takes the environment's rules.
        producer_settings: connect a producer to the same cluster.
    """

    def __init__(
        self,
        client: BlockingAdminClient,
        timeout_ms: int,
        clock: Clock,
        *,
        audit: AuditLog | None = None,
        read_only: bool = False,
        masking: Masking | None = None,
        producer_settings: dict[str, Any] | None = None,
    ) -> None:
        self.client = client
        self.wire: AdminWire = AdminWire(client, timeout_ms)
        self.timeout_ms = timeout_ms
        self.clock = clock
        self.read_only = read_only
        self.masking = masking
        self.producer_settings: dict[str, Any] = producer_settings or {}
        self.memory: SweepMemory = SweepMemory()
        self.is_closed = False
        self._audit = audit

    @property
    def gate(self) -> ChangeGate:
        """Admits changes, or refuses them."""
        from rocketstream.admin.safety import ChangeGate  # most commands only look

        return ChangeGate(self.client, self.timeout_ms, self._audit, read_only=self.read_only)

    def check_open(self) -> None:
        """Raise if the ``Admin`` is closed.

        Raises:
            ClientStateError: it is.
        """
        if self.is_closed:
            raise ClientStateError("this Admin is closed; make a new one")


class Service:
    """The operations of ``Admin`` on one thing; it keeps nothing of the cluster itself."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._client = reach.client
        self._wire = reach.wire
        self._clock = reach.clock
        self._timeout_ms = reach.timeout_ms
        self._made_showing: Showing | None = None

    @property
    def _changes(self) -> ChangeGate:
        return self._reach.gate

    @property
    def _showing(self) -> Showing:
        from rocketstream.admin.messages.shown import Showing  # most operations show no message

        # No cached_property: Python 3.11 has a lock in it, and Spark's pickler takes this class.
        if self._made_showing is None:
            self._made_showing = Showing(self._reach.masking)
        return self._made_showing


class Awaited:
    """The face of a service whose operations are awaited.

    Args:
        call: runs a call on a thread; told whether it is to be completed even when cancelled.
    """

    def __init__(
        self, call: Callable[[bool, Callable[[], Any]], Coroutine[Any, Any, Any]], service: Service
    ) -> None:
        self._call = call
        self._service = service


class Operation(Generic[P, R]):
    """A method of a service, as both faces have it."""

    def __init__(self, method: Callable[Concatenate[Any, P], R], *, is_change: bool) -> None:
        @functools.wraps(method)
        def call(service: Service, /, *args: P.args, **kwargs: P.kwargs) -> R:
            check_call(method, (service, *args), kwargs)
            service._reach.check_open()
            return method(service, *args, **kwargs)

        @functools.wraps(method)
        async def awaited(face: Awaited, /, *args: P.args, **kwargs: P.kwargs) -> Any:
            run = functools.partial(call, face._service, *args, **kwargs)
            return await face._call(is_change, run)

        self.is_change = is_change
        self._call, self._awaited = call, awaited

    @overload
    def __get__(self, face: None, kind: type) -> Callable[..., Any]: ...
    @overload
    def __get__(self, face: Awaited, kind: type) -> Callable[P, Coroutine[Any, Any, R]]: ...
    @overload
    def __get__(self, face: Service, kind: type) -> Callable[P, R]: ...
    def __get__(self, face: Awaited | Service | None, kind: type) -> Callable[..., Any]:
        function: Callable[..., Any] = self._awaited if issubclass(kind, Awaited) else self._call
        return function if face is None else MethodType(function, face)


def question(method: Callable[Concatenate[Any, P], R]) -> Operation[P, R]:
    """Mark a method as one that only looks: awaited, it ends early when it is cancelled."""
    return Operation(method, is_change=False)


def change(method: Callable[Concatenate[Any, P], R]) -> Operation[P, R]:
    """Mark a method as one that changes a cluster: once begun it is always completed."""
    return Operation(method, is_change=True)
