"""One member of the push consumers' group, as a process of its own: ``python -m demo.member``.

Law: consumes until its standard input ends, which it does with the process that started it.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from types import TracebackType
from typing import IO, Self

from demo.errors import DemoError, Interrupts
from demo.listener import FlightListener
from demo.place import Place
from demo.produce import TOPIC
from rocketstream import ConsumeFromWhere, PushConsumer

PUSH_GROUP = "flight-totals"
MAX_RECONSUME_TIMES = 2
READY = b"ready\n"
_STOP_TIMEOUT_S = 20.0


class MemberProcess:
    """A member while a ``with`` block lasts; it has a session of its own, as the broker has.

    Args:
        namesrv: the name server.
        place: where the files of the run are.
    """

    def __init__(self, namesrv: str, place: Place) -> None:
        self._log_path = place.client_log
        self._log: IO[bytes] = place.client_log.open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "demo.member", namesrv, str(place.journal(PUSH_GROUP))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )

    def wait_ready(self, interrupts: Interrupts) -> None:
        """Wait until it has joined its group.

        Raises:
            DemoError: it ended instead.
        """
        assert self._process.stdout is not None
        if self._process.stdout.readline() != READY:
            # A Ctrl-C that comes before the new process has its session ends it as well.
            interrupts.check()
            raise DemoError(f"a push consumer did not start (see {self._log_path})")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()


def main(namesrv: str, folder: str) -> None:
    """Consume with the demo's listener until standard input ends."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s")
    consumer = PushConsumer(
        PUSH_GROUP,
        namesrv_addr=namesrv,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        max_reconsume_times=MAX_RECONSUME_TIMES,
        consume_thread_min=1,
        consume_thread_max=1,
    )
    consumer.subscribe(TOPIC)
    consumer.register_message_listener(FlightListener(folder))
    with consumer:
        sys.stdout.buffer.write(READY)
        sys.stdout.flush()
        sys.stdin.buffer.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
