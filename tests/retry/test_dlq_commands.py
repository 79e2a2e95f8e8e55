"""``dlq``: what groups gave up is listed, shown, and sent back when told so."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from rocketstream import Message, Producer
from rocketstream.admin import Admin
from rocketstream.cli import dlq
from rocketstream.cli.changing import Change
from tests.plugins.commands import Quick

_numbers = itertools.count()


@pytest.fixture
def dead(namesrv: str) -> Callable[..., tuple[str, str]]:
    """A function that gives a new group dead letters; returns the group and their origin."""

    def make(count: int, tag: str | None = None) -> tuple[str, str]:
        number = next(_numbers)
        group, origin = f"given-up-{number}", f"origin-{number}"
        with Admin(namesrv) as admin, Producer("dlq-test", namesrv_addr=namesrv) as producer:
            admin.topics.create(f"%DLQ%{group}", 1)
            admin.topics.create(origin, 1)
            for index in range(count):
                letter = Message(f"%DLQ%{group}", f"letter {index}\n", tags=tag, keys=f"k{index}")
                letter.properties["RETRY_TOPIC"] = origin
                producer.send(letter)
        return group, origin

    return make


Dead = Callable[..., tuple[str, str]]


def held(quick: Quick, topic: str) -> int:
    with Admin(quick.namesrv) as admin:
        return sum(row.message_count for row in admin.topics.status(topic))


def test_redrive_shows_what_it_would_send_and_sends_nothing(quick: Quick, dead: Dead) -> None:
    group, origin = dead(3, tag="eu")
    done = quick("dlq", "redrive", group).worked()
    assert f"{origin}" in done.out
    assert "letter 0·" in done.out
    assert done.out.splitlines()[-1] == (
        f"3 letters of {group}: nothing was sent; --yes sends them"
    )
    assert held(quick, origin) == 0
    plan = quick("dlq", "redrive", group, "--json").worked().json
    assert plan["byTopic"] == {origin: 3}
    assert [letter["keys"] for letter in plan["first"]] == ["k0", "k1", "k2"]


def test_what_was_shown_on_a_terminal_is_sent_and_nothing_that_came_since(
    quick: Quick, dead: Dead, namesrv: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, origin = dead(1)

    def agreed(change: Change, what: list[str]) -> None:
        assert what == [f"1 letter of {group} will be sent"]
        with Producer("dlq-test", namesrv_addr=namesrv) as producer:
            letter = Message(f"%DLQ%{group}", "late")
            letter.properties["RETRY_TOPIC"] = origin
            producer.send(letter)

    terminal = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr(dlq, "sys", SimpleNamespace(stdin=terminal, stderr=terminal))
    monkeypatch.setattr(Change, "confirm", agreed)
    quick("dlq", "redrive", group).worked()
    assert held(quick, origin) == 1


def test_yes_sends_them_once(quick: Quick, dead: Dead) -> None:
    group, origin = dead(3)
    done = quick("dlq", "redrive", group, "--yes", "--limit", "2", "--rate", "1000").worked()
    assert done.out.splitlines() == [f"2 to {origin}", f"2 letters of {group} sent; more are left"]
    done = quick("dlq", "redrive", group, "--yes", "--json").worked()
    assert [(row["topic"], row["from"]) for row in done.json_lines] == [
        (origin, f"%DLQ%{group}/broker-a/0/2")
    ]
    done = quick("dlq", "redrive", group).worked()
    assert done.out.splitlines()[-1] == f"0 letters of {group}: nothing to send"
    assert held(quick, origin) == 3


def test_filters_and_targets_are_taken(quick: Quick, dead: Dead) -> None:
    group, origin = dead(3, tag="eu")
    _, other = dead(0)
    words = ("--key", "k1", "--tag", "eu", "--topic", origin, "--since", "2020-01-01T00:00:00")
    done = quick("dlq", "redrive", group, *words, "--to", other, "--yes").worked()
    assert done.out.splitlines()[-1] == f"1 letter of {group} sent"
    assert (held(quick, origin), held(quick, other)) == (0, 1)
    done = quick("dlq", "redrive", group, "--key", "k1", "--yes").worked()
    assert held(quick, origin) == 1
    done = quick("dlq", "redrive", group).worked()
    assert done.out.splitlines()[-1].startswith(f"2 letters of {group}: ")
    assert "1 letter left alone: sent before by a redrive (rocketstream-redrive-" in done.err
    done = quick("dlq", "redrive", group, "--until", "2020-01-01T00:00:00").worked()
    assert done.out.splitlines()[-1] == (
        f"0 letters of {group}, 3 others left out: nothing to send"
    )


def test_problems_are_told_before_and_stop_it(quick: Quick, dead: Dead, namesrv: str) -> None:
    group, _ = dead(0)
    with Producer("dlq-test", namesrv_addr=namesrv) as producer:
        producer.send(Message(f"%DLQ%{group}", "x"))
    plan = quick("dlq", "redrive", group).worked()
    assert "(origin not known)" in plan.out
    assert "warning: letters that do not tell" in plan.err
    assert "does not tell which topic" in quick("dlq", "redrive", group, "--yes").failed()
    assert "--to-group, not both" in quick(
        "dlq", "redrive", group, "--to", "t", "--to-group"
    ).failed(2)
    assert "--rate is 0" in quick("dlq", "redrive", group, "--rate", "0").failed(2)
    assert "has no dead letters" in quick("dlq", "redrive", "nobody").failed()


def test_list_counts_the_letters_of_each_group(quick: Quick, dead: Dead) -> None:
    group, origin = dead(4)
    quick("consume", origin, "--group", group, "--idle", "0.1").worked()  # makes the group known
    counts = {row["group"]: row["letters"] for row in quick("dlq", "list", "--json").worked().json}
    assert counts[group] == 4
    assert f"{group}" in quick("dlq", "list").worked().out


@pytest.fixture
def failed(quick: Quick) -> str:
    """A group that gave up letters for two causes, and some for none that is told."""
    group = "told"
    with Admin(quick.namesrv) as admin, Producer("dlq-test", namesrv_addr=quick.namesrv) as sender:
        admin.topics.create(f"%DLQ%{group}", 1)
        admin.topics.create("told-orders", 1)
        for number in range(9):
            letter = Message(f"%DLQ%{group}", f"card 4111{number}", keys=f"k{number}")
            letter.properties["RETRY_TOPIC"] = "told-orders"
            cause = [f"ValueError: bad card 4111{number}", "shop.errors.NoPriceError", None]
            if (text := cause[number % 3]) is not None:
                letter.properties |= {
                    "SEND_BACK_CAUSE": text,
                    "SEND_BACK_WHERE": f"shop/pay.py:{10 + number % 3} pay",
                    "SEND_BACK_TRY": "0",
                }
            sender.send(letter)
    return group


def test_causes_are_shown_and_their_letters_sent(quick: Quick, failed: str, tmp_path: Path) -> None:
    told = quick("dlq", "causes", failed, "--json").worked().json
    assert (told["letters"], told["isComplete"]) == (9, True)
    by_cause = {each["cause"]: each for each in told["causes"]}
    assert by_cause.keys() == {
        "ValueError: bad card <n>", "shop.errors.NoPriceError", "not told",
    }  # fmt: skip
    mine = by_cause["ValueError: bad card <n>"]
    assert (mine["count"], mine["where"]) == (3, "shop/pay.py:10 pay")
    shown = quick("dlq", "causes", failed).worked().out
    assert mine["id"] in shown
    assert "shop/pay.py:11 pay" in shown
    listed = quick("dlq", "list", failed, "--cause", "ValueError", "--json").worked().json
    assert [letter["keys"] for letter in listed] == ["k6", "k3", "k0"]
    rules = tmp_path / "mask.toml"
    rules.write_text("[[rule]]\npattern = '[0-9]{5,}'\n")
    for arguments in (
        ("dlq", "list", failed),
        ("dlq", "causes", failed, "--json"),
        ("dlq", "redrive", failed, "--json"),
    ):
        assert "4111" not in quick(*arguments, "--mask", str(rules)).worked().out
    done = quick("dlq", "redrive", failed, "--cause", mine["id"], "--yes").worked()
    assert done.out.splitlines()[-1] == f"3 letters of {failed} sent"
    done = quick("dlq", "redrive", failed, "--where", "shop/pay.py", "--yes").worked()
    assert done.out.splitlines()[-2:] == [
        "3 letters left alone: sent before", f"3 letters of {failed} sent",
    ]  # fmt: skip
    assert held(quick, "told-orders") == 6
    refused = quick("dlq", "redrive", failed, "--cause", "zzzz", "--yes").failed(2)
    assert "no dead letter of" in refused
    assert mine["id"] in refused
    assert "name the group" in quick("dlq", "list", "--cause", "x").failed(2)
    assert "--yes or --dry-run" in quick("dlq", "redrive", failed, "--yes", "--dry-run").failed(2)


def test_a_group_that_gave_nothing_up_has_no_causes_and_one_nobody_knows_is_an_error(
    quick: Quick,
) -> None:
    quick("topic", "create", "well-orders", "-q", "1").worked()
    quick("send", "well-orders", "x").worked()
    quick("consume", "well-orders", "-g", "well", "--from", "earliest", "--max", "1").worked()
    told = quick("dlq", "causes", "well", "--json").worked().json
    assert (told["letters"], told["causes"]) == (0, [])
    assert "0 letters of well" in quick("dlq", "causes", "well").worked().out
    assert "knows" in quick("dlq", "causes", "nobody-knows").failed(1)
