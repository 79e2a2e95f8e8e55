"""The ends of transactions: code 37 (C-413 to C-416).

The checks are those of upstream's EndTransactionProcessor.
"""

from __future__ import annotations

import logging

from rocketstream.errors import LocalProtocolError, StoreError
from rocketstream.protocol import names
from rocketstream.protocol.codes import MessageSysFlag, RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import EndTransactionRequestHeader
from rocketstream.protocol.properties import PROPERTY_PGROUP
from rocketstream.server.broker.controller import BrokerController
from rocketstream.server.broker.core.acl.accounts import PUB
from rocketstream.server.broker.messages import StoredMessage
from rocketstream.server.broker.transaction_service import TransactionService
from rocketstream.server.dispatch import Handler, ok, refusal
from rocketstream.transport.connection import Connection

logger: logging.Logger = logging.getLogger("rocketstream.server")

NOT_FOUND = "Find prepared transaction message failed"
_ENDS = (MessageSysFlag.TRANSACTION_COMMIT, MessageSysFlag.TRANSACTION_ROLLBACK)


class TransactionHandlers:
    """Commits and rolls back."""

    def __init__(self, controller: BrokerController, service: TransactionService) -> None:
        self._controller = controller
        self._service = service

    def table(self) -> dict[int, Handler]:
        """The codes of this module."""
        return {RequestCode.END_TRANSACTION: self.end}

    def end(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        """Code 37; an undecided end is not answered, since the next check asks again."""
        header = request.header(EndTransactionRequestHeader)
        if header.commit_or_rollback not in _ENDS:
            logger.info(
                "transaction undecided group=%s id=%s check=%s peer=%s: %s",
                header.producer_group, header.msg_id, header.from_transaction_check,
                connection.peer, request.remark,
            )  # fmt: skip
            return None
        half = self._half(header)
        access = self._controller.access
        if access is not None:
            head = half.head
            access.check_stored(connection, request, head.topic, half.properties, PUB)
        if self._service.has_ended(half):
            logger.info("transaction ended before group=%s id=%s",
                        header.producer_group, header.msg_id)  # fmt: skip
            return ok()
        try:
            if header.commit_or_rollback == MessageSysFlag.TRANSACTION_COMMIT:
                self._service.commit(half)
                self._controller.put_count.total += 1
            else:
                self._service.end(half.head.queue_offset)
        except StoreError as error:
            text = f"Service not available now: {error.message}"
            raise refusal(ResponseCode.SERVICE_NOT_AVAILABLE, text) from error
        except (ValueError, LocalProtocolError) as error:
            text = f"the half message cannot be delivered: {error}"
            raise refusal(ResponseCode.SYSTEM_ERROR, text) from error
        return ok()

    def _half(self, header: EndTransactionRequestHeader) -> StoredMessage:
        """Return the half message an end is about, after upstream's three checks and one (C-414).

        Another transaction may have the place of one that a power loss took: it is not ended.
        """
        half = self._service.read(header.commit_log_offset)
        is_half = half is not None and half.head.topic == names.TRANS_HALF_TOPIC
        if half is None or not is_half or not half.may_be(header.msg_id):
            raise refusal(ResponseCode.SYSTEM_ERROR, NOT_FOUND)
        if half.properties.get(PROPERTY_PGROUP) != header.producer_group:
            raise refusal(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if half.head.queue_offset != header.tran_state_table_offset:
            text = "The transaction state table offset wrong"
            raise refusal(ResponseCode.SYSTEM_ERROR, text)
        return half
