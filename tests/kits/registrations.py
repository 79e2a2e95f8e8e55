"""A registration as brokers of Apache's may send it: in lines, compressed; ours sends it plain."""

from __future__ import annotations

import struct
import zlib

from rocketstream.protocol import fastjson
from rocketstream.protocol.bodies import RegisterBrokerBody


def compressed(body: RegisterBrokerBody) -> bytes:
    """Return the zlib form (header field ``compressed`` true); sysFlag and order are not in it."""
    wrapper = body.topic_config_serialize_wrapper
    topics = wrapper.topic_config_table.values()
    lines = [
        f"{topic.topic_name} {topic.read_queue_nums} {topic.write_queue_nums} "
        f"{topic.perm} {topic.topic_filter_type}".encode()
        for topic in topics
    ]
    servers = fastjson.dumps(body.filter_server_list).encode()
    parts = [wrapper.data_version.encode(), *lines, servers]
    texts = [struct.pack(">i", len(part)) + part for part in parts]
    texts.insert(1, struct.pack(">i", len(topics)))
    return zlib.compress(b"".join(texts), 9)
