"""Reading the usual send (code 310) without the general header: nothing special, small numbers.

Law: returns None in any doubt, and has no effect; the general way then decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rocketstream.protocol import names
from rocketstream.protocol.bodies import TopicConfig

PlainSend = tuple[str, int, int, int, int, str]
"""Topic, queue id, flag, sysFlag, born timestamp, properties."""

_NUMBERS: Final = {str(number): number for number in range(1024)}
_TIMESTAMP_DIGITS_MAX: Final = 15


def plain_send(ext: Mapping[str, str]) -> PlainSend | None:
    """Return what a usual send says, None for any other."""
    get, number = ext.get, _NUMBERS.get
    topic, properties, born = get("b"), get("i"), get("g", "")
    queue_id = number(get("e", ""))
    flag = number(get("h", ""))
    sys_flag = number(get("f", ""))
    if (
        topic is None
        or properties is None
        or queue_id is None
        or flag is None
        or sys_flag is None
        or not born.isdecimal()
        or len(born) > _TIMESTAMP_DIGITS_MAX
        or get("m", "false") != "false"
        or get("j", "0") != "0"
        or get("d") not in _NUMBERS
        or get("l", "0") not in _NUMBERS
        or "a" not in ext
        or "c" not in ext
    ):
        return None
    return topic, queue_id, flag, sys_flag, int(born), properties


def is_plain_queue(config: TopicConfig, topic: str, queue_id: int) -> bool:
    """Tell whether a message for this queue of a topic needs nothing looked up or changed."""
    return (
        queue_id < config.write_queue_nums
        and config.topic_filter_type != "MULTI_TAG"
        and topic not in names.NOT_ALLOWED_SEND_TOPICS
        and not topic.startswith(names.RETRY_PREFIX)
    )
