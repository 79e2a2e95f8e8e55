"""Message look-ups: code 12 by key, code 33 by physical offset."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rocketstream.errors import RemoteProtocolError
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
    ViewMessageRequestHeader,
)
from rocketstream.server.broker.controller import BrokerController
from rocketstream.server.broker.core.acl.accounts import PUB, SUB
from rocketstream.server.broker.messages import index_keys, read_stored
from rocketstream.server.dispatch import Handler, refusal
from rocketstream.transport.connection import Connection
from rocketstream.transport.sharing import Steps

UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
MESSAGES_MAX = 64
UNIQUE_MESSAGES_MAX = 32


class MessageHandlers:
    """Requests for single messages."""

    def __init__(self, controller: BrokerController) -> None:
        self._controller = controller
        self._store = controller.store

    def table(self) -> dict[int, Handler]:
        """The codes of this module."""
        return {
            RequestCode.QUERY_MESSAGE: self.query,
            RequestCode.VIEW_MESSAGE_BY_ID: self.view,
        }

    def query(self, connection: Connection, request: RemotingCommand) -> Steps:
        """Code 12; messages not indexed yet are indexed first, in steps between other requests."""
        header = request.header(QueryMessageRequestHeader)
        most = header.max_num
        if (request.ext_fields or {}).get(UNIQUE_KEY_QUERY) == "true":
            most = UNIQUE_MESSAGES_MAX
        yield from self._store.indexing()
        found = yield from self._store.querying_by_key(
            header.topic,
            header.key,
            min(most, MESSAGES_MAX),
            header.begin_timestamp,
            header.end_timestamp,
        )
        access, topic = self._controller.access, header.topic
        may_read = None if access is None else access.reader(connection, request, topic)
        # The index knows only hashes: another key may have the same one.
        records = [r for r in found.records if _is_found_by(r, topic, header.key, may_read)]
        if not records and not found.complete:
            raise refusal(
                ResponseCode.SYSTEM_ERROR,
                "the key index lacks messages that are stored: after a crash or on a full disk it "
                "is brought up to date in the background; ask again later",
            )
        response = RemotingCommand.response(
            ResponseCode.SUCCESS if records else ResponseCode.QUERY_NOT_FOUND,
            None if records else "can not find message, maybe time range not correct",
            # Upstream tells how far its index reaches only together with a message.
            QueryMessageResponseHeader(
                index_last_update_timestamp=found.index_last_update_timestamp if records else 0,
                index_last_update_phyoffset=(
                    found.index_last_update_physical_offset if records else 0
                ),
            ),
        )
        connection.reply(request, response, records)
        return None

    def view(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        """Code 33."""
        header = request.header(ViewMessageRequestHeader)
        record = self._store.read(header.offset) if header.offset >= 0 else None
        if record is None:
            text = f"can not find message by the offset, {header.offset}"
            raise refusal(ResponseCode.SYSTEM_ERROR, text)
        access = self._controller.access
        if access is not None:
            stored = read_stored(record)
            wanted = PUB | SUB
            access.check_stored(connection, request, stored.head.topic, stored.properties, wanted)
        connection.reply(request, RemotingCommand.response(ResponseCode.SUCCESS), [record])
        return None


def _is_found_by(
    record: bytes, topic: str, key: str, may_read: Callable[[Mapping[str, str]], bool] | None
) -> bool:
    try:
        stored = read_stored(record)
    except RemoteProtocolError:
        return False
    is_meant = stored.head.topic == topic and key in index_keys(stored.properties)
    return is_meant and (may_read is None or may_read(stored.properties))
