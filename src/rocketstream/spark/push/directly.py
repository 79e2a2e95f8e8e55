"""A message consumed on an operator's request (309): by the listener, in a Spark job of one task.

Law: hands over and brings back; the call itself is ``consumer.directly``'s business.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from pyspark.sql import functions

from rocketstream.protocol.bodies import ConsumeMessageDirectlyResult
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.spark.consumer.directly import consume_one
from rocketstream.spark.options import consume_options


class OnRequest:
    """Gives messages to a listener where it is at home; one at a time; any thread.

    Args:
        session: whose workers run the listener.
        options: of the sink, with the packed listener.
    """

    def __init__(self, session: Any, options: Mapping[str, str]) -> None:
        self._session = session
        self._options = consume_options(options)
        self._busy = threading.Lock()

    def __call__(self, message: MessageExt, broker_name: str) -> ConsumeMessageDirectlyResult:
        """Have a message consumed; blocks until Spark has a slot and the listener has answered.

        What goes wrong is in the answer, as a listener's exception is.
        """
        if not self._busy.acquire(blocking=False):
            return _failed("another message is being consumed on request; ask again")
        try:
            return self._run(message.stored_record, broker_name)
        except Exception as error:  # whatever Spark raises of a job that fails
            return _failed(f"the Spark job that calls the listener failed: {error}")
        finally:
            self._busy.release()

    def _run(self, record: bytes, broker_name: str) -> ConsumeMessageDirectlyResult:
        options = self._options
        # A lambda, since Spark takes hints of types for the kind of function it is to be; and not
        # deterministic, since it may call a function again that it holds to answer always alike.
        call = functions.udf(lambda _: consume_one(options, record, broker_name), "binary")
        asked = call.asNondeterministic()
        rows = self._session.range(0, 1, 1, 1).select(asked("id").alias("answer")).collect()
        return ConsumeMessageDirectlyResult.decode(bytes(rows[0].answer))


def _failed(remark: str) -> ConsumeMessageDirectlyResult:
    return ConsumeMessageDirectlyResult(consume_result="CR_THROW_EXCEPTION", remark=remark)
