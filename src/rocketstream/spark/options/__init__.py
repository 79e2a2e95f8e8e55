"""The options of our formats, parsed and checked in one place.

Pure: text in, frozen values out. ``connecting`` has the options all formats share.
"""

from rocketstream.spark.options.connecting import CONNECT_OPTIONS, ConnectOptions, connect_options
from rocketstream.spark.options.consuming import (
    CONSUME_OPTIONS,
    ConsumeOptions,
    consume_options,
)
from rocketstream.spark.options.parsing import known
from rocketstream.spark.options.positions import (
    AT_EARLIEST,
    AT_LATEST,
    EARLIEST,
    LATEST,
    Mode,
    Position,
    QueueTable,
)
from rocketstream.spark.options.reading import (
    READ_OPTIONS,
    ReadOptions,
    is_permissive,
    read_options,
)
from rocketstream.spark.options.storing import (
    STORE_OPTIONS,
    StoreOptions,
    is_store_read,
    store_options,
)
from rocketstream.spark.options.times import since_1970
from rocketstream.spark.options.topics import TopicChoice
from rocketstream.spark.options.trigger_limits import TriggerLimits
from rocketstream.spark.options.writing import WRITE_OPTIONS, WriteOptions, write_options

__all__ = [
    "AT_EARLIEST",
    "AT_LATEST",
    "CONNECT_OPTIONS",
    "CONSUME_OPTIONS",
    "EARLIEST",
    "LATEST",
    "READ_OPTIONS",
    "STORE_OPTIONS",
    "WRITE_OPTIONS",
    "ConnectOptions",
    "ConsumeOptions",
    "Mode",
    "Position",
    "QueueTable",
    "ReadOptions",
    "StoreOptions",
    "TopicChoice",
    "TriggerLimits",
    "WriteOptions",
    "connect_options",
    "consume_options",
    "is_permissive",
    "is_store_read",
    "known",
    "read_options",
    "since_1970",
    "store_options",
    "write_options",
]
