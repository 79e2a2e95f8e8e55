"""The writer of ``consume``: Spark's own, whose query holds its group as long as it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Self

from rocketstream.errors import ConfigurationError, NotSupportedError
from rocketstream.model import MessageQueue
from rocketstream.spark.options import (
    CONNECT_OPTIONS,
    CONSUME_OPTIONS,
    connect_options,
)
from rocketstream.spark.push.claim import GroupClaim
from rocketstream.spark.push.directly import OnRequest
from rocketstream.spark.push.endings import report_ends, when_ended
from rocketstream.spark.push.queries import ends_of, facts_of
from rocketstream.spark.push.settings import told_settings

_DECIDED: Final = frozenset(name.lower() for name in CONSUME_OPTIONS)
_FORWARDED: Final = "option, options, outputMode, queryName, trigger and start"


class ConsumingWriter:
    """A ``DataStreamWriter`` whose ``start`` claims the group first, and leaves it at the end.

    It has those methods of Spark's writer that make sense with a listener; ``consume`` makes it.

    Args:
        session: the session that runs the query.
        writer: Spark's writer, with the sink set up.
        options: the options of the sink.
        claim: True makes a claim, False makes none; or the claim that holds the group.
    """

    def __init__(
        self, session: Any, writer: Any, options: Mapping[str, str], claim: bool | GroupClaim
    ) -> None:
        self._session = session
        self._writer = writer
        self._options = dict(options)
        self._claim = claim

    def option(self, key: str, value: Any) -> Self:
        """Set an option of the query, such as ``checkpointLocation``."""
        _check_name(key)
        self._writer = self._writer.option(key, value)
        return self

    def options(self, **options: Any) -> Self:
        """Set several options."""
        for name in options:
            _check_name(name)
        self._writer = self._writer.options(**options)
        return self

    def outputMode(self, outputMode: str) -> Self:
        """Set the output mode; only ``append`` is useful."""
        self._writer = self._writer.outputMode(outputMode)
        return self

    def queryName(self, queryName: str) -> Self:
        """Name the query."""
        self._writer = self._writer.queryName(queryName)
        return self

    def trigger(self, **trigger: Any) -> Self:
        """Set when micro-batches begin, with the keywords of Spark's ``trigger``."""
        self._writer = self._writer.trigger(**trigger)
        return self

    def start(self, **options: Any) -> Any:
        """Claim the group, then start the query; blocks for some requests and Spark's planning.

        Parameters
        ----------
        **options
            Further options, including ``queryName`` and ``outputMode``.

        Returns
        -------
        StreamingQuery
            Spark's own. When it ends, its last offsets are reported and the group is left.

        Raises
        ------
        ClientStateError
            The group has live members, which the error names.
        ConfigurationError
            The given claim is of another group, or has not begun.
        ConnectError
            This process cannot reach the cluster.
        """
        for name in options:
            _check_name(name)
        if isinstance(self._claim, GroupClaim):
            self._claim.check_of(self._options["group"])
        if self._claim is not True:
            return self._writer.start(**options)
        return self._start_and_hold(options)

    def _start_and_hold(self, options: Mapping[str, Any]) -> Any:
        group = self._options["group"]
        connect: dict[str, str] = {
            name: self._options[name] for name in CONNECT_OPTIONS if name in self._options
        }
        started: list[Any] = []

        def progress() -> dict[MessageQueue, int]:
            return ends_of(started[0]) if started else {}

        claim = GroupClaim(
            group,
            {},
            settings=told_settings(self._options),
            orderly=self._options["orderly"] == "true",
            progress=progress,
            facts=lambda: facts_of(started[0]) if started else {},
            directly=OnRequest(self._session, self._options),
            **connect,  # type: ignore[arg-type]  # none of its names is another keyword's
        )
        claim.begin()
        try:
            started.append(self._writer.start(**options))
        except BaseException:
            claim.end()
            raise

        def leave() -> None:
            try:
                report_ends(connect_options(connect), group, progress())
            finally:
                claim.end()

        when_ended(started[0], group, leave)
        return started[0]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise NotSupportedError(
            f"a writer that consumes has no {name!r}: a listener takes the rows, no table or other "
            f"sink does; it has {_FORWARDED}"
        )


def _check_name(name: str) -> None:
    if name.lower() in _DECIDED:
        raise ConfigurationError(
            f"option {name!r} is one of the listener's, which are checked and packed together: "
            "give it to consume(df, listener, ...)",
            option=name,
        )
