"""Reports a stream's progress to the brokers, as offsets of its group.

Law: offsets of a group with other consumers are never touched, nor where no broker tells whether it
has some. Otherwise a report is best effort: Spark's checkpoint is the truth, and the report is for
tools that show lag.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from rocketstream._util.clock import Clock
from rocketstream.columns.table import described
from rocketstream.errors import (
    BrokerError,
    ConfigurationError,
    RouteNotFoundError,
    TransportError,
)
from rocketstream.model import MessageQueue
from rocketstream.protocol.names import RETRY_PREFIX, retry_topic
from rocketstream.spark.driver.cluster import Cluster
from rocketstream.spark.driver.offsets import StreamOffset
from rocketstream.spark.options import ReadOptions

logger: logging.Logger = logging.getLogger("rocketstream.spark")

REPORT_PAUSE_MS: Final = 1_000
"""How long a failed report is not tried again, unless a batch commits."""
REPEAT_MS: Final = 10_000
"""How often an unchanged offset is reported again: a broker writes them every few seconds only, and
one that died in between has lost what it took (C-344)."""
MEMBERS_MS: Final = 60_000
"""How often it is checked whether others consume with the group, or report for it."""
CLAIM_MARK: Final = "#spark"
"""The suffix of a claim's client id: such a member stands for a listener on Spark."""
ANY_CLAIM: Final = "spark"
"""The value of ``groupMember`` that accepts any claim."""


class Reporter:
    """Reports a stream's progress; used by one thread.

    Args:
        options: the options of the stream, which name the group, if any.
        cluster: the cluster that gets the report.
        clock: measures the pauses.
    """

    def __init__(self, options: ReadOptions, cluster: Cluster, clock: Clock) -> None:
        self._group = options.group if options.commit_offsets else None
        self._member = options.group_member
        # A query that reads what failed to be consumed feeds the listener the claim is for.
        self._feeds = options.group is not None and retry_topic(options.group) in options.topics
        self._cluster = cluster
        self._clock = clock
        self._reported: Mapping[MessageQueue, int] = {}
        self._reported_at = float("-inf")
        self._failure = ""
        self._pause_until = float("-inf")
        self._has_claim = self._group is None
        self._looked_at = float("-inf")
        self._yields = False
        self._compared_at = float("-inf")

    @property
    def has_claim(self) -> bool:
        """Whether ``claim`` has nothing left to do."""
        return self._has_claim

    def claim(self, queues: Sequence[MessageQueue]) -> None:
        """Make sure that nobody else consumes with the group; blocks.

        A broker that refuses to tell keeps no stream from reading: nothing is reported until it
        tells.

        Raises:
            ConfigurationError: another program does; the error names the members.
            TransportError: a broker could not be asked.
        """
        group = self._group
        if group is None or self.has_claim:
            return
        members = self._members(group, queues)
        self._has_claim = True
        if members:
            raise ConfigurationError(
                f"group {group!r} has live members: {_list(members)}. To report this stream's "
                "offsets for it would move theirs: stop them, give the stream a group of its own, "
                "or set option commitOffsets=false to report nothing" + _of_claims(members, group),
                group=group,
            )

    def report_if_due(self, offset: StreamOffset, queues: Sequence[MessageQueue]) -> None:
        """Report, unless reporting failed a moment ago; never raises errors of the cluster."""
        if self._clock.monotonic_ms() >= self._pause_until:
            self.report(offset, queues)

    def report(self, offset: StreamOffset, queues: Sequence[MessageQueue]) -> None:
        """Report; never raises errors of the cluster.

        Args:
            offset: how far the stream is.
            queues: the queues that are read. Others of the offset are left alone: another
                consumer may move those of a topic taken out of the options, and a broker that left
                the route would fail every report.
        """
        group = self._group
        if group is None or offset.initial:
            return
        now = self._clock.monotonic_ms()
        ends = {queue: offset.ends[queue] for queue in queues if queue in offset.ends}
        known = {} if now - self._reported_at >= REPEAT_MS else self._reported
        if ends == known:
            return
        news = {queue: end for queue, end in ends.items() if known.get(queue) != end}
        try:
            if self._must_yield(group, list(ends)):
                return
            self._warn_of_others(group, ends)
            self._cluster.report(group, news)
        except (TransportError, BrokerError, RouteNotFoundError) as error:
            self._failed(group, str(error))
            return
        if self._failure:
            logger.warning("progress of group=%s is reported again", group)
            self._failure = ""
        if len(news) == len(ends):
            self._reported_at = now
        self._reported = ends

    def _failed(self, group: str, why: str) -> None:
        if why != self._failure:
            logger.warning("progress of group=%s not reported: %s", group, why)
        self._failure = why
        self._pause_until = self._clock.monotonic_ms() + REPORT_PAUSE_MS

    def _must_yield(self, group: str, queues: Sequence[MessageQueue]) -> bool:
        """Whether others have begun to consume with the group, or may have; checked from time to
        time."""
        if self._clock.monotonic_ms() - self._looked_at >= MEMBERS_MS:
            members = self._members(group, queues)
            if members is None:
                return True
            if members and not self._yields:
                logger.warning(
                    "group %s has members now: %s; its offsets are theirs and no longer reported, "
                    "until they are gone",
                    group,
                    _list(members),
                )
            self._yields = bool(members)
        return self._yields

    def _warn_of_others(self, group: str, ends: Mapping[MessageQueue, int]) -> None:
        """Warn once if the brokers' offsets are ahead of the last report, or of the first to come.

        A broker's offset may well be behind: it lost what it took, or somebody reads again.
        """
        now = self._clock.monotonic_ms()
        if now - self._compared_at < MEMBERS_MS:
            return
        self._compared_at = now
        try:
            held = self._cluster.committed(group, ends)
        except BrokerError:  # it may take a report all the same
            return
        for queue, found in held.items():
            ours = self._reported.get(queue, ends[queue])
            if found > ours:
                logger.warning(
                    "the offset of group %s in %s is %d, ahead of this stream at %d: another query "
                    "reports for it, it was reset, or this stream begins behind it. Reports of "
                    "several overwrite each other: give each query a group of its own",
                    group, described(queue), found, ours,
                )  # fmt: skip
                self._compared_at = float("inf")
                return

    def _members(self, group: str, queues: Sequence[MessageQueue]) -> dict[str, str] | None:
        """Return the strangers that consume with the group; None if a broker refuses to tell."""
        try:
            members = self._cluster.members(group, queues)
        except BrokerError as error:
            self._failed(group, f"cannot tell whether it has live members: {error}")
            return None
        self._looked_at = self._clock.monotonic_ms()
        feeds = self._feeds or any(queue.topic == retry_topic(group) for queue in queues)
        any_claim = self._member == ANY_CLAIM or (self._member is None and feeds)
        return {
            name: address
            for name, address in members.items()
            if name != self._member and not (any_claim and name.endswith(CLAIM_MARK))
        }


def check_checkpoint(options: ReadOptions, start: StreamOffset) -> None:
    """Refuse the checkpoint of another source, and to feed a listener from that of another group.

    The query would continue at the other group's offsets, and nobody would consume that group's
    failed messages. A topic that another source of the query had would be new to this one, and
    consumed again from its oldest message; so would be all topics where none is the checkpoint's.

    Raises:
        ConfigurationError: the checkpoint is another's; the error names both.
    """
    topics = {queue.topic for queue in start.ends}
    if moved := sorted(topics & options.other_topics):
        raise ConfigurationError(
            f"the checkpoint's source in this place read {', '.join(moved)}, which another source "
            f"of the query reads now; this one is to read {', '.join(options.topics)}. Sources are "
            "numbered by their expressions: a changed one gave them other places, and messages "
            "would be consumed again. Give the expressions as they were, or begin a new checkpoint "
            "directory",
            option="otherTopics",
        )
    feeds = options.group is not None and retry_topic(options.group) in options.topics
    for topic in topics if feeds else ():
        if topic.startswith(RETRY_PREFIX) and topic not in options.topics:
            other = topic.removeprefix(RETRY_PREFIX)
            raise ConfigurationError(
                f"the checkpoint is of group {other!r}, since it reads {topic!r}, not of group "
                f"{options.group!r}: begin a new checkpoint directory for another group",
                group=options.group,
            )
    choice = options.choice
    if start.ends and not any(map(choice.wants, start.ends)):
        had, wanted = ", ".join(sorted(topics)), choice.text
        if choice.queues is not None:
            had, wanted = (
                "; ".join(map(described, sorted(each))) for each in (start.ends, choice.queues)
            )
        raise ConfigurationError(
            f"the checkpoint's source in this place read {had}, and the options select none of it, "
            f"but {wanted}: what is unread there would be passed over, and this read from its "
            "oldest message. Sources are numbered by their places in the query: give them and "
            "their options as they were, or select what was read too, or begin a new checkpoint "
            "directory"
        )


def _of_claims(members: Mapping[str, str], group: str) -> str:
    if not all(name.endswith(CLAIM_MARK) for name in members):
        return ""
    return (
        f". They are claims of listeners on Spark: if this stream feeds one, read "
        f"{retry_topic(group)!r} here too, or set option groupMember={ANY_CLAIM}"
    )


def _list(members: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({address})" for name, address in sorted(members.items()))
