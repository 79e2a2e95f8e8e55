"""Our conditions against the filter Apache's broker runs: the same messages are selected."""

from __future__ import annotations

import base64
import random
from pathlib import Path

import pytest

from rocketstream.errors import SubscriptionError
from rocketstream.protocol.sql92 import compile_expression
from rocketstream.server.broker.core.bloom import bloom_positions
from tests.filters.conditions import TABLE, TABLE_5, TRAILING, WRONG, Conditions, messages
from tests.kits.apache.cluster import JavaPrograms
from tests.kits.apache.jvm import SMALL_JVM, Jvm
from tests.kits.apache.referee import Referee

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]

GENERATED = 5_000
REFUSED = "!"


def _word(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def apache_letters(referee: Referee, root: Path, conditions: list[str]) -> list[str]:
    """What Apache's filter says of each condition on every message of the table."""
    lines = [
        " ".join(["P", *(_word(word) for pair in message.items() for word in pair)])
        for message in messages()
    ]
    return answers(referee, root, lines + [f"E {_word(condition)}" for condition in conditions])


def answers(referee: Referee, root: Path, lines: list[str]) -> list[str]:
    """What the program says to its lines."""
    (root / "in").write_text("\n".join(lines) + "\n")
    arguments = [*SMALL_JVM, *referee.servers, "JavaSqlFilter"]
    arguments += [f"in={root / 'in'}", f"out={root / 'out'}"]
    with Jvm("sql", arguments, root / "sql.log") as process:
        process.wait_event("done")
    return (root / "out").read_text().splitlines()


def our_letters(condition: str) -> str:
    try:
        expression = compile_expression(condition)
    except SubscriptionError:
        return REFUSED
    return "".join(
        {True: "T", False: "F", None: "N"}[expression.evaluate(message)] for message in messages()
    )


def as_ours(letters: str) -> str:
    """A failed evaluation matches nothing, as an unknown one does (C-390)."""
    return letters.replace("X", "N")


@pytest.fixture
def root(java: JavaPrograms) -> Path:
    return java.root


def differences(conditions: list[str], theirs: list[str]) -> dict[str, tuple[str, str]]:
    assert len(theirs) == len(conditions)
    pairs = zip(conditions, theirs, strict=True)
    return {
        condition: (our_letters(condition), as_ours(letters))
        for condition, letters in pairs
        if our_letters(condition) != as_ours(letters)
    }


def test_conditions_of_the_table_select_the_same_messages(apache: Referee, root: Path) -> None:
    """Covers C-384, C-385, C-387, C-388, C-390, C-391, C-392."""
    theirs = apache_letters(apache, root, TABLE)
    assert REFUSED not in theirs
    assert differences(TABLE, theirs) == {}


def test_generated_conditions_select_the_same_messages(apache: Referee, root: Path) -> None:
    """Covers C-384, C-389, C-392: also which conditions are refused is the same."""
    made = Conditions(seed=383)
    conditions = [made.one() for _ in range(GENERATED)]
    theirs = apache_letters(apache, root, conditions)
    assert sum(letters != REFUSED for letters in theirs) > GENERATED / 10
    assert differences(conditions, theirs) == {}


def test_words_of_5_select_the_same_messages(apache: Referee, root: Path) -> None:
    """Covers C-384: 4.9 reads them as names and ignores what follows (C-386); 5.x knows them."""
    if apache.version.startswith("4"):
        pytest.skip("4.9 does not know CONTAINS, STARTSWITH and ENDSWITH")
    theirs = apache_letters(apache, root, TABLE_5)
    assert REFUSED not in theirs
    assert differences(TABLE_5, theirs) == {}


def test_what_apache_refuses_is_refused(apache: Referee, root: Path) -> None:
    """Covers C-388, C-389."""
    theirs = apache_letters(apache, root, WRONG)
    assert set(theirs) == {REFUSED}
    assert differences(WRONG, theirs) == {}


def test_trailing_text_is_ignored_by_apache_and_refused_by_us(apache: Referee, root: Path) -> None:
    """Covers C-386, C-583: the one thing Apache takes and we do not."""
    theirs = apache_letters(apache, root, TRAILING)
    refused = [condition for condition, t in zip(TRAILING, theirs, strict=True) if t == REFUSED]
    assert refused == []
    assert {our_letters(condition) for condition in TRAILING} == {REFUSED}


def test_zero_point_zero_is_refused_by_apache_and_taken_by_us(apache: Referee, root: Path) -> None:
    """Covers C-388, C-583: the one thing we take and Apache does not."""
    assert apache_letters(apache, root, ["a > 0.0"]) == [REFUSED]
    assert our_letters("a > 0.0") == our_letters("a > 1e-320")


def test_bloom_positions_are_apaches(apache: Referee, root: Path) -> None:
    """Covers C-394: 112 bits, three positions from murmur3 of the group and the topic."""
    chosen = random.Random(394)
    letters = "abcXYZ019_-%|"
    names = ["".join(chosen.choices(letters, k=length)) for length in range(1, 60)]
    pairs = [(chosen.choice(names), chosen.choice(names)) for _ in range(200)]
    theirs = answers(apache, root, [f"B {_word(f'{group}#{topic}')}" for group, topic in pairs])
    ours = [bloom_positions(group, topic) for group, topic in pairs]
    assert theirs == [f"{data.bit_pos} of {data.bit_num}" for data in ours]
