"""Typed operations on topics, groups and consumption progress; the command line renders them.

Law: no printing, no formatting. An unknown figure is None here, never zero. A name is imported when
it is first used: looking at a group must not load the code that follows messages or moves offsets.

Numbers such as C-187 in these modules are those of docs/behaviours.md.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rocketstream.admin.admin import Admin as Admin
    from rocketstream.admin.core.moves import ResetDone as ResetDone
    from rocketstream.admin.core.moves import ResetKind as ResetKind
    from rocketstream.admin.core.moves import ResetPlan as ResetPlan
    from rocketstream.admin.core.moves import ResetRow as ResetRow
    from rocketstream.admin.core.moves import ResetTarget as ResetTarget
    from rocketstream.admin.core.steps import ChangeDone as ChangeDone
    from rocketstream.admin.core.steps import ChangePlan as ChangePlan
    from rocketstream.admin.letters.causes import LetterFilter as LetterFilter
    from rocketstream.admin.letters.redrive import RedrivePlan as RedrivePlan
    from rocketstream.admin.letters.redrive import RedriveResult as RedriveResult
    from rocketstream.admin.letters.service import LetterCause as LetterCause
    from rocketstream.admin.letters.service import LetterCauses as LetterCauses
    from rocketstream.admin.messages.bodies import BodyFormat as BodyFormat
    from rocketstream.admin.messages.bodies import DecodedBody as DecodedBody
    from rocketstream.admin.messages.bodies import decode_body as decode_body
    from rocketstream.admin.messages.masking import Masking as Masking
    from rocketstream.admin.messages.search import MessageFilter as MessageFilter
    from rocketstream.admin.messages.search import SearchPage as SearchPage
    from rocketstream.admin.messages.search import TailRound as TailRound
    from rocketstream.admin.messages.shown import ShownMessage as ShownMessage
    from rocketstream.admin.messages.trace import TraceEnd as TraceEnd
    from rocketstream.admin.messages.trace import TraceSend as TraceSend
    from rocketstream.admin.messages.trace import TraceTimeline as TraceTimeline
    from rocketstream.admin.messages.trace import TraceTry as TraceTry
    from rocketstream.admin.rows import BrokerRow as BrokerRow
    from rocketstream.admin.rows import ConnectionRow as ConnectionRow
    from rocketstream.admin.rows import ConsumedRow as ConsumedRow
    from rocketstream.admin.rows import ConsumePlan as ConsumePlan
    from rocketstream.admin.rows import MemberRow as MemberRow
    from rocketstream.admin.rows import ProgressRow as ProgressRow
    from rocketstream.admin.rows import RouteRow as RouteRow
    from rocketstream.admin.rows import RunningInfoRow as RunningInfoRow
    from rocketstream.admin.rows import RunningQueueRow as RunningQueueRow
    from rocketstream.admin.rows import SubscriptionRow as SubscriptionRow
    from rocketstream.admin.rows import TimeSpanRow as TimeSpanRow
    from rocketstream.admin.rows import TopicRow as TopicRow
    from rocketstream.admin.rows import TrackRow as TrackRow
    from rocketstream.admin.safety import AuditLog as AuditLog
    from rocketstream.admin.safety import ReadOnlyError as ReadOnlyError
    from rocketstream.admin.state import GroupState as GroupState
    from rocketstream.admin.state import QueueKind as QueueKind
    from rocketstream.admin.state import QueueState as QueueState
    from rocketstream.admin.state import TopicQueue as TopicQueue
    from rocketstream.admin.state import TopicState as TopicState

_HOMES = {
    name: module
    for module, found in {
        "admin": "Admin",
        "core.moves": "ResetDone ResetKind ResetPlan ResetRow ResetTarget",
        "core.steps": "ChangeDone ChangePlan",
        "letters.causes": "LetterFilter",
        "letters.redrive": "RedrivePlan RedriveResult",
        "letters.service": "LetterCause LetterCauses",
        "messages.bodies": "BodyFormat DecodedBody decode_body",
        "messages.masking": "Masking",
        "messages.search": "MessageFilter SearchPage TailRound",
        "messages.shown": "ShownMessage",
        "messages.trace": "TraceEnd TraceSend TraceTimeline TraceTry",
        "rows": "BrokerRow ConnectionRow ConsumePlan ConsumedRow MemberRow "
        "ProgressRow RouteRow RunningInfoRow RunningQueueRow SubscriptionRow TimeSpanRow TopicRow "
        "TrackRow",
        "safety": "AuditLog ReadOnlyError",
        "state": "GroupState QueueKind QueueState TopicQueue TopicState",
    }.items()
    for name in found.split()
}


if not TYPE_CHECKING:  # else every misspelt name would be an Any to type checkers

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
