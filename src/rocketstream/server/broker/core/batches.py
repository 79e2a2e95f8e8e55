"""Batches: their messages are read and checked, and become records of one queue.

Pure: the work is done in steps, since a batch may have thousands of messages (C-431).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from operator import itemgetter

from rocketstream.errors import BrokerError
from rocketstream.limits import BATCH_STORED_BYTES_MAX, PROPERTIES_BYTES_MAX
from rocketstream.protocol import names
from rocketstream.protocol.codes import ResponseCode
from rocketstream.protocol.headers import SendMessageRequestHeader
from rocketstream.protocol.properties import (
    PROPERTY_CLUSTER,
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_TRAN_MSG,
    PROPERTY_UNIQ_KEY,
    PROPERTY_WAIT,
    PropertiesForm,
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
_FORMS_MAX = 4
"""Most forms made for one batch: making one takes as long as reading hundreds of messages."""
_SHOWN = (PROPERTY_TAGS, PROPERTY_UNIQ_KEY, PROPERTY_KEYS)
"""The properties the broker itself reads of a message that is stored unchanged."""


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
    """Merges the properties of the batch and of each message to the text that is stored."""

    def __init__(self, rules: SendRules, common: dict[str, str]) -> None:
        self._rules = rules
        self._common = common
        self._names: list[str] = []
        self._forms_left = _FORMS_MAX
        self._form: PropertiesForm | None = None
        self._template = b""
        self._ordered: Callable[[tuple[bytes, ...]], tuple[bytes, ...] | bytes] = tuple
        self._places = (-1, -1, -1)

    def of(self, text: bytes) -> tuple[bytes, int, list[str]]:
        """Return the stored text, the tagsCode and the keys.

        Raises:
            BrokerError: no batch may have such a message.
        """
        found = self._form.match(text) if self._form is not None else None
        if found is None:
            return self._of_any(text)
        values = found.groups()
        stored = self._template % self._ordered(values)
        if len(stored) > PROPERTIES_BYTES_MAX:
            raise illegal(self._rules)
        tags, unique, keys = self._places
        code = tags_code(values[tags].decode()) if tags >= 0 else 0
        own = values[unique].decode() if unique >= 0 else None
        if keys >= 0:
            return stored, code, index_keys(own, values[keys].decode())
        return stored, code, [own] if own else []

    def _of_any(self, text: bytes) -> tuple[bytes, int, list[str]]:
        own = decode_properties(text)
        # A message's own properties win: 5.x clients give the batch a UNIQ_KEY of its own.
        properties = {**self._common, **own}
        if delay_level_of(properties) > 0 or PROPERTY_TRAN_MSG in properties:
            raise illegal(self._rules)
        stored = encode_properties(properties).encode()
        if len(stored) > PROPERTIES_BYTES_MAX:
            raise illegal(self._rules)
        self._learn(list(own))
        get = properties.get
        keys = index_keys(get(PROPERTY_UNIQ_KEY), get(PROPERTY_KEYS))
        return stored, tags_code(get(PROPERTY_TAGS)), keys

    def _learn(self, own: list[str]) -> None:
        """Make a form when two messages in a row have the same properties."""
        is_like_last, self._names = own == self._names, own
        if not is_like_last or not own or not self._forms_left:
            return
        self._forms_left -= 1
        own_or_none = all(name in own or name not in self._common for name in _SHOWN)
        if not own_or_none or PROPERTY_DELAY in own or PROPERTY_DELAY in self._common:
            return
        if "\0" in encode_properties({**self._common, **dict.fromkeys(own, "")}):
            return
        self._form = form = PropertiesForm(own)
        self._template, order = form.merged(self._common)
        self._ordered = itemgetter(*order)
        tags, unique, keys = [form.place(name) for name in _SHOWN]
        self._places = (tags, unique, keys)


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
