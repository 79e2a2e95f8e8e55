"""Messages a broker has: those of a queue, those waiting for a delay, and the dead letters."""

from __future__ import annotations

from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.errors import BrokerError
from rocketstream.model import MessageQueue
from rocketstream.protocol.codes import PullSysFlag, RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import PullMessageRequestHeader
from rocketstream.protocol.message_ext import MessageExt, decode_messages
from rocketstream.protocol.names import SCHEDULE_TOPIC

DLQ = MessageQueue("%DLQ%g", "broker-a", 0)


def pulled(admin: BlockingAdminClient, queue: MessageQueue, first: int) -> list[MessageExt]:
    header = PullMessageRequestHeader(
        consumer_group="g", topic=queue.topic, queue_id=queue.queue_id, queue_offset=first,
        max_msg_nums=1_000, sys_flag=PullSysFlag.SUBSCRIPTION, commit_offset=0,
        suspend_timeout_millis=0, sub_version=0, subscription="*", expression_type="TAG",
    )  # fmt: skip
    command = RemotingCommand.request(RequestCode.PULL_MESSAGE, header)
    answer = admin.request(admin.master(queue.broker_name), command)
    return decode_messages(answer.body, queue.broker_name)


def waiting(admin: BlockingAdminClient, level: int) -> int:
    return admin.max_offset(MessageQueue(SCHEDULE_TOPIC, "broker-a", level - 1))


def dead_letters(admin: BlockingAdminClient) -> int:
    try:
        return admin.max_offset(DLQ)
    except BrokerError:
        return 0
