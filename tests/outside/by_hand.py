"""Pure: a healthy history made by hand, and its parts, for tests to plant anomalies in."""

from __future__ import annotations

from dataclasses import replace

from tests.outside.history import (
    COMMIT,
    DONE,
    LATER,
    ROLLBACK,
    SECOND,
    Commit,
    Content,
    Decision,
    Delivery,
    Group,
    History,
    Letter,
    Member,
    Place,
    Send,
)

GROUPS = (
    Group("many", "push", "plain", max_reconsume_times=1),
    Group("some", "push", "plain", tags=("A",), max_reconsume_times=1),
    Group("everyone", "broadcast", "plain"),
    Group("ordered", "orderly", "keyed"),
    Group("late", "push", "late", max_reconsume_times=1),
    Group("booked", "push", "ledger", max_reconsume_times=1),
    Group("reader", "reader", "", is_observer=True),
)
MEMBERS = ("many-a", "some-a", "everyone-a", "ordered-a", "ordered-b", "late-a", "booked-a")


def at(seconds: float) -> int:
    """A time of the history."""
    return int((100 + seconds) * SECOND)


def content(ident: str, topic: str, tags: str = "A") -> Content:
    """All that a producer set."""
    return Content(topic, tags, ident, (("ident", ident), ("shade", "dark")), f"digest of {ident}")


def send(ident: str, topic: str, offset: int | None, began: float, **more: object) -> Send:
    """A message that was stored at once."""
    place = None if offset is None else Place(topic, 0, offset)
    made = Send(
        ident, "sync#1", content(ident, topic), at(began), ended=at(began + 0.01),
        outcome="SEND_OK", place=place,
    )  # fmt: skip
    return replace(made, **more)  # type: ignore[arg-type]


def given(ident: str, group: str, by: str, place: Place, began: float, **more: object) -> Delivery:
    """A message in hand for 50 ms, and finished."""
    made = Delivery(
        ident, group, by, place, content(ident, place.topic), at(began), call=int(began * 1000),
        ended=at(began + 0.05), verdict=DONE,
    )  # fmt: skip
    return replace(made, **more)  # type: ignore[arg-type]


def healthy() -> History:
    """Messages of every kind, each consumed as it should be; one fails, and one for good."""
    made = History(groups=list(GROUPS), calm=at(30))
    made.members = [
        Member(f"{name}#1", "push", name[:-2], at(-2), at(-1), at(60), at(61)) for name in MEMBERS
    ]
    made.members.append(Member("sync#1", "sync", "", at(-2), at(-1), at(60), at(61)))
    for n in range(4):
        made.sends.append(send(f"m{n}", "plain", n, n))
        made.sends.append(send(f"k{n}", "keyed", n, n, sharding_key="one", how="keyed"))
        for group, by in (("many", "many-a#1"), ("some", "some-a#1"), ("everyone", "everyone-a#1")):
            made.deliveries.append(given(f"m{n}", group, by, Place("plain", 0, n), n + 0.1))
        made.deliveries.append(
            given(f"k{n}", "ordered", "ordered-a#1", Place("keyed", 0, n), n + 0.1)
        )
    failed = made.deliveries[0]
    made.deliveries[0] = replace(failed, verdict=LATER)
    retry = Place("%RETRY%many", 0, 0)
    made.deliveries.append(
        replace(made.deliveries[0], place=retry, began=at(1.5), ended=at(1.6), call=9001, tries=1)
    )
    made.letters.append(Letter("m0", "many", Place("%DLQ%many", 0, 0), content("m0", "%DLQ%many")))
    made.sends.append(send("d", "late", None, 5, how="delayed", delay_s=1.0))
    made.deliveries.append(given("d", "late", "late-a#1", Place("late", 0, 0), 6.1))
    for ident, state in (("t-yes", COMMIT), ("t-no", ROLLBACK)):
        made.sends.append(send(ident, "ledger", None, 5, how="transaction"))
        made.decisions.append(Decision(ident, state, at(5.01)))
    made.deliveries.append(given("t-yes", "booked", "booked-a#1", Place("ledger", 0, 0), 5.1))
    made.commits = [
        Commit("many", "plain", 0, 2, at(1.9), at(2.0)),
        Commit("many", "plain", 0, 4, at(8), at(8.1)),
        Commit("ordered", "keyed", 0, 4, at(8), at(8.1)),
    ]
    made.deliveries += [
        given(each.ident, "reader", "observer#1", place, 50)
        for each in made.sends
        for place in [each.place or Place(each.content.topic, 0, 0)]
        if each.ident != "t-no"
    ]
    made.sends.append(send("refused", "plain", None, 9, outcome="NOT_SENT"))
    return made
