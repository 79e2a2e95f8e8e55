"""Rules find each anomaly of their kind in a history made by hand, and nothing in a healthy one."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.outside.by_hand import at, content, given, healthy, send
from tests.outside.history import (
    AGAIN,
    DONE,
    LATER,
    Commit,
    Fault,
    History,
    Member,
    Place,
    read,
)
from tests.outside.rules import RULES, check, copies, waiting

DOCS = Path(__file__).resolve().parents[2] / "docs"


def change(made: History, ident: str, **more: object) -> None:
    """Change a send."""
    made.sends = [
        replace(each, **more) if each.ident == ident else each  # type: ignore[arg-type]
        for each in made.sends
    ]


def change_given(made: History, ident: str, group: str, **more: object) -> None:
    """Change what a group was given of a message."""
    made.deliveries = [
        replace(each, **more) if (each.ident, each.group) == (ident, group) else each  # type: ignore[arg-type]
        for each in made.deliveries
    ]


def without(made: History, ident: str, *groups: str) -> None:
    """Take away what groups were given of a message."""
    made.deliveries = [
        each for each in made.deliveries if each.ident != ident or each.group not in groups
    ]


def lost_from_its_queue(made: History) -> None:
    without(made, "m2", "many", "some", "everyone", "reader")


def a_refused_one_is_seen(made: History) -> None:
    made.deliveries.append(given("refused", "many", "many-a#1", Place("plain", 0, 9), 10))
    made.deliveries.append(given("refused", "some", "some-a#1", Place("plain", 0, 9), 10))
    made.deliveries.append(given("refused", "everyone", "everyone-a#1", Place("plain", 0, 9), 10))


def an_error_of_another_kind(made: History) -> None:
    made.problems.append("send of m9: KeyError: 'route'")


def seen_and_never_sent(made: History) -> None:
    made.deliveries.append(given("ghost", "many", "many-a#1", Place("plain", 0, 9), 10))


def seen_before_it_was_sent(made: History) -> None:
    change(made, "m2", began=at(2.3), ended=at(2.4))


def another_body(made: History) -> None:
    change_given(made, "m2", "many", content=content("m2", "plain")._replace(digest="else"))


def a_property_is_gone(made: History) -> None:
    change_given(made, "m2", "some", content=content("m2", "plain")._replace(properties=()))


def a_letter_of_another_tag(made: History) -> None:
    made.letters = [replace(made.letters[0], content=content("m0", "%DLQ%many", "B"))]


def two_at_one_place(made: History) -> None:
    change(made, "m3", place=Place("plain", 0, 2))


def twice_without_retries(made: History) -> None:
    made.deliveries.append(given("m2", "many", "many-a#1", Place("plain", 0, 7), 11))


def a_key_in_two_queues(made: History) -> None:
    change(made, "k2", place=Place("keyed", 1, 0))
    for group in ("ordered", "reader"):
        change_given(made, "k2", group, place=Place("keyed", 1, 0))


def a_key_out_of_order(made: History) -> None:
    change(made, "k2", began=at(3.5), ended=at(3.6))
    change_given(made, "k2", "ordered", began=at(3.7), ended=at(3.71))
    change_given(made, "k3", "ordered", began=at(3.8), ended=at(3.81))


def a_send_without_an_end(made: History) -> None:
    made.sends.append(send("open", "plain", None, 20, ended=None, outcome="OPEN"))


def a_send_that_takes_too_long(made: History) -> None:
    change(made, "m1", ended=at(25))


def acknowledged_without_a_disk(made: History) -> None:
    made.faults += [Fault("failing-disk", "broker", at(0.5), at(1)), Fault("kill", "broker", at(9))]


def no_send_succeeds_in_calm(made: History) -> None:
    made.sends.append(send("later", "plain", None, 80, outcome="UNKNOWN"))


def seen_after_a_rollback(made: History) -> None:
    made.deliveries.append(given("t-no", "booked", "booked-a#1", Place("ledger", 0, 1), 6))


def seen_before_its_commit(made: History) -> None:
    made.decisions = [replace(each, at=at(5.5)) for each in made.decisions]


def nobody_asks(made: History) -> None:
    made.sends.append(send("t-open", "ledger", None, 6, how="transaction"))


def committed_too_far(made: History) -> None:
    made.commits.insert(0, Commit("many", "plain", 0, 3, at(1.9), at(2.0)))


def committed_past_what_stays_away(made: History) -> None:
    change_given(made, "k3", "ordered", verdict=AGAIN)


def a_commit_goes_back(made: History) -> None:
    made.commits.append(Commit("many", "plain", 0, 3, at(25), at(25.1)))


def a_commit_lost_long_after(made: History) -> None:
    made.faults.append(Fault("kill", "broker", at(20), at(21)))
    made.commits.append(Commit("many", "plain", 0, 3, at(25), at(25.1)))


def a_commit_lost_before_the_new_owner_looked(made: History) -> None:
    change_given(made, "m3", "many", began=at(26), ended=at(26.1), by="many-b#1")
    made.members.append(Member("many-b#1", "push", "many", at(10), at(11)))
    made.commits.append(Commit("many", "plain", 0, 3, at(25), at(25.1)))


def one_overtakes(made: History) -> None:
    change_given(made, "k2", "ordered", began=at(1.5), ended=at(1.6))
    change_given(made, "k1", "ordered", ended=at(1.55))


def two_members_at_once(made: History) -> None:
    made.deliveries.append(
        given("k2", "ordered", "ordered-b#1", Place("keyed", 0, 2), 2.12, call=1, ended=at(2.3))
    )


def again_without_cause(made: History) -> None:
    made.deliveries.append(given("m2", "many", "many-a#1", Place("plain", 0, 2), 45))
    made.members = [replace(each, started=at(-90), ready=at(-89)) for each in made.members]


def never_consumed_by_one_group(made: History) -> None:
    without(made, "m2", "many")


def failed_and_never_again(made: History) -> None:
    change_given(made, "m2", "many", verdict=LATER)


def a_member_is_left_out(made: History) -> None:
    without(made, "m2", "everyone")


def another_tag(made: History) -> None:
    change(made, "m2", content=content("m2", "plain", "B"))
    for group in ("many", "some", "everyone", "reader"):
        change_given(made, "m2", group, content=content("m2", "plain", "B"))


def no_letter(made: History) -> None:
    made.letters.clear()


def a_letter_too_soon(made: History) -> None:
    made.letters.append(replace(made.letters[0], ident="m2", content=content("m2", "%DLQ%many")))


def a_retry_too_soon(made: History) -> None:
    retry = next(each for each in made.deliveries if each.tries)
    made.deliveries.remove(retry)
    made.deliveries.append(replace(retry, began=at(0.4)))


def a_try_too_many(made: History) -> None:
    retry = next(each for each in made.deliveries if each.tries)
    made.deliveries.append(
        replace(
            retry, place=Place("%RETRY%many", 0, 1), began=at(4), ended=at(4.1), call=9002, tries=2
        )
    )


def a_delay_too_short(made: History) -> None:
    change_given(made, "d", "late", began=at(5.4))


PLANTED: tuple[tuple[str, Callable[[History], None]], ...] = (
    ("survives", lost_from_its_queue),
    ("told-true", a_refused_one_is_seen),
    ("send-error", an_error_of_another_kind),
    ("not-invented", seen_and_never_sent),
    ("not-invented", seen_before_it_was_sent),
    ("whole", another_body),
    ("whole", a_property_is_gone),
    ("whole", a_letter_of_another_tag),
    ("place", two_at_one_place),
    ("once-a-try", twice_without_retries),
    ("key-order", a_key_in_two_queues),
    ("key-order", a_key_out_of_order),
    ("bounded", a_send_without_an_end),
    ("bounded", a_send_that_takes_too_long),
    ("failed-flush", acknowledged_without_a_disk),
    ("goes-on", no_send_succeeds_in_calm),
    ("seen-after-commit", seen_after_a_rollback),
    ("seen-after-commit", seen_before_its_commit),
    ("asked-until-known", nobody_asks),
    ("commit-behind", committed_too_far),
    ("commit-behind", committed_past_what_stays_away),
    ("commit-kept", a_commit_goes_back),
    ("commit-kept", a_commit_lost_long_after),
    ("commit-kept", a_commit_lost_before_the_new_owner_looked),
    ("in-order", one_overtakes),
    ("one-at-a-time", two_members_at_once),
    ("again-for-a-cause", again_without_cause),
    ("consumed", never_consumed_by_one_group),
    ("consumed", failed_and_never_again),
    ("broadcast", a_member_is_left_out),
    ("selected", another_tag),
    ("dead-letter", no_letter),
    ("no-early-letter", a_letter_too_soon),
    ("tries", a_retry_too_soon),
    ("tries", a_try_too_many),
    ("never-early", a_delay_too_short),
)


def test_a_healthy_history_breaks_no_rule() -> None:
    made = healthy()
    assert check(made) == []
    assert waiting(made) == []
    assert copies(made)["stored again"] == 0


@pytest.mark.parametrize(("rule", "plant"), PLANTED, ids=[plant.__name__ for _, plant in PLANTED])
def test_a_planted_anomaly_is_found_by_its_rule(
    rule: str, plant: Callable[[History], None]
) -> None:
    made = healthy()
    plant(made)
    assert rule in {anomaly.rule for anomaly in check(made)}


def test_every_rule_is_shown_an_anomaly() -> None:
    assert {rule for rule, _ in PLANTED} == RULES.keys()


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text)


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.name)
def test_each_rule_quotes_a_sentence_of_the_documentation(rule: object) -> None:
    assert hasattr(rule, "sentence")
    assert hasattr(rule, "page")
    text = (DOCS / f"{rule.page}.md").read_text("utf-8")
    assert _plain(rule.sentence) in _plain(text)


def test_copies_that_are_allowed_break_no_rule() -> None:
    """A send with retries may be stored twice; after a kill what was not committed comes again."""
    made = healthy()
    change(made, "m1", retries=2)
    for group, by in (("many", "many-a#1"), ("some", "some-a#1"), ("everyone", "everyone-a#1")):
        made.deliveries.append(given("m1", group, by, Place("plain", 0, 4), 12))
        made.deliveries.append(given("m2", group, by, Place("plain", 0, 2), 14))
    made.faults.append(Fault("kill", "many-a#1", at(13), at(13.5)))
    assert check(made) == []


def test_a_killed_member_is_in_no_call_any_more() -> None:
    """It began a message in order and was killed; another member may begin it at once."""
    made = healthy()
    change_given(made, "k3", "ordered", ended=None, verdict="OPEN")
    made.faults.append(Fault("kill", "ordered-a#1", at(3.2), at(4)))
    made.deliveries.append(given("k3", "ordered", "ordered-b#1", Place("keyed", 0, 3), 3.3, call=1))
    assert check(made) == []


def test_a_commit_lost_by_a_kill_soon_after_it_was_seen_is_allowed() -> None:
    made = healthy()
    made.faults.append(Fault("kill", "broker", at(10), at(11)))
    made.commits.append(Commit("many", "plain", 0, 3, at(12), at(12.1)))
    assert check(made) == []


def test_a_new_owner_that_looked_before_the_last_commit_may_put_it_back() -> None:
    made = healthy()
    made.members.append(Member("many-b#1", "push", "many", at(7), at(7.5)))
    made.commits.append(Commit("many", "plain", 0, 3, at(12), at(12.1)))
    made.deliveries.append(given("m3", "many", "many-b#1", Place("plain", 0, 3), 13))
    assert check(made) == []


def test_events_make_a_history_whatever_their_order_and_a_torn_line_is_left_out() -> None:
    lines = [
        '{"at": 30, "kind": "taken", "by": "many-a#1", "call": 1, "verdict": "done"}',
        '{"at": 20, "kind": "given", "by": "many-a#1", "call": 1, "group": "many", "messages": [{'
        '"ident": "m", "topic": "plain", "tags": "A", "keys": "m", "properties": {}, "digest": "x",'
        ' "place": ["plain", 0, 0], "tries": 0}]}',
        '{"at": 10, "kind": "start", "by": "many-a#1", "role": "push", "group": "many"}',
        '{"at": 11, "kind": "re',
    ]
    made = read(lines)
    assert [(each.ident, each.verdict, each.ended) for each in made.deliveries] == [("m", DONE, 30)]
    assert made.lives["many-a#1"].ready is None
