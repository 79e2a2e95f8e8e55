"""How long a framework may keep a message: as long as its process runs."""

from __future__ import annotations

import asyncio

import pytest

from rocketstream.client.config import ClientConfig
from rocketstream.frameworks.intake import Delivery, Intake
from rocketstream.model import MessageQueue
from rocketstream.protocol.message_ext import assemble_message

LIMIT_S = 60.0


class Jumping(asyncio.SelectorEventLoop):
    """A loop whose process can be stopped for a while."""

    ahead_s = 0.0

    def time(self) -> float:
        return super().time() + self.ahead_s


async def kept(*stopped_s: float) -> bool:
    """Return whether a message is the framework's after its process stood still for so long, once
    or several times; it answers then."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, Jumping)
    intake = Intake(
        "workers", "tasks", ClientConfig(namesrv_addr="127.0.0.1:1"), lambda each: each.begin(),
        unacked_max=1, unacked_limit_s=LIMIT_S,
    )  # fmt: skip
    queue = MessageQueue("tasks", "broker-a", 0)
    message = assemble_message(queue, 7, b"x", {}, commit_log_offset=0, reconsume_times=0)
    delivery = Delivery(message, None)
    settled = asyncio.create_task(intake._settled(delivery, LIMIT_S))
    for each in (0.0, *stopped_s):
        loop.ahead_s += each
        for _ in range(5):
            await asyncio.sleep(0)
    is_kept = not settled.done()
    delivery.done()
    assert await settled == (None if is_kept else 0), "an answer that comes late changes nothing"
    return is_kept


@pytest.mark.parametrize(
    ("stopped_s", "is_kept"),
    [
        pytest.param([3_600.0], True, id="an hour"),
        pytest.param([LIMIT_S + 31], True, id="beyond the limit"),
        pytest.param([LIMIT_S + 20], False, id="only late"),
        pytest.param([3_600.0, LIMIT_S + 1], False, id="its time begins anew, and ends"),
        pytest.param([3_600.0, LIMIT_S - 1], True, id="its time begins anew"),
    ],
)
def test_a_message_does_not_come_again_because_the_process_stood_still(
    stopped_s: list[float], is_kept: bool
) -> None:
    """It would be done twice, and count as failed, though its handler ends soon."""
    with asyncio.Runner(loop_factory=Jumping) as runner:
        assert runner.run(kept(*stopped_s)) is is_kept
