"""Single requests of our protocol, as the wire suites send them.

Law: builds commands and reads answers; asserts nothing.
"""

from __future__ import annotations

from rocketstream.protocol.bodies import GetConsumerListByGroupResponseBody
from rocketstream.protocol.codes import PullSysFlag, RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    GetConsumerListByGroupRequestHeader,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    PullMessageRequestHeader,
    SendMessageRequestHeader,
)
from rocketstream.protocol.message_ext import MessageExt, decode_messages
from rocketstream.protocol.properties import encode_properties
from rocketstream.protocol.record import BatchItem, encode_batch
from rocketstream.transport.blocking_connection import BlockingConnection
from tests.plugins.waiting import wait_until

TIMEOUT_MS = 10_000
BORN_MS = 1_700_000_000_000


def send_command(
    topic: str,
    body: bytes,
    properties: dict[str, str] | None = None,
    *,
    queue_id: int = 0,
    sys_flag: int = 0,
    code: RequestCode = RequestCode.SEND_MESSAGE_V2,
) -> RemotingCommand:
    """A send of one message, V1 or V2."""
    header = SendMessageRequestHeader(
        producer_group="wire",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=queue_id,
        sys_flag=sys_flag,
        born_timestamp=BORN_MS,
        flag=7,
        properties=encode_properties(properties or {}),
        batch=code == RequestCode.SEND_BATCH_MESSAGE,
    )
    command = RemotingCommand.request(code, header, body)
    if code != RequestCode.SEND_MESSAGE:
        command.ext_fields = header.to_ext_v2()
    return command


def batch_command(topic: str, bodies: list[bytes]) -> RemotingCommand:
    """A batch of messages for queue 0, each with its own unique key."""
    items = [
        BatchItem(0, body, encode_properties({"UNIQ_KEY": f"batch-{number}"}).encode())
        for number, body in enumerate(bodies)
    ]
    return send_command(topic, encode_batch(items), code=RequestCode.SEND_BATCH_MESSAGE)


def pull_command(
    topic: str,
    offset: int,
    *,
    expression: str = "*",
    queue_id: int = 0,
    max_msg_nums: int = 32,
    code: RequestCode = RequestCode.PULL_MESSAGE,
) -> RemotingCommand:
    """A pull of one queue with its subscription in the request and no long polling."""
    header = PullMessageRequestHeader(
        consumer_group="wire",
        topic=topic,
        queue_id=queue_id,
        queue_offset=offset,
        max_msg_nums=max_msg_nums,
        sys_flag=PullSysFlag.SUBSCRIPTION,
        commit_offset=0,
        suspend_timeout_millis=0,
        sub_version=0,
        subscription=expression,
    )
    return RemotingCommand.request(code, header)


def pull_all(
    connection: BlockingConnection,
    topic: str,
    count: int,
    expression: str = "*",
    *,
    queue_id: int = 0,
) -> list[MessageExt]:
    """Every matching message of one queue, once it holds ``count``: a broker acknowledges a send
    a moment before its consume queue shows it."""
    wait_until(lambda: max_offset(connection, topic, queue_id) >= count, f"{count} in {topic}")
    found: list[MessageExt] = []
    offset = 0
    while True:
        command = pull_command(topic, offset, expression=expression, queue_id=queue_id)
        answer = connection.request(command, TIMEOUT_MS)
        if answer.code == 0:
            found += decode_messages(bytes(answer.body), "broker-a")
        elif answer.code != 20:
            return found
        offset = int((answer.ext_fields or {})["nextBeginOffset"])


def max_offset(connection: BlockingConnection, topic: str, queue_id: int = 0) -> int:
    """The max offset of one queue."""
    header = GetMaxOffsetRequestHeader(topic, queue_id)
    command = RemotingCommand.request(RequestCode.GET_MAX_OFFSET, header)
    return connection.request(command, TIMEOUT_MS).header(GetMaxOffsetResponseHeader).offset


def members(connection: BlockingConnection, group: str) -> list[str]:
    """Client ids of a group's members, none while the broker does not know the group."""
    header = GetConsumerListByGroupRequestHeader(group)
    command = RemotingCommand.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
    answer = connection.request(command, TIMEOUT_MS)
    if answer.code != 0:
        return []
    return GetConsumerListByGroupResponseBody.decode(bytes(answer.body)).consumer_id_list
