"""Dead letters as rows: what a group gave up, where it came from and how often it was tried.

Law: Spark's SQL over ``format("rocketmq")``, nothing else: it works wherever that does, Spark
Connect included.
"""

from __future__ import annotations

from typing import Any, Final

from rocketstream.errors import ConfigurationError
from rocketstream.protocol.names import DLQ_PREFIX, check_group, dlq_topic

_READ: Final = (
    "topic STRING, brokerName STRING, queueId INT, queueOffset BIGINT, msgId STRING, tags STRING, "
    "keys STRING, body BINARY, properties MAP<STRING, STRING>, bornTimestamp TIMESTAMP, "
    "bornHost STRING, storeTimestamp TIMESTAMP, reconsumeTimes INT"
)
_COLUMNS: Final = (
    f"substring(topic, {len(DLQ_PREFIX) + 1}) AS `group`",
    # Brokers write the last two; the first ones are 5.x's own names of the same values.
    "coalesce(try_element_at(properties, 'DLQ_ORIGIN_TOPIC'), "
    "try_element_at(properties, 'RETRY_TOPIC')) AS originTopic",
    "coalesce(try_element_at(properties, 'DLQ_ORIGIN_MESSAGE_ID'), "
    "try_element_at(properties, 'ORIGIN_MESSAGE_ID')) AS originMsgId",
    "msgId",
    "tags",
    "keys",
    "body",
    "properties",
    "reconsumeTimes",
    # Written by consumers of ours that were configured to do so.
    "try_element_at(properties, 'SEND_BACK_CAUSE') AS cause",
    "try_element_at(properties, 'SEND_BACK_WHERE') AS raisedAt",
    "bornTimestamp",
    "bornHost",
    "storeTimestamp AS deadTimestamp",
    "brokerName",
    "queueId",
    "queueOffset",
)
_OURS: Final = frozenset({"topic", "topics", "topicpattern", "assign"})


def dead_letters(spark: Any, *groups: str, stream: bool = False, **options: Any) -> Any:
    """Return the dead letters of consumer groups as a DataFrame.

    A row has what failed, how often, and when it was given up. It also has the cause if its
    consumer recorded one (``send_back_cause=True``); RocketMQ itself keeps no cause.

    Parameters
    ----------
    spark
        The ``SparkSession``, also of Spark Connect.
    *groups
        The consumer groups, one or several.
    stream
        Follow them as a stream; a batch otherwise.
    **options
        Options of ``format("rocketmq")``: ``nameServer``, ``startingTimestamp``, ``accessKey`` and
        so on.

    Returns
    -------
    DataFrame
        Columns ``group``, ``originTopic`` and ``originMsgId`` (the broker's id of the message that
        failed first; both null for a message that was sent to the dead-letter topic as it is),
        ``msgId``, ``tags``, ``keys``, ``body``, ``properties``, ``reconsumeTimes``,
        ``cause`` and ``raisedAt`` (null where no consumer recorded them), ``bornTimestamp``,
        ``bornHost``, ``deadTimestamp`` (when it was given up), and ``brokerName``, ``queueId``,
        ``queueOffset`` of the dead letter.

    Raises
    ------
    ConfigurationError
        There is no group, a name is not a group name, or an option says what to read.
    """
    if not groups:
        raise ConfigurationError("name at least one consumer group: dead_letters(spark, 'billing')")
    for group in groups:
        check_group(group)
    for name in options:
        if name.lower() in _OURS:
            raise ConfigurationError(
                f"option {name!r} does not go with dead_letters, which reads the dead-letter "
                "topics of the groups named",
                option=name,
            )
    reader = (spark.readStream if stream else spark.read).format("rocketmq").schema(_READ)
    topics = ",".join(dict.fromkeys(dlq_topic(group) for group in groups))
    return reader.options(**options, topic=topics).load().selectExpr(*_COLUMNS)
