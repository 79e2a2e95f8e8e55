"""Webhooks: what each service gets, tried again, bounded, told of nothing secret."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import hmac
import json
import logging
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rocketstream.admin.state import GroupVerdict, Verdict
from rocketstream.testing.clock import START_MS, ManualClock
from rocketstream.watch import Update
from rocketstream.watch.alerting import Event, Kind, Notice, Webhook
from rocketstream.watch.alerts import (
    TEXT_BYTES_MAX,
    TRIES_MAX,
    Alerts,
    Sender,
    backing_off,
    body,
    default_memory,
    load_config,
    send,
    send_test,
)
from tests.kits.states import waiting
from tests.progress.receiver import DEADLINE_S, SECRET, Receiver

OPS = ("ops",)
NOTICE = Notice(
    Event.RAISED,
    START_MS,
    "Nothing moves.",
    OPS,
    "billing",
    Verdict.OK,
    Verdict.STALLED,
    START_MS - 60_000,
    1_234,
    5_000,
)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


def hook(receiver: Receiver, kind: Kind = Kind.GENERIC, secret: str | None = None) -> Webhook:
    return Webhook("ops", kind, receiver.url, secret)


def test_the_generic_body_has_every_figure(receiver: Receiver) -> None:
    assert send(hook(receiver), NOTICE, "east").error is None
    assert receiver.until(1) == [
        {
            "event": "raised",
            "title": "billing: STALLED",
            "sentence": "Nothing moves.",
            "cluster": "east",
            "group": "billing",
            "verdict": "STALLED",
            "before": "OK",
            "at": "2023-11-14 22:13:20 UTC",
            "atMs": START_MS,
            "since": "2023-11-14 22:12:20 UTC",
            "sinceMs": START_MS - 60_000,
            "lag": 1234,
            "timeLagMs": 5000,
        }
    ]


@pytest.mark.parametrize("kind", [Kind.SLACK, Kind.DINGTALK, Kind.FEISHU, Kind.WECOM])
def test_each_service_gets_its_own_body_with_the_whole_story(
    receiver: Receiver, kind: Kind
) -> None:
    assert send(hook(receiver, kind), NOTICE, "east").error is None
    (told,) = receiver.until(1)
    if kind is Kind.SLACK:
        text = told["text"]
    elif kind is Kind.FEISHU:
        assert told["msg_type"] == "text"
        text = told["content"]["text"]
    else:
        assert told["msgtype"] == "text"
        text = told["text"]["content"]
    assert text == (
        "billing: STALLED\nNothing moves.\n"
        "lag 1,234, time lag 5 s, since 2023-11-14 22:12:20 UTC, before: OK\ncluster of east"
    )


def test_dingtalk_and_feishu_are_signed_as_they_ask(receiver: Receiver) -> None:
    clock = ManualClock()
    send(hook(receiver, Kind.DINGTALK, SECRET), NOTICE, "east", clock)
    send(hook(receiver, Kind.FEISHU, SECRET), NOTICE, "east", clock)
    receiver.until(2)
    (path, _, _), (_, _, feishu) = receiver.requests
    query = urllib.parse.parse_qs(urllib.parse.urlparse(path).query)
    message = f"{START_MS}\n{SECRET}".encode()
    signed = base64.b64encode(hmac.new(SECRET.encode(), message, hashlib.sha256).digest())
    assert query == {"timestamp": [str(START_MS)], "sign": [signed.decode()]}
    key = f"{START_MS // 1000}\n{SECRET}".encode()
    signed = base64.b64encode(hmac.new(key, b"", hashlib.sha256).digest())
    assert (feishu["timestamp"], feishu["sign"]) == (str(START_MS // 1000), signed.decode())


def test_names_are_text_and_call_nobody() -> None:
    evil = Notice(Event.RAISED, 0, "<at user_id='all'>x</at>", (), "<!channel>&\ud800")
    assert "<" not in body(Kind.SLACK, evil, "c")["text"]
    assert "<at" not in body(Kind.FEISHU, evil, "c")["content"]["text"]


def test_a_text_too_long_for_a_service_says_that_it_is_cut() -> None:
    long = Notice(Event.RAISED, 0, "漢" * 9_000, (), "g", verdict=Verdict.STALLED)
    for kind in Kind:
        if kind is not Kind.GENERIC:
            text = json.dumps(body(kind, long, "c"), ensure_ascii=False)
            assert len(text.encode()) < TEXT_BYTES_MAX + 200
            assert "(cut)" in text


@pytest.mark.parametrize(
    ("kind", "answer", "again"),
    [
        (Kind.GENERIC, (500, {}, b""), True),
        (Kind.GENERIC, (429, {"Retry-After": "7"}, b""), True),
        (Kind.GENERIC, (404, {}, b""), False),
        (Kind.GENERIC, (302, {"Location": "http://127.0.0.1:1/"}, b""), False),
        (Kind.DINGTALK, (200, {}, b'{"errcode":310000,"errmsg":"sign not match"}'), True),
        (Kind.WECOM, (200, {}, b'{"errcode":93000,"errmsg":"invalid"}'), True),
        (Kind.FEISHU, (200, {}, b'{"code":19021,"msg":"sign match fail"}'), True),
    ],
)
def test_a_refusal_is_seen_and_tried_again_where_that_may_help(
    receiver: Receiver, kind: Kind, answer: tuple[int, dict[str, str], bytes], again: bool
) -> None:
    receiver.answers = [answer]
    sent = send(hook(receiver, kind), NOTICE, "east")
    assert sent.error is not None
    assert sent.again is again
    assert sent.pause_s == (7 if answer[0] == 429 else None)
    assert len(receiver.requests) == 1


def test_a_notice_is_tried_until_it_is_taken_and_the_next_comes_after_it(
    receiver: Receiver,
) -> None:
    receiver.answers = [(503, {}, b""), (503, {}, b""), (200, {}, b"")]
    sender = Sender(hook(receiver), "east", pause_s=lambda tries: 0)
    sender.put(NOTICE)
    sender.put(Notice(Event.RECOVERED, START_MS, "Well again.", ("ops",), "billing"))
    told = receiver.until(4)
    sender.close()
    assert [each["event"] for each in told] == ["raised", "raised", "raised", "recovered"]
    assert (sender.sent, sender.given_up) == (2, 0)


def test_a_webhook_nobody_answers_is_given_up_and_named_without_its_secret(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.answers = [(500, {}, b"")] * TRIES_MAX
    sender = Sender(hook(receiver, Kind.DINGTALK, SECRET), "east", pause_s=lambda tries: 0)
    with caplog.at_level(logging.DEBUG):
        sender.put(NOTICE)
        receiver.until(TRIES_MAX)
        sender.close()
        done = send(Webhook("gone", Kind.SLACK, f"http://127.0.0.1:1/{SECRET}"), NOTICE, "c")
    assert sender.given_up == 1
    assert "ALERT_NOT_SENT webhook ops" in caplog.text
    assert done.error is not None
    assert SECRET not in caplog.text + done.error
    assert "127.0.0.1" not in caplog.text


@pytest.fixture
def held_up(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Sender, Callable[[], None]]]:
    """A sender whose first try failed, with a queue of three, and what lets it try again."""
    monkeypatch.setattr("rocketstream.watch.alerts.QUEUE_MAX", 3)
    entered, held = threading.Event(), threading.Event()

    def pause(tries: int) -> float:
        entered.set()
        held.wait(DEADLINE_S)
        return 0

    receiver.answers = [(503, {}, b"")]
    sender = Sender(hook(receiver), "c", pause_s=pause)
    sender.put(NOTICE)
    assert entered.wait(DEADLINE_S)
    yield sender, held.set
    held.set()
    sender.close()


def test_trouble_of_more_groups_than_the_queue_holds_is_told_of_each(
    receiver: Receiver, held_up: tuple[Sender, Callable[[], None]]
) -> None:
    sender, release = held_up
    groups = [f"group-{n:02d}" for n in range(20)]
    for group in groups:
        sender.put(dataclasses.replace(NOTICE, group=group))
    release()
    assert [told["group"] for told in receiver.until(22)[2:]] == groups
    assert sender.given_up == 0


def test_beyond_what_the_queue_holds_only_the_newest_notice_of_each_waits(
    receiver: Receiver, held_up: tuple[Sender, Callable[[], None]], caplog: pytest.LogCaptureFixture
) -> None:
    sender, release = held_up
    down = Notice(Event.BROKER_DOWN, START_MS, "Broker b does not answer", OPS, broker="b")
    back = dataclasses.replace(down, event=Event.BROKER_BACK)
    outage = Notice(Event.OUTAGE, START_MS, "refused", OPS)
    over = dataclasses.replace(outage, event=Event.OUTAGE_OVER)
    raised, recovered = NOTICE, dataclasses.replace(NOTICE, event=Event.RECOVERED)
    for notice in (raised, recovered, raised):  # these fit
        sender.put(notice)
    for _ in range(50):
        for notice in (raised, outage, down, recovered, over, back):
            sender.put(notice)
    assert caplog.text.count("ALERT_NOT_SENT") == sender.given_up == 297
    release()
    told = [each["event"] for each in receiver.until(8)[2:]]
    assert told == ["raised", "recovered", "raised", "recovered", "outage over", "broker back"]


def test_notices_that_wait_have_a_bound(
    held_up: tuple[Sender, Callable[[], None]],
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A webhook may be gone for good while groups come and go."""
    sender, release = held_up
    monkeypatch.setattr("rocketstream.watch.alerts.SUBJECTS_MAX", 5)
    for n in range(20):
        sender.put(dataclasses.replace(NOTICE, group=f"group-{n}"))
    assert sender.given_up == 12
    release()
    told = [each["group"] for each in receiver.until(10)[2:]]
    assert told == [f"group-{n}" for n in (0, 1, 2, 15, 16, 17, 18, 19)]


def test_pauses_grow_to_two_minutes() -> None:
    assert [backing_off(n) for n in (1, 2, 3, 7, 8, 99)] == [1, 2, 4, 64, 120, 120]


def file_of(tmp_path: Path, receiver: Receiver) -> Path:
    path = tmp_path / "alerts.toml"
    path.write_text(
        f'remember = "{(tmp_path / "told.json").as_posix()}"\n'
        f'[[webhook]]\nname = "ops"\nurl = "{receiver.url}"\n'
        "[[rule]]\nhold_s = 0\n"
    )
    return path


def test_a_change_of_verdict_arrives_once_even_over_a_restart(
    tmp_path: Path, receiver: Receiver
) -> None:
    config = load_config(file_of(tmp_path, receiver))
    stalled = Update(waiting(7), {"billing": GroupVerdict("billing", Verdict.STALLED, "still")})
    clock = ManualClock()
    for _ in range(2):
        with Alerts(config, "127.0.0.1:9876", clock=clock) as alerts:
            for _ in range(3):
                alerts.tell(stalled)
                clock.advance(10_000)
    (told,) = receiver.until(1)
    assert (told["group"], told["verdict"], told["lag"]) == ("billing", "STALLED", 7)
    assert len(receiver.requests) == 1


def test_what_was_told_is_kept_without_a_word_in_the_file(
    tmp_path: Path, receiver: Receiver
) -> None:
    config = dataclasses.replace(load_config(file_of(tmp_path, receiver)), remember=None)
    memory = tmp_path / "state" / "told.json"
    clock = ManualClock()
    for verdict in (Verdict.STALLED, Verdict.STALLED, Verdict.PINNED):
        with Alerts(config, "c", clock=clock, memory=memory) as alerts:
            alerts.tell(Update(waiting(7), {"billing": GroupVerdict("billing", verdict, "x")}))
    told = [(each["event"], each["verdict"]) for each in receiver.until(2)]
    assert told == [("raised", "STALLED"), ("changed", "PINNED")], "what changed while it was down"
    with Alerts(dataclasses.replace(config, remember=""), "c", memory=memory) as alerts:
        alerts.tell(Update(waiting(7), {"billing": GroupVerdict("billing", Verdict.PINNED, "x")}))
    assert len(receiver.until(3)) == 3, "an empty name forgets"


def test_what_no_webhook_took_is_told_again_after_a_restart(
    tmp_path: Path, receiver: Receiver
) -> None:
    config = load_config(file_of(tmp_path, receiver))
    stalled = Update(waiting(7), {"billing": GroupVerdict("billing", Verdict.STALLED, "still")})
    receiver.answers = [(503, {}, b"not now")]
    alerts = Alerts(config, "c")
    alerts.tell(stalled)
    receiver.until(1)
    alerts.tell(stalled)
    assert not (tmp_path / "told.json").exists(), "a kill now must not lose it"
    alerts.close()
    with Alerts(config, "c") as again:
        again.tell(stalled)
        receiver.until(2)
    assert (tmp_path / "told.json").exists()


def test_each_file_and_cluster_has_a_memory_of_its_own(tmp_path: Path) -> None:
    found = {
        default_memory(tmp_path / name, namesrv)
        for name in ("a.toml", "b.toml")
        for namesrv in ("127.0.0.1:1", "127.0.0.1:2")
    }
    assert len(found) == 4
    assert default_memory("a.toml", "c") == default_memory(Path.cwd() / "a.toml", "c")


def test_a_memory_that_is_damaged_is_no_reason_to_be_silent(
    tmp_path: Path, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    config = load_config(file_of(tmp_path, receiver))
    stalled = Update(waiting(7), {"billing": GroupVerdict("billing", Verdict.STALLED, "still")})
    for damage in ("", "[]", '{"a": 1}', '{"a": ["NONSENSE", 1]}', "\x00"):
        (tmp_path / "told.json").write_text(damage)
        with Alerts(config, "c") as alerts:
            alerts.tell(stalled)
    receiver.until(5)
    assert caplog.text.count("ALERTS_NOT_REMEMBERED") == 5


def test_a_test_tells_every_webhook(tmp_path: Path, receiver: Receiver) -> None:
    done = send_test(load_config(file_of(tmp_path, receiver)), "here")
    assert [sent.error for sent in done.values()] == [None]
    assert receiver.until(1)[0]["event"] == "test"
