"""A message consumed on an operator's request (309): by the listener, in a one-task Spark job.

``consumer.directly`` makes the call in the task.
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
    """Gives messages to a listener in Spark's workers; one at a time; from any thread.

    Args:
        session: the session whose workers run the listener.
        options: the options of the sink, with the packed listener.
    """

    def __init__(self, session: Any, options: Mapping[str, str]) -> None:
        self._session = session
        self._options = consume_options(options)
        self._busy = threading.Lock()

    def __call__(self, message: MessageExt, broker_name: str) -> ConsumeMessageDirectlyResult:
        """Consume a message; blocks until Spark has a slot and the listener has answered.

        A failure is reported in the answer, like a listener's exception.
        """
        if not self._busy.acquire(blocking=False):
            return _failed("another message is being consumed on request; ask again")
        try:
            return self._run(message.stored_record, broker_name)
        except Exception as error:  # whatever Spark raises for a job that fails
            return _failed(f"the Spark job that calls the listener failed: {error}")
        finally:
            self._busy.release()

    def _run(self, record: bytes, broker_name: str) -> ConsumeMessageDirectlyResult:
        options = self._options
        # A lambda, because Spark derives the kind of function from type hints. Not deterministic,
        # because Spark may call a deterministic function again.
        call = functions.udf(lambda _: consume_one(options, record, broker_name), "binary")
        asked = call.asNondeterministic()
        rows = self._session.range(0, 1, 1, 1).select(asked("id").alias("answer")).collect()
        return ConsumeMessageDirectlyResult.decode(bytes(rows[0].answer))


def _failed(remark: str) -> ConsumeMessageDirectlyResult:
    return ConsumeMessageDirectlyResult(consume_result="CR_THROW_EXCEPTION", remark=remark)
