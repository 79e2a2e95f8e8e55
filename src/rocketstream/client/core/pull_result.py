"""What a pull brought, as callers of a pull consumer get it.

Law: a value.
"""

from __future__ import annotations

from rocketstream.late import dataclass
from rocketstream.model import PullStatus
from rocketstream.protocol.message_ext import MessageExt


@dataclass(frozen=True, slots=True)
class PullResult:
    """What a pull brought; continue at ``next_begin_offset`` whatever the status (C-496)."""

    pull_status: PullStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    msg_found_list: list[MessageExt]
