"""The message store: RocketMQ's own files, byte for byte, with recovery that never guesses.

Law: no other package writes message files; the store knows records and files, no sockets, no
brokers.
"""

from rocketstream.server.store.files import Files
from rocketstream.server.store.json_files import ConfigFile
from rocketstream.server.store.results import (
    GetMessageStatus,
    GetResult,
    Place,
    QueryResult,
    RecoveryReport,
    StoreConfig,
)
from rocketstream.server.store.retention import RetentionConfig
from rocketstream.server.store.store import MessageStore

__all__ = [
    "ConfigFile",
    "Files",
    "GetMessageStatus",
    "GetResult",
    "MessageStore",
    "Place",
    "QueryResult",
    "RecoveryReport",
    "RetentionConfig",
    "StoreConfig",
]
