"""The options of our formats, parsed and checked in one place.

Pure: text in, frozen values out. ``connecting`` has the options all formats share.
"""

from rocketstream.spark.options.connecting import (
    CONNECT_OPTIONS,
    ConnectOptions,
    connect_options,
    known,
    since_1970,
)
from rocketstream.spark.options.formats import (
    CONSUME_OPTIONS,
    STORE_OPTIONS,
    WRITE_OPTIONS,
    ConsumeOptions,
    StoreOptions,
    WriteOptions,
    consume_options,
    is_store_read,
    store_options,
    write_options,
)
from rocketstream.spark.options.reading import (
    AT_EARLIEST,
    AT_LATEST,
    EARLIEST,
    LATEST,
    READ_OPTIONS,
    Mode,
    Position,
    QueueTable,
    ReadOptions,
    TopicChoice,
    TriggerLimits,
    is_permissive,
    read_options,
)

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
