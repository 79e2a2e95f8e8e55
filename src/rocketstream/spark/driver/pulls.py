"""The pulls of the driver: one message at an offset, at once or when it arrives.

Law: pure; values in, a request out.
"""

from __future__ import annotations

from rocketstream.model import MessageQueue
from rocketstream.protocol.codes import PullSysFlag, RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import PullMessageRequestHeader
from rocketstream.spark.options import ReadOptions
from rocketstream.spark.scan import DEFAULT_GROUP


def pull_one(
    options: ReadOptions, queue: MessageQueue, offset: int, hold_ms: int = 0
) -> RemotingCommand:
    """Return a pull of the message at an offset, whatever the tags of the read.

    Args:
        options: name the group.
        queue: where it is.
        offset: which one.
        hold_ms: how long the broker shall wait for it, if it is not there yet.
    """
    header = PullMessageRequestHeader(
        consumer_group=options.group or DEFAULT_GROUP,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=1,
        sys_flag=PullSysFlag.SUBSCRIPTION | (PullSysFlag.SUSPEND if hold_ms else 0),
        commit_offset=0,
        suspend_timeout_millis=hold_ms,
        sub_version=0,
        subscription="*",
        expression_type="TAG",
        bname=queue.broker_name,
    )
    return RemotingCommand.request(RequestCode.PULL_MESSAGE, header)
