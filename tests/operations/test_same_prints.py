"""mqadmin prints of our servers what it prints of Apache's that hold the same messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rocketstream import Message, MessageQueue, Producer
from rocketstream.protocol.record import SEAL_BYTES
from rocketstream.server.embedded import SMALL_STORE, EmbeddedCluster
from tests.kits.apache.cluster import (
    SHORT_DELAYS,
    ApacheCluster,
    committed_offsets,
    create_topic,
    run_mqadmin,
)
from tests.kits.apache.ours import Collector, push_consumer
from tests.plugins.apache import prepared
from tests.plugins.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

TOPIC, GROUP, COUNT = "orders", "shop", 6
PRINTS: dict[str, tuple[str, ...]] = {
    "clusterList": (),
    "topicList": (),
    "topicStatus": ("-t", TOPIC),
    "consumerProgress": ("-g", GROUP),
    "consumerConnection": ("-g", GROUP),
    "queryMsgByKey": ("-t", TOPIC, "-k", "key-3"),
    "resetOffsetByTime": ("-g", GROUP, "-t", TOPIC, "-s", "-1"),
}
"""What is asked, in this order."""
OF_TIME_AND_PLACE = [
    (r"\d{4}-\d\d-\d\d[ #]\d\d:\d\d:\d\d(?:[.,:]\d+)?", "TIME"),
    (r"\b(?:\d{1,3}\.){3}\d{1,3}:\d+", "ADDRESS"),
    (r"\b(?:\d{1,3}\.){3}\d{1,3}(?:@\S+)?", "ADDRESS"),
    (r"\b[0-9A-F]{32}\b", "ID"),
    (r"\b1[5-9]\d{11}\b", "TIME"),
    (r"\bV[45]_\d+_\d+\b", "VERSION"),
    # Apache's knows its earliest message from 8 MiB of log on; the disk is the machine's.
    (r"[\d.]+\s+0\.\d{4}$", "HOURS DISK"),
    (r"\b\d+\.\d\d(?!\d)", "RATE"),
]
MEASURED = re.compile(
    r"Tps|Time|runtime|Latency|Capacity|DiskRatio|Stamp|Version|remain|Offset|pageCache|behind|"
    r"dispatch|scheduleMessage",
    re.IGNORECASE,
)
"""Figures of brokerStatus that tell of time or of the machine."""
SEALED = 1 + SEAL_BYTES
SEAL = re.compile(r"PROPERTIES_CRC=\w{16}, ")
"""What ends each record of our store; its bytes count in the figures."""
OURS_ALONE = {"getTransferredTps", "msgTotalSinceTimestamp"}


def normal(text: str) -> list[str]:
    """Return the lines without times and addresses, and without what pads them."""
    for pattern, word in OF_TIME_AND_PLACE:
        text = re.sub(pattern, word, text, flags=re.MULTILINE)
    lines = (" ".join(line.split()) for line in text.splitlines())
    return sorted(line for line in lines if line)


def figures(text: str) -> dict[str, str]:
    """Return brokerStatus as a table."""
    found = (re.match(r"(?:\S+:\d+\s+)?(\w\S*)\s*: (.*)", line) for line in text.splitlines())
    table = {match[1]: match[2].strip() for match in found if match}
    return {re.sub(r"_/\S*", "_DIR", name): value for name, value in table.items()}


Ask = Callable[..., str]


def filled(namesrv: str, stack: ExitStack) -> list[str]:
    """Send and consume the same on any cluster; return the offset ids of the messages."""
    with Producer("tills", namesrv_addr=namesrv) as producer:
        ids = []
        for number in range(COUNT):
            message = Message(TOPIC, b"x" * 100, tags="A", keys=f"key-{number}")
            queue = MessageQueue(TOPIC, "broker-a", number % 2)
            ids.append(producer.send(message, message_queue=queue).offset_msg_id)
    collector = Collector()
    stack.enter_context(push_consumer(namesrv, GROUP, TOPIC, collector, "A"))
    collector.wait(COUNT)
    return ids


def printed(ask: Ask, ids: list[str], is_committed: Callable[[], bool]) -> dict[str, str]:
    wait_until(is_committed, "the commits", timeout_s=60)

    def sampled() -> str | None:
        text = ask("statsAll", "-t", TOPIC)
        rows = [line.split() for line in text.splitlines()]
        counted = any(row[:2] == [TOPIC, GROUP] and row[-2:] == [str(COUNT)] * 2 for row in rows)
        return text if counted else None

    # Kept, not asked for again: a minute later neither of them counts these messages any more.
    told = {"statsAll": wait_until(sampled, "the first samples of statistics", timeout_s=90)}
    told["brokerStatus"] = ask("brokerStatus", "-c", "DefaultCluster")
    told["queryMsgById"] = ask("queryMsgById", "-i", ids[0])
    for command, arguments in PRINTS.items():
        told[command] = ask(command, *arguments)
    return told


@pytest.fixture(scope="module")
def prints(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """What is printed of Apache's and of ours."""
    referee = prepared("4.9.7")
    root = tmp_path_factory.mktemp("prints")
    with ExitStack() as stack:
        theirs = ApacheCluster(referee, root / "apache", broker_settings={"brokerIP1": "127.0.0.1"})
        (root / "apache").mkdir()
        theirs.start()
        stack.callback(theirs.stop, kill=True)
        ours = stack.enter_context(
            EmbeddedCluster(
                root / "ours",
                store_config=SMALL_STORE,
                delay_levels=SHORT_DELAYS,
            )
        )
        ours.create_topic("ready", queues=1)  # by which Apache's is known to be
        told = []
        for namesrv, broker, store in (
            (theirs.namesrv_addr, theirs.broker_addr, theirs.store_dir),
            (ours.namesrv_addr, ours.broker_addr, ours.store_dir),
        ):
            create_topic(namesrv, broker, TOPIC, queues=2)

            def ask(*arguments: str, namesrv: str = namesrv) -> str:
                return run_mqadmin(referee, root / "tools", namesrv, *arguments)

            def is_committed(store: Path = store) -> bool:
                return sum(committed_offsets(store, TOPIC, GROUP).values()) == COUNT

            with ExitStack() as members:
                ids = filled(namesrv, members)
                told.append(printed(ask, ids, is_committed))
        yield told[0], told[1]


@pytest.mark.parametrize("command", [*PRINTS, "statsAll", "queryMsgById"])
def test_same_messages_print_the_same(
    prints: tuple[dict[str, str], dict[str, str]], command: str
) -> None:
    theirs, ours = (normal(SEAL.sub("", each[command])) for each in prints)
    assert theirs
    assert ours == theirs


def test_broker_status_has_the_same_figures(prints: tuple[dict[str, str], dict[str, str]]) -> None:
    theirs, ours = (figures(each["brokerStatus"]) for each in prints)
    ours["putMessageSizeTotal"] = str(int(ours["putMessageSizeTotal"]) - COUNT * SEALED)
    ours["putMessageAverageSize"] = str(float(ours["putMessageAverageSize"]) - SEALED)
    assert set(ours) - OURS_ALONE == set(theirs)
    counted = {name for name in theirs if not MEASURED.search(name)}
    assert {"msgPutTotalTodayNow", "msgGetTotalTodayNow", "sendThreadPoolQueueSize"} <= counted
    assert {name: ours[name] for name in counted} == {name: theirs[name] for name in counted}
