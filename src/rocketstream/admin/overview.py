"""The progress of many groups as rows, with the reason for each unknown figure.

Law: a row with an unknown figure says why it is unknown; a broker that stays silent leaves a row
that names it. The rows are of one finished sweep.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from rocketstream.admin.core import joining
from rocketstream.admin.core.joining import BrokerAnswers
from rocketstream.admin.rows import ProgressRow
from rocketstream.admin.state import GroupState, QueueKind, QueueState
from rocketstream.admin.survey import SweepScope, groups_at
from rocketstream.admin.sweep import Sweep
from rocketstream.protocol import names


def progress_rows(
    sweep: Sweep,
    groups: Collection[str] | None,
    group_pattern: str | None,
    topics: Collection[str] | None,
    owners: bool,
) -> list[ProgressRow]:
    """Return the rows of one sweep; see ``Groups.progress``."""
    pattern = None if group_pattern is None else re.compile(group_pattern)
    named = frozenset(groups or ())

    def wanted(group: str) -> bool:
        if pattern is not None and pattern.fullmatch(group):
            return True
        if groups is None and pattern is None:
            return not names.is_system_group(group)
        return group in named

    only = None if topics is None else frozenset(topics)
    scope = SweepScope(wanted, only, owners=owners, tps=True)
    found = sweep.look(scope)
    known = {group for broker in found.brokers for group in groups_at(broker) if wanted(group)}
    if not found.brokers:
        unknown: list[str | None] = [*sorted(named)]
        return [_nobody_registered(group) for group in unknown or [None]]
    if not known | named:
        return [_blank(broker, None) for broker in found.brokers if broker.error]
    rows = [
        row
        for group in known | named
        for row in _rows(sweep.state_of(group, found, scope), found.brokers)
    ]
    return sorted(rows, key=_order)


def _rows(state: GroupState, brokers: list[BrokerAnswers]) -> Iterator[ProgressRow]:
    if all(b.error is None and not b.knows(state.group) for b in brokers):
        text = f"no broker knows group {state.group}: it never committed an offset nor connected"
        yield ProgressRow(None, None, state.group, error=text)
    for broker in brokers:
        if broker.error is not None:
            yield _blank(broker, state.group)
        for queue in state.queues:
            # A broker's answers from before it fell silent are still true.
            if queue.broker_name == broker.name and queue.max_offset is not None:
                yield _row(state, broker, queue)
        yield from _untold_topics(state, broker)


def _row(state: GroupState, broker: BrokerAnswers, queue: QueueState) -> ProgressRow:
    group = state.group
    dead = queue.kind is QueueKind.DEAD_LETTER
    about = (joining.about_members(group), joining.about_owners(group))
    missing = [] if dead else [broker.refused[what] for what in about if what in broker.refused]
    errors = [*missing, *([queue.error] if queue.error else [])]
    members: int | None = None
    if not dead and about[0] not in broker.refused and broker.error is None:
        connection = broker.connections.get(group)
        members = 0 if connection is None else len(connection.connection_set)
    return ProgressRow(
        cluster=broker.cluster,
        broker_name=broker.name,
        group=group,
        topic=queue.topic,
        kind=queue.kind,
        queue_id=queue.queue_id,
        min_offset=queue.min_offset,
        max_offset=queue.max_offset,
        committed_offset=queue.committed_offset,
        lag=None if dead else queue.lag,
        time_lag_ms=None if dead else queue.time_lag_ms(state.taken_ms),
        last_consumed_ms=queue.last_consumed_ms,
        client_id=queue.client_id,
        members=members,
        consume_tps=None if dead else broker.tps.get((group, queue.topic)),
        error="; ".join(dict.fromkeys(errors)) or None,
        expired=None if dead else queue.expired,
    )


def _untold_topics(state: GroupState, broker: BrokerAnswers) -> Iterator[ProgressRow]:
    """Yield a row for each topic whose queues a broker refused to report."""
    lost = {q.topic for q in state.queues if q.broker_name == broker.name and q.max_offset is None}
    for topic in sorted(lost):
        why = broker.refused.get(joining.about_ends(topic))
        if why is not None:
            kind = joining.kind_of(state.group, topic)
            yield ProgressRow(
                broker.cluster, broker.name, state.group, topic=topic, kind=kind, error=why
            )


def _blank(broker: BrokerAnswers, group: str | None) -> ProgressRow:
    return ProgressRow(broker.cluster, broker.name, group, error=broker.error)


def _nobody_registered(group: str | None) -> ProgressRow:
    text = "no broker is registered with the name server"
    return ProgressRow(None, None, group, error=text)


def _order(row: ProgressRow) -> tuple[str, str, str, int]:
    queue_id = -1 if row.queue_id is None else row.queue_id
    return (row.group or "", row.topic or "", row.broker_name or "", queue_id)
