"""Batches as 5.x's Java producer sends them.

Law: bytes on a connection; none of our producers does it.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from rocketstream.model import MessageQueue
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import SendMessageRequestHeader
from rocketstream.protocol.record import encode_batch
from rocketstream.transport.blocking_connection import BlockingConnection


def send_as_one_record(
    broker_addr: str, queue: MessageQueue, bodies: Sequence[bytes], tags: str | None = None
) -> None:
    """Send a batch that has an id of its own, as 5.x's Java producer does.

    A topic with ``queue.type=BatchCQ`` stores it as one record.
    """
    own = "" if tags is None else f"\x02TAGS\x01{tags}"
    header = SendMessageRequestHeader(
        producer_group="pg", topic=queue.topic, default_topic="TBW102",
        default_topic_queue_nums=4, queue_id=queue.queue_id, sys_flag=0, flag=0,
        born_timestamp=1_700_000_000_000,
        properties=f"UNIQ_KEY\x01{uuid.uuid4().hex.upper()}\x02WAIT\x01true{own}",
        reconsume_times=0, unit_mode=False, batch=True,
    )  # fmt: skip
    command = RemotingCommand(RequestCode.SEND_BATCH_MESSAGE)
    command.ext_fields = header.to_ext_v2()
    command.body = encode_batch(
        [(7, body, f"UNIQ_KEY\x01{uuid.uuid4().hex.upper()}{own}".encode()) for body in bodies]
    )
    with BlockingConnection(broker_addr) as connection:
        answer = connection.request(command, 30_000)
    assert answer.code == 0, answer
