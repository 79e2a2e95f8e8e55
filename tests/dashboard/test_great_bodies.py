"""Bodies of 10 MiB: a page and a command show their beginning, say how much, and stay small."""

from __future__ import annotations

import gc
import json
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from starlette.testclient import TestClient

from rocketstream import Message, Producer
from rocketstream.server.embedded import EmbeddedCluster
from tests.dashboard.rig import browsing_live
from tests.plugins.commands import command, environment

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]

MIB: Final = 1024 * 1024
BODY_BYTES: Final = 10 * MIB
BODY_BYTES_MAX: Final = 12 * MIB
PAGE_BYTES_MAX: Final = 2 * MIB
COPIES_MAX: Final = 6
"""Of the greatest body, held at once by broker, client and page, which are one process here."""
LINE: Final = "a line of the text, näher besehen\n"
TEXT: Final = LINE.encode() * (BODY_BYTES // len(LINE.encode()))
BYTES: Final = random.Random(7).randbytes(BODY_BYTES)
ROWS: Final = b"[" + b'{"n": 12345},' * (BODY_BYTES // 13 - 1) + b'{"n": 1}]'
PARTS: Final = {
    "text": f"the first 65,536 of {len(TEXT.decode()):,} characters",
    "hex": f"the first 21,845 of {BODY_BYTES:,} bytes",
    "json": f"the first 65,536 of {len(ROWS):,} characters",
}
PEAK_COPIES: Final = {"text": COPIES_MAX, "hex": COPIES_MAX, "json": 25}
"""JSON is parsed to be masked, and let go of."""


@pytest.fixture(scope="module")
def namesrv() -> Iterator[str]:
    with EmbeddedCluster(message_body_bytes_max=BODY_BYTES_MAX) as cluster:
        cluster.create_topic("great", queues=1)
        cluster.create_topic("small", queues=1)
        yield cluster.namesrv_addr


@pytest.fixture(scope="module")
def ids(namesrv: str) -> dict[str, str]:
    """What each message is shown as, and its id."""
    bodies = {"text": TEXT, "hex": BYTES, "json": ROWS}
    with Producer(
        "p",
        namesrv_addr=namesrv,
        max_message_size=BODY_BYTES_MAX,
        compress_msg_body_over_howmuch=BODY_BYTES_MAX,
    ) as producer:
        sent = {kind: producer.send(Message("great", body)) for kind, body in bodies.items()}
        sent["small"] = producer.send(Message("small", b"x"))
    return {kind: result.msg_id for kind, result in sent.items()}


@pytest.fixture
def browser(namesrv: str, tmp_path: Path) -> Iterator[TestClient]:
    with browsing_live(namesrv, tmp_path) as (found, rig):
        rig.sweep()
        yield found


def traced(work: Callable[[], object]) -> tuple[int, int]:
    """What a piece of work still holds when it is done, and the most it held, bytes."""
    gc.collect()
    tracemalloc.start()
    try:
        answer = work()
        _, peak = tracemalloc.get_traced_memory()
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
        assert answer is not None
        return held, peak
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", PARTS)
def test_the_page_of_a_great_message_shows_its_beginning_and_says_how_much(
    browser: TestClient, ids: dict[str, str], kind: str
) -> None:
    where = {"topic": "great", "id": ids[kind]}
    text = browser.get("/message", params=where).text
    assert f"Only the beginning is shown: {PARTS[kind]}." in text
    assert f"{kind}, 10.0 MiB" in text
    assert len(text.encode()) < PAGE_BYTES_MAX
    held, peak = traced(lambda: browser.get("/message", params=where).text)
    assert peak < PEAK_COPIES[kind] * BODY_BYTES
    assert held < BODY_BYTES, "the page is answered, what it was made of is let go"


def test_a_search_that_finds_great_messages_is_a_small_page(
    browser: TestClient, ids: dict[str, str]
) -> None:
    answer = browser.get("/messages", params={"topic": "great", "newest": "1"})
    assert answer.text.count("10.0 MiB") == len(PARTS)
    assert len(answer.content) < PAGE_BYTES_MAX
    as_file = browser.get("/message/export", params={"topic": "great", "id": ids["hex"]})
    assert len(as_file.content) < PAGE_BYTES_MAX
    assert as_file.json()["bodyCut"] is True


def viewed(namesrv: str, topic: str, msg_id: str, *words: str) -> tuple[str, int]:
    """The output of `message view` in a process of its own, and the most memory it had, bytes."""
    program = (
        "import resource, subprocess, sys; done = subprocess.run(sys.argv[1:]); "
        "sys.stderr.write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)); "
        "sys.exit(done.returncode)"
    )
    words = (*command(["message", "view", topic, msg_id]), *words)
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        capture_output=True,
        text=True,
        env=environment(namesrv),
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, int(done.stderr) * 1024


@pytest.mark.parametrize("kind", ["text", "hex"])
def test_the_command_shows_the_beginning_and_says_how_much(
    namesrv: str, ids: dict[str, str], kind: str
) -> None:
    small, least = viewed(namesrv, "small", ids["small"])
    assert "the first" not in small
    out, most = viewed(namesrv, "great", ids[kind])
    assert f"bytes, {kind}, {PARTS[kind]}" in out
    assert len(out) < 100_000
    assert most - least < 2 * COPIES_MAX * BODY_BYTES
    row = json.loads(viewed(namesrv, "great", ids[kind], "--json")[0])
    assert (row["bodyKind"], row["bodyCut"]) == (kind, True)
    assert row["bodyBytes"] == len({"text": TEXT, "hex": BYTES}[kind])
