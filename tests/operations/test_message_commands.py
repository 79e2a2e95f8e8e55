"""``message search|view|tail|trace``: found, decoded, masked, followed, drawn."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from rocketstream import Message, Producer
from rocketstream.admin import Admin
from rocketstream.errors import ConnectError, RocketMQError, RouteNotFoundError
from rocketstream.protocol.trace import (
    TracePub,
    TraceRecord,
    TraceSubAfter,
    TraceSubBefore,
    encode_record,
)
from tests.plugins.commands import Quick

_numbers = itertools.count()
RULES = """
[[rule]]
topic = "found-*"
json = "customer.card"
how = "last"
keep = 4
"""


@pytest.fixture
def topic(namesrv: str) -> str:
    """A topic with ten JSON messages."""
    name = f"found-{next(_numbers)}"
    with Admin(namesrv) as admin, Producer("found-test", namesrv_addr=namesrv) as producer:
        admin.topics.create(name, 2)
        for number in range(10):
            body = f'{{"customer": {{"card": "411122223333{number:04d}"}}}}'
            tag = "eu" if number % 2 else "us"
            producer.send(Message(name, body, keys=f"k{number} all", tags=tag))
    return name


def test_search_pages_and_filters(quick: Quick, topic: str) -> None:
    first = quick("message", "search", topic, "--max", "6", "--json").worked().json
    assert (len(first["messages"]), first["endedBy"]) == (6, "most")
    rest = quick("message", "search", topic, "--resume", first["resume"], "--json").worked().json
    keys = [each["keys"] for each in first["messages"] + rest["messages"]]
    assert sorted(keys) == [f"k{number} all" for number in range(10)]
    times = [each["storeTimestamp"] for each in first["messages"] + rest["messages"]]
    assert times == sorted(times, reverse=True)
    assert rest["resume"] is None
    done = quick("message", "search", topic, "--tag", "eu", "--grep", "233330007").worked()
    assert "1 message of 10 looked at" in done.out
    done = quick("message", "search", topic, "--queue", "0", "--offset", "3", "--oldest-first")
    assert "2 messages of 2 looked at" in done.worked().out
    assert "1 message of" in quick("message", "search", topic, "--key", "k3").worked().out
    assert "0 messages of 0" in quick("message", "search", topic, "--until", "2h").worked().out
    assert "has no queue 7" in quick("message", "search", topic, "--queue", "7").failed()
    assert (
        "not a place where a search" in quick("message", "search", topic, "--resume", "x").failed()
    )


@pytest.fixture
def burst(namesrv: str) -> str:
    """A topic with 200 messages of one key, most stored at once, and some of another between."""
    name = f"found-{next(_numbers)}"
    with Admin(namesrv) as admin, Producer("found-test", namesrv_addr=namesrv) as producer:
        admin.topics.create(name, 3)
        every = [
            Message(name, str(number), keys="busy all" if number % 11 else "other")
            for number in range(220)
        ]
        for message in (*every[:30], *every[190:]):
            producer.send(message)
        producer.send(every[30:190])
    return name


def test_a_query_that_does_not_show_all_says_so(quick: Quick, burst: str) -> None:
    for most in ("10", "64"):
        done = quick("message", "query", burst, "busy", "--max", most).worked()
        assert f"newest {most} and there may be more" in done.err
        done = quick("message", "query", burst, "busy", "--max", most, "--json").worked()
        assert len(done.json) == int(most)
        assert f"newest {most} and there may be more" in done.err
    assert quick("message", "query", burst, "other").worked().err == ""
    done = quick("message", "query", burst, "busy", "--max", "1000", "--json").worked()
    assert (len({row["msgId"] for row in done.json}), len(done.json), done.err) == (200, 200, "")


@pytest.mark.parametrize("order", [(), ("--oldest-first",)])
def test_a_search_by_key_goes_on_until_all_are_found(
    quick: Quick, burst: str, order: tuple[str, ...]
) -> None:
    """Many of them are of one millisecond, of which the index tells 64 at most."""
    found: list[tuple[int, str]] = []
    onward: tuple[str, ...] = order
    while True:
        ask = ("message", "search", burst, "--key", "busy", "--max", "37", "--json")
        page = quick(*ask, *onward).worked().json
        found += [(row["storeTimestamp"], row["body"]) for row in page["messages"]]
        if page["resume"] is None:
            break
        assert page["endedBy"] == "most"
        onward = ("--resume", page["resume"])
    times = [at for at, _ in found]
    assert times == sorted(times, reverse=not order)
    assert sorted(int(text) for _, text in found) == [n for n in range(220) if n % 11]


def test_view_shows_a_body_as_it_may_be_seen(quick: Quick, topic: str, tmp_path: Path) -> None:
    rules = tmp_path / "mask.toml"
    rules.write_text(RULES)
    (found,) = quick("message", "search", topic, "--key", "k3", "--json").worked().json["messages"]
    plain = quick("message", "view", topic, found["msgId"]).worked().out
    assert '"card": "4111222233330003"' in plain
    masked = quick("message", "view", topic, found["msgId"], "--mask", str(rules)).worked().out
    assert '"card": "***0003"' in masked
    assert "41112222" not in masked
    done = quick("message", "view", topic, found["msgId"], "--format", "hex", "--json").worked()
    assert done.json["bodyKind"] == "hex"
    done = quick("message", "query", topic, "all", "--mask", str(rules), "--json").worked()
    assert len(done.json) == 10
    assert "41112222" not in done.out
    rules.write_text("[[rule]]\njson = 'a'\nhow = 'blur'\n")
    assert (
        "how is 'blur'"
        in quick("message", "view", topic, found["msgId"], "--mask", str(rules)).failed()
    )
    assert "no message 'X1'" in quick("message", "view", topic, "X1").failed()
    assert "needs a schema" in quick("message", "view", topic, "X1", "--format", "avro").failed()


@pytest.mark.parametrize("error", [ConnectError("no name server"), RouteNotFoundError("no route")])
def test_tail_goes_on_once_name_servers_answer_again(
    quick: Quick, topic: str, monkeypatch: pytest.MonkeyPatch, error: RocketMQError
) -> None:
    """As after the sleep of a laptop, whose network wakes after it."""

    def silent(_: str) -> dict[str, str]:
        raise error

    with Admin(str(quick.namesrv)) as admin:
        with monkeypatch.context() as outage:
            outage.setattr(admin._wire, "topic_masters", silent)
            with pytest.raises(type(error)):
                admin.messages.tail(topic)
        first = admin.messages.tail(topic, last=2)
        with monkeypatch.context() as outage:
            outage.setattr(admin._wire, "topic_masters", silent)
            found = admin.messages.tail(topic, first.place)
        assert (found.messages, found.problems) == ((), (error.message,))
        again = admin.messages.tail(topic, found.place)
        assert (again.messages, again.problems, again.place) == ((), (), first.place)


def test_tail_begins_at_the_end_and_takes_nothing_from_anybody(quick: Quick, topic: str) -> None:
    done = quick("message", "tail", topic, "--last", "2", "--max", "4").worked()
    numbers = sorted(line[-7:-3] for line in done.out.splitlines())
    assert numbers == ["0006", "0007", "0008", "0009"]
    done = quick("message", "tail", topic, "--last", "5", "--key", "k4", "--idle", "0.1", "--json")
    assert [row["keys"] for row in done.worked().json_lines] == ["k4 all"]
    assert quick("message", "tail", topic, "--idle", "0.1").worked().out == ""
    with Admin(str(quick.namesrv)) as admin:
        assert admin.topics.consumers(topic) == []


def test_a_trace_is_drawn(quick: Quick, topic: str) -> None:
    (found,) = quick("message", "search", topic, "--key", "k1", "--json").worked().json["messages"]
    msg_id, born = found["msgId"], found["bornTimestamp"]
    records: list[TraceRecord] = [
        TracePub(born, "r", "sellers", topic, msg_id, None, "k1", "1.2.3.4:1", 9, 4, 0, "O", True),
        TraceSubBefore(born + 50, "r", "billing", "call-1", msg_id, 0, "k1"),
        TraceSubAfter("call-1", msg_id, 20, False, "k1", 2, born + 70, "billing"),
        TraceSubBefore(born + 900, "r", "billing", "call-2", msg_id, 1, "k1"),
    ]
    with Producer("found-test", namesrv_addr=str(quick.namesrv)) as producer:
        body = "".join(map(encode_record, records)).encode()
        producer.send(Message("RMQ_SYS_TRACE_TOPIC", body, keys=[msg_id]))
    told = quick("message", "trace", topic, msg_id, "--json").worked().json
    assert [(t["outcome"], t["costMs"], t["retryTimes"]) for t in told["tries"]] == [
        ("EXCEPTION", 20, 0), ("UNFINISHED", None, 1),
    ]  # fmt: skip
    assert (told["sends"][0]["costMs"], told["storeTimestamp"]) == (4, found["storeTimestamp"])
    drawn = quick("message", "trace", topic, msg_id).worked().out
    assert [line.split()[0] for line in drawn.splitlines()[2:]][:1] == ["0"]
    assert "consume (retry 1)" in drawn
    assert "2 tries by 1 group" in drawn
