"""A lite pull member in a process of its own, to be killed: polls once, says what it got, waits."""

from __future__ import annotations

import json
import sys

from rocketstream import ConsumeFromWhere, LitePullConsumer


def main() -> None:
    """Arguments: name server, topic, group."""
    namesrv_addr, topic, group = sys.argv[1:]
    consumer = LitePullConsumer(
        group, namesrv_addr=namesrv_addr, consume_from_where=ConsumeFromWhere.FIRST_OFFSET
    )
    consumer.subscribe(topic)
    consumer.start()
    got = consumer.poll(60_000)
    print(json.dumps([message.get_property("index") for message in got]), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
