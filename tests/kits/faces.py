"""The clients of the face a case runs on: the one written for threads, or that of asyncio.

Law: cases import clients from here; which face they get is a parameter of theirs, and no case knows
it. Outside a case they are those for threads. A case that runs on one face only is in ``ONE_FACE``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import rocketstream
from tests.kits.bridge import AsyncioFace

if TYPE_CHECKING:
    from rocketstream import (
        LitePullConsumer,
        MQPullConsumerScheduleService,
        Producer,
        PullConsumer,
        PushConsumer,
        TransactionProducer,
    )

CLIENTS = (
    "LitePullConsumer",
    "MQPullConsumerScheduleService",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "TransactionProducer",
)
__all__ = [
    "ASYNCIO",
    "CLIENTS",
    "ONE_FACE",
    "THREADS",
    "LitePullConsumer",
    "MQPullConsumerScheduleService",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "TransactionProducer",
    "running_on",
]
THREADS, ASYNCIO = "threads", "asyncio"

_OWN = "it is about asyncio itself: what is awaited is cancelled, or runs beside the loop"
_NO_CALLBACKS = "asyncio has tasks for what is done later, and they call back by themselves"
_OTHERS = "it compares those who look at a group, whoever consumed in it"
_AWAITED = "asyncio's producer fails what is still awaited at its shutdown: await it, or flush()"
_NO_THREADS = "what the asyncio face calls runs on no threads of its own"
ONE_FACE: dict[str, str] = {
    "test_aio.test_a_call_of_a_plain_listener_to_its_consumer_is_carried_out_on_the_loop": _OWN,
    "test_aio.test_a_call_that_runs_at_ctrl_c_is_finished_and_counts": _OWN,
    "test_aio.test_a_coroutine_left_running_is_cancelled_and_its_message_not_committed": _OWN,
    "test_aio.test_a_plain_function_listens_on_worker_threads": _OWN,
    "test_faces_agree.test_every_face_tells_the_same_lag_of_every_queue": _OTHERS,
    "test_faces_agree.test_every_list_of_groups_tells_the_same": _OTHERS,
    "test_otel.test_a_listener_that_is_cut_off_ends_its_span": _OWN,
    "test_produce.test_futures_resolve_and_callbacks_run_off_the_network_thread": _NO_CALLBACKS,
    "test_produce.test_shutdown_waits_for_what_is_on_its_way": _AWAITED,
    "test_pull_consumer.test_futures_and_callbacks": _NO_CALLBACKS,
    "test_pull_consumer.test_what_cannot_be_called_back_is_refused": _NO_CALLBACKS,
    "test_pull_schedule.test_tasks_run_on_as_many_threads_as_are_asked_for": _NO_THREADS,
}
"""Cases that run once, by ``module.test``, and why: all others run on both faces."""

_face: AsyncioFace | None = None


@contextmanager
def running_on(name: str) -> Iterator[None]:
    """Have clients be those of a face; with asyncio, some must be made, and none left behind."""
    global _face
    if name == THREADS:
        yield
        return
    face = _face = AsyncioFace()
    try:
        yield
    finally:
        _face = None
        left = face.close()
    assert not left, f"left running on the loop: {left}"
    assert face.made, "the case makes no client of the face it is for: import it from `faces`"


def _maker(name: str) -> Any:
    def make(*args: Any, **settings: Any) -> Any:
        if _face is None:
            return getattr(rocketstream, name)(*args, **settings)
        return _face.make(name, *args, **settings)

    make.__name__ = name
    return make


if not TYPE_CHECKING:
    for _name in CLIENTS:
        globals()[_name] = _maker(_name)
