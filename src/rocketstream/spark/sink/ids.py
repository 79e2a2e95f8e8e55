"""The UNIQ_KEYs of a record batch's rows, made all at once.

Numbers become text in numpy, without a loop over rows; the generator says which numbers are free.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa

from rocketstream.protocol.message_id import RESERVED_IDS_MAX, UniqueIdGenerator
from rocketstream.spark.sink.texts import fixed

_DIGITS: Final = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_SHIFTS: Final = np.array([12, 8, 4, 0])


def new_ids(generator: UniqueIdGenerator, count: int, now_ms: Callable[[], int]) -> Any:
    """Return ``count`` new ids as a string array; no two of them are the same.

    Args:
        generator: the generator of this process.
        count: how many ids, 0 or more.
        now_ms: returns ms since 1970.
    """
    parts, moment = [_part(generator, 0, now_ms())] if not count else [], -1
    while count:
        # One millisecond has no more: the next ones are of a later millisecond.
        moment = max(now_ms(), moment + 1)
        size = min(count, RESERVED_IDS_MAX)
        parts.append(_part(generator, size, moment))
        count -= size
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def _part(generator: UniqueIdGenerator, count: int, now_ms: int) -> Any:
    head, numbers = generator.reserve(count, now_ms)
    letters = np.empty((count, len(head) + len(_SHIFTS)), np.uint8)
    letters[:, : len(head)] = np.frombuffer(head.encode(), np.uint8)
    letters[:, len(head) :] = _DIGITS[np.array(numbers, np.int64)[:, None] >> _SHIFTS & 0xF]
    return fixed(letters, pa.string())
