"""``rocketstream top`` in a terminal of its own, over a running broker that goes away."""

from __future__ import annotations

import contextlib
import signal
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect  # type: ignore[import-untyped]
import pyte
import pytest

from rocketstream import Message, Producer, PullConsumer
from rocketstream._util.clock import SYSTEM_CLOCK
from rocketstream.server.embedded import EmbeddedCluster
from tests.plugins.commands import Quick, environment

DEADLINE_S = 60
TOPIC, GROUP = "top-orders", "top-billing"


class Terminal:
    """A terminal with the command in it, and another size in its environment, as shells export."""

    def __init__(self, namesrv: str, columns: int = 80, rows: int = 24) -> None:
        self.screen = pyte.Screen(columns, rows)
        self.stream = pyte.ByteStream(self.screen)
        env = environment(namesrv) | {"TERM": "xterm-256color", "COLUMNS": "91", "LINES": "33"}
        self.child = pexpect.spawn(
            sys.executable,
            ["-m", "rocketstream", "top", "--interval", "1"],
            dimensions=(rows, columns),
            env=env,
        )

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.screen.display)

    def until(self, shown: Callable[[str], bool]) -> str:
        """Read on until the screen shows it."""
        end_ms = SYSTEM_CLOCK.monotonic_ms() + DEADLINE_S * 1_000
        while not shown(self.text):
            assert SYSTEM_CLOCK.monotonic_ms() < end_ms, self.text
            self._read()
        return self.text

    def until_gone(self) -> int:
        while self._read():
            pass
        self.child.close()
        return int(self.child.exitstatus)

    def resize(self, columns: int, rows: int) -> None:
        self.screen.resize(rows, columns)
        self.child.setwinsize(rows, columns)

    def _read(self) -> bool:
        try:
            self.stream.feed(self.child.read_nonblocking(65_536, timeout=1))
        except pexpect.TIMEOUT:
            pass
        except pexpect.EOF:
            return False
        return True


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(tmp_path / "store") as cluster:
        addr = cluster.namesrv_addr
        with Producer("top-producer", namesrv_addr=addr) as producer:
            for number in range(1_234):
                producer.send(Message(TOPIC, f"{number}"))
        with PullConsumer(GROUP, namesrv_addr=addr) as consumer:
            for queue in consumer.fetch_subscribe_message_queues(TOPIC):
                consumer.update_consume_offset_to_broker(queue, 0)
        yield cluster


@pytest.mark.long
def test_a_group_its_topics_and_an_outage_are_shown_in_a_real_terminal(
    cluster: EmbeddedCluster,
) -> None:
    terminal = Terminal(cluster.namesrv_addr)
    try:
        text = terminal.until(lambda text: GROUP in text and "1,234" in text)
        assert all(len(line) <= 80 for line in text.splitlines())
        terminal.child.send(":t\r")  # as fast as a paste
        terminal.until(lambda text: text.startswith("topics of") and TOPIC in text)
        terminal.child.send("\r")
        terminal.until(lambda text: f"groups of topic {TOPIC}" in text and GROUP in text)
        terminal.resize(50, 20)
        terminal.until(lambda text: "1,234" in text and GROUP in text)
        terminal.child.send(":g\r")
        terminal.until(lambda text: text.startswith("groups of") and "1,234" in text)
        cluster.close()
        # The screen is drawn in pieces: its table may come after its first lines.
        terminal.until(lambda text: "NOT ANSWERING since" in text and GROUP in text)
        terminal.child.send("q")
        assert terminal.until_gone() == 0
        assert "Traceback" not in terminal.text
    finally:
        terminal.child.close(force=True)


@pytest.mark.long
@pytest.mark.parametrize("times", [1, 2])
def test_ended_by_interrupts_it_gives_the_terminal_back(
    cluster: EmbeddedCluster, times: int
) -> None:
    terminal = Terminal(cluster.namesrv_addr)
    mode = termios.tcgetattr(terminal.child.child_fd)
    try:
        terminal.until(lambda text: GROUP in text)
        assert termios.tcgetattr(terminal.child.child_fd) != mode
        for _ in range(times):
            terminal.child.kill(signal.SIGINT)
        written = b""
        with contextlib.suppress(pexpect.EOF):
            while True:
                written += terminal.child.read_nonblocking(65_536, timeout=DEADLINE_S)
        assert b"\x1b[?1049l" in written
        assert b"\x1b[?25h" in written
        assert b"Traceback" not in written
        assert termios.tcgetattr(terminal.child.child_fd) == mode
    finally:
        terminal.child.close(force=True)


def test_without_a_terminal_it_says_what_to_use_instead(quick: Quick) -> None:
    assert "group list" in quick("top").failed(2)


def test_a_view_that_is_none_is_refused(quick: Quick) -> None:
    assert "'groups', 'topics', 'brokers'" in quick("top", "--view", "pods").failed(2)
