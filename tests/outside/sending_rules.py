"""Pure: rules about sends, what became of them, and transactions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from tests.outside.history import COMMIT, ROLLBACK, SECOND, UNKNOWN, History, Place, Send
from tests.outside.promises import places, promise, since_start

SLACK_S = 8.0
"""How much longer a call may take on a machine that others use too."""
AWAKE_S = 35.0
"""The time after which a client has come back from a connection that went silent."""


@promise("survives", "An acknowledged message survives a killed broker process")
def acknowledged_survives(history: History) -> Iterator[str]:
    """An acknowledged message is among those that are read from all queues at the end."""
    if not history.is_complete or not any(each.group == "reader" for each in history.deliveries):
        return
    read = {each.ident for each in history.deliveries if each.group == "reader"}
    for send in history.sends:
        if history.is_due(send) and send.ident not in read:
            yield f"{send.ident} was {send.outcome} at {send.place} and is in no queue"


@promise("told-true", "What a failed send says is true: `NOT_SENT`, `REJECTED`, `UNKNOWN`")
def failed_says_true(history: History) -> Iterator[str]:
    """Nothing whose send said that it is not stored is ever seen."""
    for send in history.sends:
        if send.outcome in ("NOT_SENT", "REJECTED") and send.ident in history.by_ident:
            seen = history.by_ident[send.ident][0]
            yield f"{send.ident} was {send.outcome}, and {seen.group} was given it at {seen.place}"


@promise("send-error", "sends meanwhile fail with `SendError`")
def fails_with_send_error(history: History) -> Iterator[str]:
    """A send that fails says what is known of the message, and nothing else goes wrong."""
    yield from history.problems


@promise("not-invented", "What a message's body holds is never taken for a message")
def nothing_is_invented(history: History) -> Iterator[str]:
    """All that is seen was sent before."""
    for ident, seen in history.by_ident.items():
        send = history.sent.get(ident)
        if send is None:
            yield f"{ident} at {seen[0].place} was sent by nobody, and {seen[0].group} was given it"
        elif seen[0].began < send.began:
            yield f"{ident} was given to {seen[0].group} before it was sent"


@promise(
    "whole", "What is read is the message that was asked for, or the broker names what is damaged"
)
def comes_whole(history: History) -> Iterator[str]:
    """Body, topic, tag, keys and properties are those that were sent."""
    told = set()
    seen = [(each.ident, each.group, each.content) for each in history.deliveries]
    for letter in history.letters:  # it stands in the topic of dead letters
        topic = history.sent[letter.ident].content.topic if letter.ident in history.sent else ""
        seen.append((letter.ident, letter.group, letter.content._replace(topic=topic)))
    for ident, group, content in seen:
        send = history.sent.get(ident)
        if send is not None and content != send.content and (ident, group) not in told:
            told.add((ident, group))
            yield f"{ident} for {group} is {content}, and was {send.content}"


@promise(
    "place", "the place of a message in it is its **offset**, and that never changes", "concepts"
)
def keeps_its_place(history: History) -> Iterator[str]:
    """A place has one message, for producers and consumers, before a crash and after."""
    found: dict[Place, set[str]] = defaultdict(set)
    for ident, place in places(history):
        send = history.sent.get(ident)
        is_half = send is not None and send.place == place and place.topic != send.content.topic
        if not is_half:
            found[place].add(ident)
    for place, idents in found.items():
        if len(idents) > 1:
            yield f"{place} has been {', '.join(sorted(idents))}"


@promise("once-a-try", "A send is stored once, or once per try")
def stored_once_a_try(history: History) -> Iterator[str]:
    """A message is at no more places than its send had tries; a crash may repeat a delay."""
    found: dict[str, set[Place]] = defaultdict(set)
    for each in history.deliveries:
        if each.place.topic == each.content.topic:
            found[each.ident].add(each.place)
    crashes = len(history.deaths("broker"))
    for ident, stands in found.items():
        send = history.sent.get(ident)
        if send is None:
            continue
        more = crashes if send.how in ("delayed", "transaction") else 0
        if len(stands) > 1 + send.retries + more:
            yield f"{ident}, sent with {send.retries} retries, is at {sorted(stands)}"


@promise(
    "key-order", "Messages with one sharding key stand in one queue, in the order of their sends"
)
def keys_keep_order(history: History) -> Iterator[str]:
    """Of one sender and key: one queue, and rising offsets."""
    found: dict[tuple[str, str], list[Send]] = defaultdict(list)
    for send in history.sends:
        if send.sharding_key and send.is_stored:
            found[send.by, send.sharding_key].append(send)
    for (_, key), sends in found.items():
        sends.sort(key=lambda each: each.began)
        for one, other in pairwise(sends):
            assert one.place is not None
            assert other.place is not None
            if one.place[:2] != other.place[:2] or one.place.offset >= other.place.offset:
                yield f"{key}: {one.ident} is at {one.place}, then {other.ident} at {other.place}"


@promise("bounded", "how long a send may take, all its tries together.", "settings")
def sends_end(history: History) -> Iterator[str]:
    """A send ends in its time, and where a process leaves in good order every send has ended."""
    for send in history.sends:
        life = history.lives.get(send.by)
        if send.ended is None and life is not None and life.stopped is not None:
            yield f"{send.ident} of {send.by} has no end, and its process left in good order"
        if send.ended is None:
            continue
        frozen = sum(
            (fault.ended or send.ended) - fault.began
            for fault in history.faults
            if fault.what == "freeze" and fault.target == send.by and fault.began <= send.ended
            and (fault.ended or send.ended) >= send.began
        )  # fmt: skip
        took = (send.ended - send.began - frozen) / SECOND
        if took > history.send_timeout_s + SLACK_S:
            yield f"{send.ident} began at {since_start(history, send.began)} and took {took:.1f} s"


@promise("goes-on", "Clients survive a restart of the servers")
def producers_go_on(history: History) -> Iterator[str]:
    """Once all is calm for as long as a silent connection may stay unnoticed, sends succeed."""
    if history.calm is None:
        return
    for send in history.sends:
        if send.began > history.calm + 4 * SECOND and not send.is_stored and send.how != "oneway":
            if send.outcome == UNKNOWN and send.began < history.calm + AWAKE_S * SECOND:
                continue
            at = since_start(history, send.began)
            yield f"{send.ident} of {send.by}, sent in calm at {at}, was {send.outcome}"


@promise("failed-flush", "A failed fsync acknowledges nothing any more")
def failed_flush_is_final(history: History) -> Iterator[str]:
    """From the moment the disk fails to the broker's restart no send is answered with SEND_OK."""
    for fault in history.faults:
        if fault.what != "failing-disk" or history.flush != "sync":
            continue
        until = min(
            (
                each.began
                for each in history.faults
                if each.target == "broker"
                and each.what in ("kill", "stop")
                and each.began > fault.began
            ),
            default=1 << 62,
        )
        for send in history.sends:
            is_during = fault.began < send.began and (send.ended or until) < until
            if is_during and send.outcome == "SEND_OK":
                at = since_start(history, send.began)
                yield f"{send.ident}, sent at {at} to a disk that fails, is SEND_OK"


@promise(
    "seen-after-commit",
    "A transactional message is seen only after its commit, and never after a rollback",
)
def seen_after_commit(history: History) -> Iterator[str]:
    """No message of a transaction is given to anybody before somebody decided for it."""
    for send in history.sends:
        if send.how != "transaction" or send.ident not in history.by_ident:
            continue
        seen = history.by_ident[send.ident][0]
        said = history.decided.get(send.ident, [])
        if any(each.state == ROLLBACK for each in said):
            yield f"{send.ident} was rolled back, and {seen.group} was given it"
        elif not any(each.state == COMMIT and each.at <= seen.began for each in said):
            yield f"{send.ident} was given to {seen.group} before anybody decided for it"


@promise("asked-until-known", "An open transaction is asked about until somebody knows")
def asked_until_known(history: History) -> Iterator[str]:
    """Every half message that is stored is decided in the end."""
    if not history.is_complete:
        return
    for send in history.sends:
        if send.how == "transaction" and send.is_stored and not history.is_decided(send):
            asked = len(history.decided.get(send.ident, ()))
            yield f"{send.ident} was sent and never decided; its listener was asked {asked} times"
