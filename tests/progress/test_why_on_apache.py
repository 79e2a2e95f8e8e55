"""Thirteen faults on Apache's brokers, with Java's consumers and with ours: all are named."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import pytest

from rocketstream import Message, Producer
from rocketstream.admin import Admin
from rocketstream.admin.state import CauseKind, Verdict, WhyReport
from tests.kits.apache.cluster import ApacheCluster, JavaPrograms
from tests.kits.apache.faults import BY_NAME, FAULTS, Fault, Ground, OurConsumers
from tests.kits.apache.ours import Collector, push_consumer
from tests.kits.apache.referee import Referee
from tests.plugins.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

LOG_FILE_BYTES = 16 * 1024 * 1024
EVERY_HOUR = ";".join(f"{hour:02d}" for hour in range(24))
SETTINGS = {
    # A commit log file that is full is deleted at the next look, the first a minute after start.
    "mappedFileSizeCommitLog": str(LOG_FILE_BYTES),
    "fileReservedTime": "0",
    "deleteWhen": EVERY_HOUR,
    "cleanResourceInterval": "2000",
}
# A pull that was under way when its member was paused takes up to 32 messages of a queue.
BEYOND_A_PULL = 2 * (32 + 20)
LIVE = [fault.name for fault in FAULTS if fault.name != "expired"]
LAST = {"slow": 1, "starved": 1, "pinned": 2}
"""These show after half a minute and after a whole one, which the others take."""
NAMED = sorted((f.name for f in FAULTS if f.kind is not None), key=lambda name: LAST.get(name, 0))
WHO = ("java", "ours")


@dataclass
class Planted:
    """A cluster all faults are planted in, twice."""

    cluster: ApacheCluster
    admin: Admin

    def report(self, who: str, name: str) -> WhyReport:
        return self.admin.groups.why(BY_NAME[name].named(who))


@pytest.fixture(scope="module")
def planted(apache: Referee, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planted]:
    root = tmp_path_factory.mktemp(f"why-{apache.version}-")
    cluster = ApacheCluster(apache, root, broker_settings=SETTINGS)
    java = JavaPrograms(apache, root / "java")
    with ExitStack() as stack:
        cluster.start()
        stack.callback(partial(cluster.stop, kill=True))
        address = cluster.namesrv_addr
        early = [Ground(address, who, cluster.create_topic, ["expired"]) for who in WHO]
        for ground in early:
            stack.enter_context(ground)
        _consume_the_first(cluster, java)
        for ground in early:
            ground.more("expired", 4)
        _fill_the_log(cluster)
        for ground in early:
            # A 4.9 broker moves the beginning of a queue only to a message that is still there.
            ground.more("expired", 2)
        grounds = [Ground(address, who, cluster.create_topic, LIVE) for who in WHO]
        for ground in grounds:
            stack.enter_context(ground)
        modes = ",".join(LIVE)
        program = java.start("FaultyConsumer", namesrv=address, prefix="java", modes=modes)
        stack.enter_context(program)
        ours = stack.enter_context(OurConsumers(address, "ours"))
        ours.start(LIVE)
        program.wait_event("ready", 90)
        for ground in grounds:
            ground.more("paused", BEYOND_A_PULL)
        for who in WHO:
            cluster.create_topic(BY_NAME["readonly"].named(who), queues=2, perm=4)
        admin = stack.enter_context(Admin(address))
        yield Planted(cluster, admin)


def _consume_the_first(cluster: ApacheCluster, java: JavaPrograms) -> None:
    """Both groups of expired messages consume what is there, and go away."""
    fault = BY_NAME["expired"]
    named = {who: fault.named(who) for who in WHO}
    collector = Collector()
    with push_consumer(cluster.namesrv_addr, named["ours"], named["ours"], collector):
        with java.start(
            "JavaPushConsumer",
            namesrv=cluster.namesrv_addr,
            topic=named["java"],
            group=named["java"],
            count=fault.messages,
        ) as program:
            program.wait_event("done", 60)
            program.end_input()
            program.wait(60)
        collector.wait(fault.messages)


def _fill_the_log(cluster: ApacheCluster) -> None:
    topic = cluster.create_topic("filler", queues=1)
    body = random.Random(7).randbytes(1024 * 1024 - 1024)  # nothing to compress
    with Producer("fillers", namesrv_addr=cluster.namesrv_addr) as producer:
        for _ in range(LOG_FILE_BYTES // len(body) + 1):
            producer.send(Message(topic, body), timeout_ms=30_000)


def _is_named(report: WhyReport, fault: Fault) -> bool:
    """Whether a look names the fault, as the first cause of all where it is to be."""
    kinds = [cause.kind for cause in report.causes]
    named = fault.kind in (kinds[:1] if fault.is_first else kinds)
    return named and (fault.verdict is None or report.verdict.verdict is fault.verdict)


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("name", NAMED)
def test_a_fault_is_named(planted: Planted, name: str, who: str) -> None:
    """The first look may come before the fault shows; what is named then is the fault itself."""
    fault = BY_NAME[name]
    report = wait_until(
        partial(planted.report, who, name),
        f"cause {fault.kind} of {who} {name}",
        120,
        interval_s=1.0,
        fits=partial(_is_named, fault=fault),
    )
    cause = next(cause for cause in report.causes if cause.kind is fault.kind)
    told = " ".join((cause.sentence, *cause.evidence))
    for part in fault.in_sentence:
        assert part in told
    assert cause.evidence
    assert cause.remedy
    if name in {"pinned", "starved", "slow"}:
        function = {"pinned": "waitforafriend", "starved": "waitforall", "slow": "workslowly"}
        assert cause.stack is not None
        assert function[name] in cause.stack.replace("_", "").lower()


@pytest.mark.parametrize("who", WHO)
def test_nothing_is_named_of_a_healthy_group(planted: Planted, who: str) -> None:
    """On a busy machine a member may answer too late, which is told; causes are never named."""

    def look() -> WhyReport | None:
        report = planted.report(who, "healthy")
        assert report.causes == ()
        return None if report.unknown else report

    report = wait_until(look, f"a look all members of {who} answer", 60, interval_s=1.0)
    assert report.verdict.verdict is Verdict.OK


@pytest.mark.parametrize("who", WHO)
def test_no_other_fault_is_named(planted: Planted, who: str) -> None:
    """What a fault brings with it may be told besides; what is not there may not."""
    besides = {
        # All messages of the mismatched members' queues lie in one of them, filtered.
        "mismatch": {CauseKind.FILTERED_TO_NOTHING},
        "expired": {CauseKind.NO_MEMBERS},
        "idle": {CauseKind.SLOW_LISTENER},
    }
    for fault in FAULTS:
        kinds = {cause.kind for cause in planted.report(who, fault.name).causes}
        assert kinds <= {fault.kind} | besides.get(fault.name, set()), fault.name
