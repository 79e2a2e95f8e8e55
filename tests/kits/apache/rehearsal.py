"""Fill the referee's cache, and keep Apache's classes there: JVMs start in half the time.

A broker of 5.5 loads and checks thousands of classes before it takes a request. Java writes them,
once, as later JVMs map them (class data sharing): those that a rehearsal of what most tests start
has loaded.

Law: no pytest here.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.kits.apache.cluster import ApacheCluster, JavaPrograms, Tools
from tests.kits.apache.jvm import SMALL_JVM
from tests.kits.apache.referee import REFEREES, Referee, RefereeUnavailableError

MESSAGES = 10


def keep_classes(referee: Referee) -> None:
    """Keep the classes of a version's servers and programs, unless that was done."""
    if referee.keeps_classes:
        return
    with TemporaryDirectory() as folder:
        lists = Path(folder, "lists")
        lists.mkdir()
        options = (*SMALL_JVM, f"-XX:DumpLoadedClassList={lists}/%p")
        _rehearse(referee, Path(folder), options)
        names = {line for each in lists.iterdir() for line in each.read_text().splitlines()}
    referee.keep_classes("\n".join(sorted(names)) + "\n")


def _rehearse(referee: Referee, root: Path, options: tuple[str, ...]) -> None:
    """Send, consume, and ask mqadmin."""
    cluster = ApacheCluster(referee, root, jvm_options=options)
    java = JavaPrograms(referee, root / "java")
    try:
        namesrv = cluster.start().namesrv_addr
        where: dict[str, Any] = {"namesrv": namesrv, "topic": cluster.create_topic("orders")}
        java.produce(jvm_options=options, group="till", count=MESSAGES, **where)
        shop = {"group": "shop", "count": MESSAGES} | where
        with java.start("JavaPushConsumer", jvm_options=options, **shop) as consumer:
            consumer.wait_event("done")
            consumer.end_input()
            consumer.wait()
        with Tools(options) as tools:
            for words in (["clusterList"], ["topicStatus", "-t", "orders"], ["consumerProgress"]):
                tools.run(referee, root, [*words, "-n", cluster.namesrv_addr])
    finally:
        cluster.stop(kill=True)


def main() -> None:
    """Every version, so that a later run needs no network."""
    for referee in REFEREES.values():
        try:
            referee.prepare()
            keep_classes(referee)
        except RefereeUnavailableError as reason:
            print(f"Apache RocketMQ {referee.version} is not available: {reason}")


if __name__ == "__main__":
    main()
