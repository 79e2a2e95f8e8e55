"""Checkpoints of streaming queries: which micro-batches Spark has planned and committed there.

Spark keeps the last hundred of each log: the first one does not stay for ever.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from rocketstream.model import MessageQueue
from rocketstream.pipelines.places import Place
from rocketstream.spark.driver.offsets import StreamOffset

_PLANNED, _COMMITTED = "offsets", "commits"


def planned(checkpoint: Place | None) -> int:
    """Return the last micro-batch that was planned; -1 where there is none."""
    return _last(checkpoint, _PLANNED)


def begun(checkpoint: Place | None) -> int | None:
    """Return the micro-batch that was planned and not committed; None where there is none."""
    last = planned(checkpoint)
    return last if last > _last(checkpoint, _COMMITTED) else None


def reached(checkpoint: Place | None) -> Mapping[MessageQueue, int] | None:
    """Return the end of the last micro-batch that was committed, or the beginning of the first one;
    None where none was planned.

    Raises
    ------
    ConfigurationError
        It is not the checkpoint of a query that reads topics, or is damaged.
    """
    if checkpoint is None or planned(checkpoint) < 0:
        return None
    committed = _last(checkpoint, _COMMITTED)
    text = checkpoint.under(_PLANNED).read(str(max(committed, 0))) or "null"
    offset = StreamOffset.from_json(json.loads(text.splitlines()[-1]))
    return offset.ends if committed >= 0 or offset.initial else offset.base


def offsets_json(offsets: Mapping[MessageQueue, int]) -> str:
    """Return offsets as the options of a read take them."""
    tree: dict[str, dict[str, dict[str, int]]] = {}
    for queue, offset in sorted(offsets.items()):
        by_broker = tree.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})
        by_broker[str(queue.queue_id)] = offset
    return json.dumps(tree)


def _last(checkpoint: Place | None, log: str) -> int:
    names = [] if checkpoint is None else checkpoint.under(log).names()
    return max((int(name) for name in names if name.isdigit()), default=-1)
