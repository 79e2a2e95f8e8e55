"""Pure: rules about what each group gets, what it does not get, and when."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tests.outside.history import DONE, LATER, SECOND, Delivery, Group, History, Send
from tests.outside.promises import promise, since_start

ROUGH_S = 0.002
"""Brokers count in milliseconds."""


def wanted(history: History, group: Group) -> Iterator[Send]:
    """The messages that are stored for all anybody knows, and that a group subscribed."""
    for send in history.sends:
        if group.wants(send.content) and (
            history.is_due(send) or (send.ident in history.by_ident and send.how != "transaction")
        ):
            yield send


def lacking(history: History, group: Group) -> Iterator[tuple[str, Send]]:
    """What a group has not finished, or a member of a broadcast not got, and who lacks it."""
    if group.kind == "broadcast":
        names = {life.name for life in history.members if life.group == group.name}
        got: dict[str, set[str]] = {name: set() for name in names}
        for delivery in history.deliveries:
            if delivery.group == group.name:
                got[delivery.by.partition("#")[0]].add(delivery.ident)
        for send in wanted(history, group):
            yield from ((name, send) for name in names if send.ident not in got[name])
        return
    finished = {
        each.ident
        for each in history.deliveries
        if each.group == group.name and (each.verdict == DONE or _is_last(group, each))
    }
    for send in wanted(history, group):
        if send.ident not in finished:
            yield group.name, send


def _is_last(group: Group, delivery: Delivery) -> bool:
    """Whether it failed for the last time: then it is a dead letter."""
    return delivery.verdict == LATER and 0 <= group.max_reconsume_times <= delivery.tries


@promise("consumed", "Every message is consumed at least once by each group")
def every_group_consumes(history: History) -> Iterator[str]:
    """What is stored is finished by each group that wants it, or failed for the last time."""
    if not history.is_complete:
        return
    for group in history.consumers():
        if group.kind == "broadcast":
            continue
        for who, send in lacking(history, group):
            yield f"{who} never finished {send.ident} ({send.how}, {send.outcome}, {send.place})"


@promise(
    "broadcast", "With\n  `MessageModel.BROADCASTING` every member gets every message", "concepts"
)
def every_member_gets(history: History) -> Iterator[str]:
    """Each member of a broadcast is given each message."""
    if not history.is_complete:
        return
    for group in history.consumers():
        if group.kind == "broadcast":
            for who, send in lacking(history, group):
                yield f"{who} never got {send.ident} ({send.how}, {send.outcome}, {send.place})"


@promise(
    "selected", "The broker selects by tag, so what is not wanted does not travel.", "concepts"
)
def gets_what_it_wants(history: History) -> Iterator[str]:
    """A group is given nothing that its tags or its condition exclude."""
    for delivery in history.deliveries:
        group = history.groups_by_name.get(delivery.group)
        send = history.sent.get(delivery.ident)
        if group is None or group.is_observer or send is None:
            continue
        if not group.wants(send.content):
            yield f"{delivery.ident} was given to {group.name}, which does not want {send.content}"


@promise("dead-letter", "What fails comes back, and after the last try goes to `%DLQ%group`")
def hopeless_becomes_letter(history: History) -> Iterator[str]:
    """What failed for the last time, and was finished by no other copy, is a dead letter."""
    if not history.is_complete or not history.letters_read:
        return
    letters = {(letter.group, letter.ident) for letter in history.letters}
    for group in history.consumers():
        last: dict[str, list[Delivery]] = defaultdict(list)
        for delivery in history.deliveries:
            if delivery.group == group.name:
                last[delivery.ident].append(delivery)
        for ident, made in last.items():
            is_done = any(each.verdict == DONE for each in made)
            is_given_up = any(_is_last(group, each) for each in made)
            if is_given_up and not is_done and (group.name, ident) not in letters:
                yield f"{ident} failed for the last time in {group.name} and is no dead letter"


@promise("no-early-letter", "times (-1: 16), then go to `%DLQ%<group>`", "listeners")
def letters_had_their_tries(history: History) -> Iterator[str]:
    """A dead letter was given to its group once more than it may be tried again, and failed."""
    for letter in history.letters:
        group = history.groups_by_name.get(letter.group)
        made = [
            each for each in history.by_ident.get(letter.ident, ()) if each.group == letter.group
        ]
        if group is None:
            continue
        if not any(
            each.verdict != DONE and each.tries >= group.max_reconsume_times for each in made
        ):
            tried = [(each.tries, each.verdict) for each in made]
            yield f"{letter.ident} is a dead letter of {letter.group} after {tried}"


@promise("tries", "come again after 10 s, 30 s, 1 min", "listeners")
def retries_take_their_time(history: History) -> Iterator[str]:
    """What comes again with a higher count failed before, by the delay of a retry ago, or more."""
    kinds = {group.name: group for group in history.consumers()}
    for ident, made in history.by_ident.items():
        for delivery in made:
            group = kinds.get(delivery.group)
            if group is None or delivery.tries == 0 or not group.kind.startswith("push"):
                continue
            is_local = any(
                each.place == delivery.place and each.began < delivery.began for each in made
            )  # sending it back failed, and it is consumed again where it is
            if 0 <= group.max_reconsume_times < delivery.tries and not is_local:
                yield f"{ident} was tried again for the {delivery.tries}th time in {group.name}"
            earlier = [
                each
                for each in made
                if each.group == group.name
                and each.tries == delivery.tries - 1
                and each.verdict != DONE
                and (each.ended or each.began)
                <= delivery.began - (history.retry_delay_s - ROUGH_S) * SECOND
            ]
            if not earlier:
                at = since_start(history, delivery.began)
                yield f"{ident} came to {group.name} at {at} as retry {delivery.tries} of nothing"


@promise("never-early", "A delayed message is never early")
def delayed_is_never_early(history: History) -> Iterator[str]:
    """Nobody is given a message before its delay is over."""
    for send in history.sends:
        if not send.delay_s or send.ident not in history.by_ident:
            continue
        first = history.by_ident[send.ident][0]
        took = (first.began - send.began) / SECOND
        if took < send.delay_s - ROUGH_S:
            yield (
                f"{send.ident}, sent at {since_start(history, send.began)} with a delay of "
                f"{send.delay_s} s, was given to {first.group} after {took:.3f} s"
            )
