"""The service of messages: all that is done with them."""

from __future__ import annotations

from rocketstream.admin.messages.consuming import ConsumeAdmin
from rocketstream.admin.messages.search import SearchAdmin
from rocketstream.admin.messages.tail import TailAdmin
from rocketstream.admin.messages.tracing import TraceAdmin
from rocketstream.admin.messages.tracks import TrackAdmin


class Messages(SearchAdmin, TailAdmin, TrackAdmin, TraceAdmin, ConsumeAdmin):
    """``Admin.messages``."""
