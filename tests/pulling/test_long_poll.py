"""Held pulls: woken by what they want, ended by their own deadline, bounded, forgotten."""

from __future__ import annotations

from rocketstream.server.broker.core.long_poll import HeldPull, LongPolls, TagMatch


def held(
    name: str,
    *,
    queue_id: int = 0,
    match: TagMatch | None = None,
    deadline_ms: float = 1000,
    owner: str = "c1",
    size: int = 0,
) -> HeldPull[str]:
    return HeldPull("T1", queue_id, match, deadline_ms, owner, name, None, size)


def names(pulls: list[HeldPull[str]]) -> list[str]:
    return [each.pull for each in pulls]


def forget(polls: LongPolls[str], owner: str) -> int:
    """Forget the pulls of a closed connection; return in how many steps."""
    return len(list(polls.forgetting(owner)))


def test_arrival_takes_out_every_waiter_of_its_queue_only() -> None:
    """Covers C-376."""
    polls: LongPolls[str] = LongPolls()
    for each in (held("a"), held("b"), held("c", queue_id=1)):
        assert polls.hold(each)
    assert polls.is_awaited("T1", 0)
    assert names(polls.arrived("T1", 0, 0)) == ["a", "b"]
    assert polls.arrived("T1", 0, 0) == []
    assert not polls.is_awaited("T1", 0)
    assert len(polls) == 1


def test_arrival_of_an_unwanted_tag_wakes_nobody() -> None:
    """Covers C-375, C-381."""
    polls: LongPolls[str] = LongPolls()
    polls.hold(held("a", match={7, 8}.__contains__))
    polls.hold(held("all"))
    assert names(polls.arrived("T1", 0, 9)) == ["all"]
    assert names(polls.arrived("T1", 0, 8)) == ["a"]


def test_deadlines_are_exact_and_in_order() -> None:
    """Covers the fix of C-377."""
    polls: LongPolls[str] = LongPolls()
    polls.hold(held("late", deadline_ms=300))
    polls.hold(held("soon", deadline_ms=100))
    polls.hold(held("woken", deadline_ms=50, queue_id=1))
    assert polls.next_deadline_ms() == 50
    polls.arrived("T1", 1, 0)
    assert polls.next_deadline_ms() == 100
    assert polls.expired(99.9) == []
    assert names(polls.expired(100)) == ["soon"]
    assert names(polls.expired(1000)) == ["late"]
    assert polls.next_deadline_ms() is None
    assert len(polls) == 0


def test_pulls_of_a_gone_owner_are_forgotten() -> None:
    polls: LongPolls[str] = LongPolls()
    polls.hold(held("a"))
    polls.hold(held("b", owner="c2"))
    assert forget(polls, "c1") == 1
    assert forget(polls, "c1") == 0
    assert names(polls.arrived("T1", 0, 0)) == ["b"]
    assert polls.expired(1e9) == []


def test_pulls_may_be_answered_while_those_of_their_connection_are_forgotten() -> None:
    """Between two steps a message comes, and the time of another pull is up."""
    polls: LongPolls[str] = LongPolls()
    for number in range(6):
        assert polls.hold(held(str(number), queue_id=number, deadline_ms=number))
    steps = polls.forgetting("c1")
    next(steps)
    assert names(polls.arrived("T1", 3, 0)) == ["3"]
    assert names(polls.expired(1)) == ["1"]
    assert len(list(steps)) == 5
    assert len(polls) == 0
    assert polls.next_deadline_ms() is None


def test_no_more_than_the_bound_is_held() -> None:
    polls: LongPolls[str] = LongPolls(held_max=2)
    assert polls.hold(held("a"))
    assert polls.hold(held("b"))
    assert not polls.hold(held("c"))
    polls.arrived("T1", 0, 0)
    assert polls.hold(held("c"))


def test_take_all_empties() -> None:
    polls: LongPolls[str] = LongPolls()
    polls.hold(held("a"))
    polls.hold(held("b", queue_id=1))
    assert sorted(names(polls.take_all())) == ["a", "b"]
    assert len(polls) == 0
    assert polls.next_deadline_ms() is None


class Compared(HeldPull[str]):
    """A pull that counts how often it is compared with another."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        Compared.comparisons += 1
        return self is other

    __hash__ = object.__hash__


def test_gone_owner_costs_a_step_for_each_of_its_pulls() -> None:
    """20,000 pulls of a lost connection took 1.4 s: each was looked for among all others."""
    polls: LongPolls[str] = LongPolls(of_queue_max=3_000)
    for number in range(3_000):
        assert polls.hold(Compared("T1", 0, None, number, "gone", str(number)))
    Compared.comparisons = 0
    assert forget(polls, "gone") == 3_000
    assert len(polls) == 0
    assert Compared.comparisons < 3_000


def test_one_connection_holds_no_more_than_its_share() -> None:
    """Of one queue, and in all; other connections are not affected."""
    polls: LongPolls[str] = LongPolls(of_owner_max=5, of_queue_max=3)
    taken = [polls.hold(held(str(number), queue_id=number % 2)) for number in range(10)]
    assert taken == [True] * 5 + [False] * 5
    assert [polls.hold(held("x", owner="c2")) for _ in range(4)] == [True] * 3 + [False]
    forget(polls, "c1")
    assert polls.hold(held("again"))
    assert not polls.hold(held("y", owner="c2"))


def test_so_many_bytes_are_held_of_one_connection_and_of_all() -> None:
    """200 pulls of 35,000 tags each took 660 MB: by their number they were few."""
    polls: LongPolls[str] = LongPolls(bytes_max=100, of_owner_bytes_max=60)
    assert polls.hold(held("a", size=40))
    assert not polls.hold(held("too much of c1", size=21))
    assert polls.hold(held("b", queue_id=1, size=20))
    assert not polls.hold(held("too much of all", owner="c2", size=41))
    assert polls.hold(held("c", owner="c2", size=40))
    assert names(polls.arrived("T1", 1, 0)) == ["b"]
    assert polls.hold(held("d", queue_id=1, size=20))
    assert not polls.hold(held("e", owner="c3", size=1))
    forget(polls, "c1")
    assert polls.hold(held("e", owner="c3", size=60))


def test_refused_pull_leaves_nothing_behind() -> None:
    polls: LongPolls[str] = LongPolls(held_max=0)
    assert not polls.hold(held("a"))
    assert forget(polls, "c1") == 0


def test_deadlines_of_answered_pulls_are_not_kept_until_then() -> None:
    """A queue that is busy does not fill memory with pulls it answered long ago."""
    polls: LongPolls[str] = LongPolls()
    for number in range(20_000):
        assert polls.hold(held(str(number), deadline_ms=600_000))
        polls.arrived("T1", 0, 0)
    assert len(polls._deadlines) < 2_000


def test_deadlines_of_pulls_that_still_wait_outlive_the_tidying() -> None:
    polls: LongPolls[str] = LongPolls()
    assert polls.hold(held("waits", queue_id=1, deadline_ms=600_000))
    for number in range(3_000):
        assert polls.hold(held(str(number), deadline_ms=600_000))
        polls.arrived("T1", 0, 0)
    assert names(polls.expired(600_000)) == ["waits"]


def test_deadlines_are_tidied_only_when_most_of_them_are_stale() -> None:
    """Each tidying looks at all of them: with every pull held it would take their square."""
    looks = 0

    class Looked(HeldPull[str]):
        @property
        def is_held(self) -> bool:
            nonlocal looks
            looks += 1
            return True

        @is_held.setter
        def is_held(self, value: bool) -> None:
            pass

    polls: LongPolls[str] = LongPolls()
    for number in range(600):
        assert polls.hold(Looked("T1", number, None, number, number, str(number)))
    assert looks == 0


def test_a_connections_share_grows_by_one_with_each_answer() -> None:
    polls: LongPolls[str] = LongPolls(of_owner_max=3)
    for queue_id in range(3):
        assert polls.hold(held("a", queue_id=queue_id))
    polls.arrived("T1", 0, 0)
    assert [polls.hold(held("b", queue_id=0)), polls.hold(held("c", queue_id=5))] == [True, False]


def test_a_thousand_and_twenty_four_stale_deadlines_are_kept() -> None:
    polls: LongPolls[str] = LongPolls()
    kept = []
    for number in range(1_030):
        assert polls.hold(held(str(number), deadline_ms=600_000))
        kept.append(len(polls._deadlines))
        polls.arrived("T1", 0, 0)
    assert kept == [*range(1, 1_025), *range(1, 7)]


def is_empty(polls: LongPolls[str]) -> bool:
    return len(polls) == 0 and not (
        polls._queues or polls._owners or polls._counts or polls._sizes or polls._bytes
    )


def test_nothing_is_kept_of_an_owner_or_a_queue_nothing_waits_for() -> None:
    """Connections come and go, and a client may name any queue: either would fill memory."""
    polls: LongPolls[str] = LongPolls(held_max=3)
    assert is_empty(polls)
    for number in range(3):
        assert polls.hold(held(str(number), queue_id=number, owner=f"c{number}"))
    assert not polls.hold(held("3", queue_id=9, owner="c9"))
    assert set(polls._owners) == set(polls._counts) == {"c0", "c1", "c2"}
    polls.arrived("T1", 0, 0)
    polls.expired(1_000)
    assert is_empty(polls)
    assert polls.hold(held("a"))
    forget(polls, "c1")
    assert is_empty(polls)
    assert polls.hold(held("b"))
    polls.take_all()
    assert is_empty(polls)


def test_a_refused_pull_takes_nothing_from_those_that_wait() -> None:
    polls: LongPolls[str] = LongPolls(of_queue_max=1)
    assert polls.hold(held("a"))
    assert polls.hold(held("b", queue_id=1))
    assert not polls.hold(held("c"))
    assert names(polls.arrived("T1", 0, 0)) == ["a"]
    assert names(polls.expired(1_000)) == ["b"]


def test_a_condition_on_properties_sees_the_offset_that_arrived() -> None:
    """Covers C-375: both conditions must hold, and the tag is asked first."""
    polls: LongPolls[str] = LongPolls()
    seen: list[int] = []

    def accept(offset: int) -> bool:
        seen.append(offset)
        return offset == 7

    pull = HeldPull("T1", 0, {5}.__contains__, 1000, "c1", "a", accept)
    assert polls.hold(pull)
    assert pull.is_held
    assert polls.arrived("T1", 0, 4, 7) == []
    assert seen == []
    assert polls.arrived("T1", 0, 5, 6) == []
    assert names(polls.arrived("T1", 0, 5, 7)) == ["a"]
    assert seen == [6, 7]
    assert not pull.is_held
    assert polls.hold(HeldPull("T1", 0, None, 1000, "c1", "b", lambda offset: offset == 0))
    assert names(polls.arrived("T1", 0, 5)) == ["b"]


def test_a_queue_is_that_of_its_topic() -> None:
    polls: LongPolls[str] = LongPolls()
    polls.hold(held("a"))
    assert not polls.is_awaited("T2", 0)
    assert not polls.is_awaited("T1", 1)
    assert polls.arrived("T2", 0, 0) == []
    assert names(polls.arrived("T1", 0, 0)) == ["a"]


def test_pulls_of_one_deadline_end_in_the_order_they_came() -> None:
    polls: LongPolls[str] = LongPolls()
    for number in range(5):
        polls.hold(held(str(number), queue_id=number, deadline_ms=10))
    assert names(polls.expired(10)) == ["0", "1", "2", "3", "4"]


def test_a_pull_that_was_answered_does_not_expire_and_frees_its_place_once() -> None:
    polls: LongPolls[str] = LongPolls(held_max=2)
    polls.hold(held("a", deadline_ms=10))
    polls.hold(held("b", queue_id=1, deadline_ms=10))
    polls.arrived("T1", 0, 0)
    assert names(polls.expired(10)) == ["b"]
    assert len(polls) == 0
    assert [polls.hold(held(name)) for name in "cde"] == [True, True, False]
