"""One worker: ``python -m tests.outside.worker '{…}'`` sends or consumes until it is told to leave.

SIGTERM has it leave in good order. Its history, its log and its home are in the round's folder.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import rocketstream
from rocketstream import RocketMQError
from tests.outside import consuming, observer, producing
from tests.outside.recording import Recorder, pause


def main(order: dict[str, object]) -> None:
    """Do as ordered."""
    logging.basicConfig(
        format="%(asctime)s.%(msecs)03d %(threadName)s %(name)s %(message)s", level="INFO"
    )
    folder, role = Path(str(order["folder"])), str(order["role"])
    package = Path(rocketstream.__file__)
    if not package.is_relative_to(str(order["package"])):
        raise SystemExit(f"{package} is not the installed package")
    leaving = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: leaving.set())
    recorder = Recorder(folder / "history", str(order["by"]))
    recorder.note("start", role=role, group=order.get("group", ""))
    common = {
        "recorder": recorder,
        "namesrv_addr": order["namesrv_addr"],
        "name": order["name"],
        "leaving": leaving,
    }
    given = order["settings"]
    assert isinstance(given, dict)
    while not leaving.is_set():
        try:
            _work(role, common, given, str(order["group"]), folder)
            break
        except RocketMQError as error:
            if recorder.has_written("ready"):
                raise
            # A client does not start where no server answers: what looks after it tries again.
            recorder.note("remark", text=str(error)[:200])
            pause(0.5)
    recorder.note("stopped")
    recorder.close()


def _work(
    role: str,
    common: dict[str, Any],
    given: dict[str, Any],
    group: str,
    folder: Path,
) -> None:
    if role == "observer":
        observer.observe(observer.Watch(**common, quiet=folder / "final", **given))
    elif role in producing.ROLES:
        producing.ROLES[role](producing.Work(**common, quiet=folder / "quiet", **given))
    else:
        consuming.ROLES[role](consuming.Task(**common, group=group, **given))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
