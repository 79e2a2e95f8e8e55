"""One sweep over a cluster: every group, topic and broker at one moment, for a bounded price.

Law: a broker that falls silent is not asked again in the same sweep. Brokers are asked in parallel;
``survey`` has the questions and their price, ``admin.core`` decides what the answers mean.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rocketstream import limits
from rocketstream.admin.core import joining
from rocketstream.admin.core.joining import BrokerAnswers
from rocketstream.admin.service import BrokerMemory, Reach
from rocketstream.admin.state import BrokerState, ClusterState, GroupState, TopicState, topic_kind
from rocketstream.admin.survey import (
    Survey,
    SweepScope,
    groups_at,
    keep_facts,
    keep_failure,
    let_in,
)
from rocketstream.admin.wire import questions
from rocketstream.admin.wire.looking import NO_BROKER, Asking, beside
from rocketstream.errors import (
    AccessDeniedError,
    BrokerError,
    ConnectError,
    RemoteProtocolError,
    RocketMQError,
    RouteNotFoundError,
    TransportError,
)
from rocketstream.protocol import names

if TYPE_CHECKING:
    from rocketstream.protocol.bodies import ConsumerRunningInfo

FILTER_ENTRIES_IN_SWEEP = 50_000
"""Most entries of consume queues looked at for one group's filter in a sweep over all groups."""


@dataclass(slots=True)
class Found:
    """The findings of a sweep."""

    taken_ms: int
    brokers: list[BrokerAnswers]
    requests: int = 1

    def outage(self) -> str | None:
        """Return why nothing at all is known; None where something is."""
        if not self.brokers:
            return NO_BROKER
        try:
            self.check_let_in()
        except AccessDeniedError as denial:
            return str(denial)
        return None

    def check_let_in(self) -> None:
        """Raise if every broker refuses these keys.

        Raises:
            AccessDeniedError: the first broker's refusal.
        """
        denials = [b.failure for b in self.brokers if isinstance(b.failure, AccessDeniedError)]
        if denials and len(denials) == len(self.brokers):
            raise denials[0]

    def check_told(self, known: Collection[object]) -> None:
        """Raise if no broker answered and nothing else is known: it must not look like an empty
        cluster.

        Raises:
            RouteNotFoundError: there is no broker.
            AccessDeniedError: every broker refuses access.
            ConnectError: no broker answered.
        """
        if not self.brokers:
            raise RouteNotFoundError(NO_BROKER)
        self.check_let_in()
        if not known and all(broker.error is not None for broker in self.brokers):
            raise ConnectError("; ".join(str(broker.error) for broker in self.brokers))


class Sweep:
    """Sweeps over a cluster.

    Args:
        reach: the cluster, and what earlier sweeps found out.
    """

    def __init__(self, reach: Reach) -> None:
        self._client = reach.client
        self._wire = reach.wire
        self._clock = reach.clock
        self._timeout_ms = reach.timeout_ms
        self._memory = reach.memory

    def group(
        self, group: str, topic: str | None = None, *, matching: bool = True, owners: bool = True
    ) -> GroupState:
        """Return one group at one moment; see ``Groups.state``."""
        names.check_group(group)
        if topic is not None:
            self._wire.route(topic)
        only = None if topic is None else frozenset({topic})
        entries_max = limits.FILTER_ENTRIES_MAX if matching else 0
        scope = SweepScope(
            lambda name: name == group, only, owners=owners, entries_max=entries_max, tps=True
        )
        found = self.look(scope)
        found.check_told([broker for broker in found.brokers if broker.knows(group)])
        if all(b.error is None for b in found.brokers) and not any(
            b.knows(group) or b.offsets is None or b.groups is None for b in found.brokers
        ):
            known = {each for broker in found.brokers for each in groups_at(broker)}
            raise joining.unknown_group(group, known)
        state = self.state_of(group, found, scope)
        if topic is None:
            self._keep_queues(found, [state], everything=False)
        return state

    def cluster(
        self,
        groups: Collection[str] | None = None,
        topics: Collection[str] | None = None,
        *,
        matching: bool = False,
        owners: bool = False,
    ) -> ClusterState:
        """Return everything at one moment; see ``Cluster.state``."""
        wanted = _wants(groups)
        scope = SweepScope(
            wanted,
            None if topics is None else frozenset(topics),
            all_topics=groups is None or topics is not None,
            owners=owners,
            entries_max=FILTER_ENTRIES_IN_SWEEP if matching else 0,
        )
        before_ms = self._clock.monotonic_ms()
        try:
            everything = groups is None and topics is None
            found = self.look(scope, everything)
        except (TransportError, BrokerError, RemoteProtocolError) as error:
            taken_ms = self._clock.now_ms()
            return ClusterState(taken_ms, 0, len(self._client.name_servers), error=str(error))
        known = {group for broker in found.brokers for group in _groups_of(broker)}
        states = {
            group: self.state_of(group, found, scope) for group in sorted(known) if wanted(group)
        }
        if topics is None:
            self._keep_queues(found, states.values(), everything=everything)
        return ClusterState(
            taken_ms=found.taken_ms,
            took_ms=round(self._clock.monotonic_ms() - before_ms),
            requests=found.requests,
            brokers=tuple(_broker_state(broker, found.taken_ms) for broker in found.brokers),
            topics=self._topic_states(found, scope, states, groups is None),
            groups=states,
            error=found.outage(),
        )

    def groups(self, topic: str | None = None) -> list[GroupState]:
        """Return every group at one moment; see ``Groups.all``."""
        if topic is not None:
            self._wire.route(topic)
        scope = SweepScope(_wants(None), None if topic is None else frozenset({topic}))
        found = self.look(scope)
        known = {group for broker in found.brokers for group in _groups_of(broker)}
        found.check_told(known)
        states = [self.state_of(g, found, scope) for g in sorted(known) if scope.wanted(g)]
        return states if topic is None else [state for state in states if state.queues]

    def topic(self, topic: str) -> TopicState:
        """Return one topic at one moment; see ``Topics.state``."""
        self._wire.route(topic)
        scope = SweepScope(lambda _: False, frozenset({topic}), all_topics=True)
        found = self.look(scope)

        def ask(broker: BrokerAnswers) -> int:
            asking = self._asking(broker)
            try:
                answer = asking.one(questions.consumers_of(topic))
            except TransportError as error:
                keep_failure(broker, error)
                return 1
            if isinstance(answer, RocketMQError):
                broker.refused["consumers"] = f"who consumes is not known: {answer}"
            else:
                broker.consumers = frozenset(answer)
            return 1

        found.check_let_in()
        beside(ask, [broker for broker in found.brokers if broker.error is None])
        told = [broker.consumers for broker in found.brokers if broker.consumers is not None]
        consumers = frozenset[str]().union(*told) if told else None
        return self._topic_state(topic, found, consumers)

    def brokers(self) -> tuple[BrokerState, ...]:
        """Return every broker, with its report about itself; see ``Brokers.states``."""
        brokers = self._registered()
        beside(self._introduce, brokers)
        taken_ms = self._clock.now_ms()
        return tuple(_broker_state(broker, taken_ms) for broker in brokers)

    # --- the sweep --------------------------------------------------------------------------------

    def look(self, scope: SweepScope, everything: bool = False) -> Found:
        brokers = self._registered()
        found = Found(self._clock.now_ms(), brokers)

        def survey(broker: BrokerAnswers) -> int:
            if broker.master is None:
                return 0
            asking = self._asking(broker)
            # Taken out: another sweep at the same time gets no memory, and its findings are not
            # kept.
            lent = self._memory.brokers.pop(broker.name, None)
            memory = lent or BrokerMemory()
            try:
                Survey(broker, asking, memory, scope, self._clock).run()
                memory.end_sweep(everything)
            finally:
                if lent is None:
                    self._memory.brokers.setdefault(broker.name, memory)
                else:
                    self._memory.brokers[broker.name] = lent
            return asking.requests

        found.requests += sum(beside(survey, brokers))
        if scope.owners:
            found.requests += self._ask_owners(brokers, scope)
        found.brokers += self._lost(brokers)
        for broker in found.brokers:
            if broker.error is not None:
                broker.remembered = dict(self._memory.queues.get(broker.name, {}))
        self._add_routed(found, scope)
        return found

    def _registered(self) -> list[BrokerAnswers]:
        found = []
        for name, data in sorted(self._wire.cluster_info().broker_addr_table.items()):
            broker = BrokerAnswers(data.cluster, name, dict(data.broker_addrs))
            if broker.master is None:
                broker.error = f"broker {name} has no master at the moment"
            found.append(broker)
        return found

    def _lost(self, brokers: Iterable[BrokerAnswers]) -> list[BrokerAnswers]:
        """Return recently registered brokers: a name server forgets a dead one at once."""
        now_ms = self._clock.monotonic_ms()
        here = {broker.name: (broker.cluster, now_ms) for broker in brokers}
        self._memory.seen = {**self._memory.seen, **here}
        lost = []
        for name, (cluster, seen_ms) in self._memory.seen.items():
            if name not in here and now_ms - seen_ms <= limits.ADMIN_LOST_BROKER_S * 1_000:
                text = f"broker {name} is registered with the name server no more"
                lost.append(BrokerAnswers(cluster, name, {}, error=text))
        self._memory.seen = {
            name: self._memory.seen[name] for name in [*here, *(broker.name for broker in lost)]
        }
        self._memory.queues = {
            name: groups
            for name, groups in self._memory.queues.items()
            if name in self._memory.seen
        }
        for name in [*self._memory.brokers]:  # in place: other sweeps give back what was lent
            if name not in self._memory.seen:
                self._memory.brokers.pop(name, None)
        return lost

    def _add_routed(self, found: Found, scope: SweepScope) -> None:
        """Add queues at silent brokers by the routes of topics that groups consume at others.

        Routes are kept for as long as a broker is silent: a name server forgets what it told.
        """
        silent = [broker for broker in found.brokers if broker.error is not None]
        if not silent:
            self._memory.routes = {}
            return
        wanted: dict[str, set[str]] = {}
        for broker in found.brokers:
            for group in filter(scope.wanted, groups_at(broker)):
                topics = {*joining.topics_of(group, broker), *broker.subscribed(group)}
                topics = {topic for topic in topics if scope.wants_topic(topic)}
                wanted.setdefault(group, set()).update(topics - {names.dlq_topic(group)})
        lacking: list[tuple[BrokerAnswers, str, str]] = []
        for broker in silent:
            for group, topics in wanted.items():
                told = {topic for topic, _ in broker.remembered.get(group, ())}
                lacking += [(broker, group, topic) for topic in topics - told]
        unasked = sorted({topic for _, _, topic in lacking} - set(self._memory.routes))
        found.requests += len(unasked)
        routes = zip(unasked, beside(self._queues_by_route, unasked), strict=True)
        self._memory.routes = {**self._memory.routes, **dict(routes)}
        for broker, group, topic in lacking:
            count = self._memory.routes.get(topic, {}).get(broker.name, 0)
            if count:
                queues = {(topic, queue_id) for queue_id in range(count)}
                known = broker.remembered.get(group, ())
                broker.remembered = {**broker.remembered, group: {*known, *queues}}

    def _queues_by_route(self, topic: str) -> dict[str, int]:
        """Return how many queues of a topic each broker has to read from."""
        try:
            route = self._wire.route(topic)
        except RouteNotFoundError:
            return {}
        return {queue.broker_name: queue.read_queue_nums for queue in route.queue_datas}

    def _asking(self, broker: BrokerAnswers) -> Asking:
        return Asking(self._client, str(broker.master), self._timeout_ms)

    def _introduce(self, broker: BrokerAnswers) -> int:
        if broker.master is None:
            return 0
        asking = self._asking(broker)
        try:
            keep_facts(broker, let_in(asking.one(questions.RUNTIME)))
        except (TransportError, AccessDeniedError) as error:
            keep_failure(broker, error)
        return asking.requests

    def _ask_owners(self, brokers: Sequence[BrokerAnswers], scope: SweepScope) -> int:
        """Ask members which queues they hold (307), each through one broker it is connected to."""
        through: dict[str, dict[tuple[str, str], None]] = {}
        asked: set[tuple[str, str]] = set()
        for broker in brokers:
            for group, connection in broker.connections.items():
                everywhere = [b.connections[group] for b in brokers if group in b.connections]
                if broker.error is not None or joining.only_owner(everywhere) is not None:
                    continue
                for member in connection.connection_set:
                    if (group, member.client_id) not in asked and scope.wanted(group):
                        asked.add((group, member.client_id))
                        through.setdefault(broker.name, {})[group, member.client_id] = None

        def ask(broker: BrokerAnswers) -> int:
            members = sorted(through[broker.name])
            asking = self._asking(broker)
            untold = asking.as_told(
                [questions.running_of(*member) for member in members],
                lambda place, answer: _keep_owner(broker, *members[place], answer),
            )
            for group in {group for group, _ in members}:
                silent_ones = [p for p in untold if members[p][0] == group]
                if silent_ones:
                    who = ", ".join(members[place][1] for place in silent_ones)
                    text = f"owners are not known: {who} did not say: {untold[silent_ones[0]]}"
                    broker.refused[joining.about_owners(group)] = text
            return asking.requests

        return sum(beside(ask, [b for b in brokers if b.name in through]))

    # --- states -----------------------------------------------------------------------------------

    def state_of(self, group: str, found: Found, scope: SweepScope) -> GroupState:
        return joining.group_state(group, found.taken_ms, found.brokers, scope.topics)

    def _keep_queues(
        self, found: Found, states: Collection[GroupState], *, everything: bool
    ) -> None:
        """Remember the queues each broker told of; after a sweep over everything, these alone."""
        for broker in found.brokers:
            if broker.error is not None:
                continue
            told = {
                state.group: frozenset(
                    (q.topic, q.queue_id) for q in state.queues if q.broker_name == broker.name
                )
                for state in states
                if broker.knows(state.group)
            }
            known = {} if everything else self._memory.queues.get(broker.name, {})
            self._memory.queues[broker.name] = {**known, **told}

    def _topic_states(
        self,
        found: Found,
        scope: SweepScope,
        groups: Mapping[str, GroupState],
        everybody: bool,
    ) -> dict[str, TopicState]:
        consumers: dict[str, set[str]] = {}
        for state in groups.values():
            for queue in state.queues:
                consumers.setdefault(queue.topic, set()).add(state.group)
        known = {
            topic
            for broker in found.brokers
            for topic in broker.topics or ()
            if scope.wants_topic(topic) and (scope.all_topics or topic in broker.ends)
        }
        return {
            topic: self._topic_state(
                topic, found, consumers.get(topic, set()) if everybody else None
            )
            for topic in sorted(known)
        }

    def _topic_state(
        self, topic: str, found: Found, consumers: Collection[str] | None
    ) -> TopicState:
        system = {name for broker in found.brokers for name in (broker.cluster, broker.name)}
        kind = topic_kind(topic, system)
        return joining.topic_state(topic, found.taken_ms, found.brokers, kind, consumers)


def _wants(groups: Collection[str] | None) -> Callable[[str], bool]:
    if groups is None:
        return lambda group: not names.is_system_group(group)
    chosen = frozenset(groups)
    return lambda group: group in chosen


def _groups_of(broker: BrokerAnswers) -> set[str]:
    return {*groups_at(broker), *broker.remembered}


def _keep_owner(broker: BrokerAnswers, group: str, member: str, info: ConsumerRunningInfo) -> None:
    broker.owners.update(((group, queue), member) for queue in info.mq_table)


def _broker_state(broker: BrokerAnswers, taken_ms: int) -> BrokerState:
    return BrokerState(
        cluster=broker.cluster,
        broker_name=broker.name,
        taken_ms=taken_ms,
        addresses=dict(broker.addresses),
        version=broker.facts.get("brokerVersionDesc"),
        facts=broker.facts,
        error=broker.error or broker.refused.get("facts"),
    )
