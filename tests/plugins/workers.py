"""Prepares workers, and hands files out to them.

Law: knows pytest and pytest-xdist, nothing of the project but how Spark's tests are marked.

A shell without job control has the programs it starts with ``&`` ignore Ctrl-C, and all they start
inherits it: commands that must end by it would never end. So it is heard again here, in the
process that starts all others.

The files of Spark go to one worker, or as many as ``--spark-workers`` says, which run them first.

Of a worker that died, xdist hands out again the files it had finished as well, as files without a
test: workers that are given those last wait for ever. They are taken out here.
"""

from __future__ import annotations

import signal
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from xdist.scheduler import LoadFileScheduling

SPARK_WORKERS: Final = "--spark-workers"


@cache
def starts_spark(file: Path) -> bool:
    """Tell whether the tests of a file are Spark's, and none of those beside Apache's programs."""
    text = file.read_text(encoding="utf-8")
    return "mark.spark" in text and "mark.interop" not in text


class _Files(LoadFileScheduling):  # type: ignore[misc]  # of xdist, which is untyped
    """Hands out files, of a worker that died those it had not finished.

    The first workers alone have Spark's: where files share one session, two sessions at a time
    take longer than one after the other.
    """

    def _assign_work_unit(self, node: Any) -> None:
        """Give a worker the next file that is for it, or send it home."""
        root = self.config.rootpath
        is_for_spark = node in self.nodes[: self.config.getoption(SPARK_WORKERS)]
        fits = (name for name in self.workqueue if starts_spark(root / name) is is_for_spark)
        if name := next(fits, None):
            self.workqueue.move_to_end(name, last=False)
        elif not is_for_spark:
            node.shutdown()
            return
        super()._assign_work_unit(node)

    def remove_node(self, node: Any) -> str | None:
        """Take a worker out; returns the test it died in."""
        files = self.assigned_work[node]
        for name in [name for name, tests in files.items() if all(tests.values())]:
            del files[name]
        died_in: str | None = super().remove_node(node)
        return died_in


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption(
        SPARK_WORKERS, type=int, default=1, help="how many workers run the files of Spark"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """Have files handed out by the scheduler above, where files are."""
    return _Files(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_configure() -> None:
    """Hear Ctrl-C, as programs that a terminal starts do."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
