"""Typed operations on topics, groups and consumption progress; the command line renders them.

Law: no printing, no formatting. An unknown figure is None here, never zero. A name is imported when
it is first used: looking at a group must not load the code that follows messages or moves offsets.

Numbers such as C-187 in these modules are those of docs/behaviours.md.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rocketstream.admin.admin import Admin
    from rocketstream.admin.core.again import LetterFilter
    from rocketstream.admin.core.lag import total_lag
    from rocketstream.admin.core.moves import (
        ResetDone,
        ResetKind,
        ResetPlan,
        ResetRow,
        ResetTarget,
    )
    from rocketstream.admin.core.steps import ChangeDone, ChangePlan
    from rocketstream.admin.core.timeline import TraceEnd, TraceSend, TraceTimeline, TraceTry
    from rocketstream.admin.letters.causes import LetterCause, LetterCauses
    from rocketstream.admin.letters.redrive import RedrivePlan, RedriveResult
    from rocketstream.admin.messages.bodies import BodyFormat, DecodedBody, decode_body
    from rocketstream.admin.messages.masking import Masking
    from rocketstream.admin.messages.search import MessageFilter, SearchPage
    from rocketstream.admin.messages.shown import ShownMessage
    from rocketstream.admin.messages.tail import TailRound
    from rocketstream.admin.rows import (
        BrokerRow,
        ConnectionRow,
        ConsumedRow,
        ConsumePlan,
        GroupRow,
        LagRow,
        MemberRow,
        ProgressRow,
        RouteRow,
        RunningInfoRow,
        RunningQueueRow,
        SubscriptionRow,
        TimeSpanRow,
        TopicRow,
        TopicStatusRow,
        TrackRow,
    )
    from rocketstream.admin.safety.audit import AuditLog
    from rocketstream.admin.safety.gate import ReadOnlyError

_HOMES = {
    "Admin": "admin",
    "AuditLog": "safety.audit",
    "BodyFormat": "messages.bodies",
    "BrokerRow": "rows",
    "ChangeDone": "core.steps",
    "ChangePlan": "core.steps",
    "ConnectionRow": "rows",
    "ConsumePlan": "rows",
    "ConsumedRow": "rows",
    "DecodedBody": "messages.bodies",
    "GroupRow": "rows",
    "LagRow": "rows",
    "LetterCause": "letters.causes",
    "LetterCauses": "letters.causes",
    "LetterFilter": "core.again",
    "Masking": "messages.masking",
    "MemberRow": "rows",
    "MessageFilter": "messages.search",
    "ProgressRow": "rows",
    "ReadOnlyError": "safety.gate",
    "RedrivePlan": "letters.redrive",
    "RedriveResult": "letters.redrive",
    "ResetDone": "core.moves",
    "ResetKind": "core.moves",
    "ResetPlan": "core.moves",
    "ResetRow": "core.moves",
    "ResetTarget": "core.moves",
    "RouteRow": "rows",
    "RunningInfoRow": "rows",
    "RunningQueueRow": "rows",
    "SearchPage": "messages.search",
    "ShownMessage": "messages.shown",
    "SubscriptionRow": "rows",
    "TailRound": "messages.tail",
    "TimeSpanRow": "rows",
    "TopicRow": "rows",
    "TopicStatusRow": "rows",
    "TraceEnd": "core.timeline",
    "TraceSend": "core.timeline",
    "TraceTimeline": "core.timeline",
    "TraceTry": "core.timeline",
    "TrackRow": "rows",
    "decode_body": "messages.bodies",
    "total_lag": "core.lag",
}

__all__ = [
    "Admin",
    "AuditLog",
    "BodyFormat",
    "BrokerRow",
    "ChangeDone",
    "ChangePlan",
    "ConnectionRow",
    "ConsumePlan",
    "ConsumedRow",
    "DecodedBody",
    "GroupRow",
    "LagRow",
    "LetterCause",
    "LetterCauses",
    "LetterFilter",
    "Masking",
    "MemberRow",
    "MessageFilter",
    "ProgressRow",
    "RedrivePlan",
    "RedriveResult",
    "ReadOnlyError",
    "ResetDone",
    "ResetKind",
    "ResetPlan",
    "ResetRow",
    "ResetTarget",
    "RouteRow",
    "RunningInfoRow",
    "RunningQueueRow",
    "SearchPage",
    "ShownMessage",
    "SubscriptionRow",
    "TailRound",
    "TimeSpanRow",
    "TopicRow",
    "TopicStatusRow",
    "TraceEnd",
    "TraceSend",
    "TraceTimeline",
    "TraceTry",
    "TrackRow",
    "decode_body",
    "total_lag",
]


if not TYPE_CHECKING:  # else every misspelt name would be an Any to type checkers

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
