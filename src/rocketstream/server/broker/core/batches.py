"""Batches: their messages are read and checked, and become records of one queue.

Pure: the work is done in steps, since a batch may have thousands of messages (C-431).
"""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass, field

from rocketstream.errors import BrokerError
from rocketstream.limits import BATCH_STORED_BYTES_MAX, PROPERTIES_BYTES_MAX
from rocketstream.protocol import names
from rocketstream.protocol.codes import ResponseCode
from rocketstream.protocol.headers import SendMessageRequestHeader
from rocketstream.protocol.properties import (
    PROPERTIES_CRC,
    PROPERTY_CLUSTER,
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_TRAN_MSG,
    PROPERTY_UNIQ_KEY,
    PROPERTY_WAIT,
    decode_properties,
    encode_properties,
)
from rocketstream.protocol.record import (
    Draft,
    decode_batch,
    draft_tail,
    head_bytes,
    index_keys,
    own_hosts,
    sealable,
    topic_head,
)
from rocketstream.protocol.tag_hash import tags_code
from rocketstream.server.broker.core.sends import SendRules, delay_level_of, illegal

_MESSAGES_A_STEP = 8
_TEXT = rb"[^\x00-\x02\x80-\xff]"
_READ = {PROPERTY_TAGS, PROPERTY_KEYS, PROPERTY_DELAY, PROPERTY_TRAN_MSG, PROPERTIES_CRC}
"""The properties of a message the broker itself reads, but for its id."""
_usual_properties = re.compile(
    rb"((?:(?:UNIQ_KEY\x01(%(text)b++)|KEYS\x01(%(text)b++)|TAGS\x01(%(text)b++)"
    rb"|(?!(?:DELAY|TRAN_MSG|PROPERTIES_CRC)\x01)%(text)b++\x01%(text)b++)"
    rb"(?:\x02(?!\Z)|(?=\x02?\Z)))*+)\x02?+" % {b"text": _TEXT}
).fullmatch
r"""Plain ASCII properties, none of them empty or one that no batch may have; groups: the text
without a last ``\x02``, the values of UNIQ_KEY, KEYS and TAGS. Of a name that is given twice the
last counts, as for all who read it."""


@dataclass(slots=True)
class Batch:
    """The messages of a batch as they are stored: one queue's, in their order.

    Attributes:
        wants_flush: whether the answer waits for the disk.
        drafts: one of each message.
    """

    wants_flush: bool
    drafts: list[Draft] = field(default_factory=list)


class _Properties:
    """Merges the properties of the batch and of each message to the text that is stored.

    A message's own win: 5.x clients give the batch a UNIQ_KEY of its own. Usual texts are stored as
    they came, behind those properties of the batch that they do not name.
    """

    def __init__(self, rules: SendRules, common: dict[str, str]) -> None:
        self._rules = rules
        self._common = common
        self._is_usual = _READ.isdisjoint(common)
        self._unique = common.get(PROPERTY_UNIQ_KEY, "")
        self._shared = [
            (f"\x02{name}\x01".encode(), f"{name}\x01{value}\x02".encode())
            for name, value in common.items()
        ]

    def of(self, text: bytes) -> tuple[bytes, int, list[str]]:
        """Return the stored text, the tagsCode and the keys.

        Raises:
            BrokerError: no batch may have such a message.
        """
        found = _usual_properties(text) if self._is_usual else None
        if found is None:
            return self._of_any(text)
        pairs, unique, keys, tags = found.groups()
        named = b"\x02" + pairs
        stored = b"".join([pair for name, pair in self._shared if name not in named]) + pairs
        if len(stored) > PROPERTIES_BYTES_MAX:
            raise illegal(self._rules)
        code = tags_code(tags.decode()) if tags else 0
        own = unique.decode() if unique else self._unique
        if keys:
            return stored, code, index_keys(own, keys.decode())
        return stored, code, [own] if own else []

    def _of_any(self, text: bytes) -> tuple[bytes, int, list[str]]:
        properties = {**self._common, **decode_properties(text)}
        if delay_level_of(properties) > 0 or PROPERTY_TRAN_MSG in properties:
            raise illegal(self._rules)
        stored = encode_properties(properties).encode()
        if len(stored) > PROPERTIES_BYTES_MAX:
            raise illegal(self._rules)
        get = properties.get
        keys = index_keys(get(PROPERTY_UNIQ_KEY), get(PROPERTY_KEYS))
        return stored, tags_code(get(PROPERTY_TAGS)), keys


def read_batch(
    rules: SendRules,
    header: SendMessageRequestHeader,
    queue_id: int,
    body: bytes | memoryview,
    hosts: tuple[bytes, bytes],
) -> Generator[None, None, Batch]:
    """Return the parts of a batch that are stored.

    Args:
        hosts: packed addresses of the sender and of this broker.

    Raises:
        BrokerError: the body cannot be a batch, or is too large.
        RemoteProtocolError: lengths in the body do not add up.
    """
    if len(body) > rules.body_bytes_max:
        raise illegal(rules)
    items = decode_batch(body)
    if not items or header.topic.startswith(names.RETRY_PREFIX):
        raise illegal(rules)
    common = decode_properties(header.properties) if header.properties else {}
    common[PROPERTY_CLUSTER] = rules.cluster
    batch = Batch(common.get(PROPERTY_WAIT) != "false")
    properties = _Properties(rules, common)
    key, (magic, topic) = (header.topic, queue_id), topic_head(header.topic.encode())
    sys_flag, born = own_hosts(header.sys_flag, *hosts), header.born_timestamp
    times, before, stored_bytes = header.reconsume_times or 0, head_bytes(sys_flag), 0
    for number, item in enumerate(items):
        text, code, keys = properties.of(item.properties)
        tail = draft_tail(topic, sealable(text))
        size = before + len(item.body) + len(tail)
        stored_bytes += size
        batch.drafts.append((
            key, size, magic, item.flag, sys_flag, born, *hosts, times, 0, item.body, tail, code,
            keys,
        ))  # fmt: skip
        if not number % _MESSAGES_A_STEP:
            yield
    if stored_bytes > BATCH_STORED_BYTES_MAX:
        raise BrokerError(
            int(ResponseCode.MESSAGE_ILLEGAL),
            f"the records of the batch take more than {BATCH_STORED_BYTES_MAX} bytes, since the "
            "properties of a batch are stored with each of its messages; send smaller batches",
        )
    return batch
