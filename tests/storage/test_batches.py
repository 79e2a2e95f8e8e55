"""The messages of a batch: stored as each would be by itself, however alike they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstream.errors import BrokerError
from rocketstream.protocol.codes import ResponseCode
from rocketstream.protocol.headers import SendMessageRequestHeader
from rocketstream.protocol.message_ext import decode_message
from rocketstream.protocol.properties import (
    decode_properties,
    encode_properties,
)
from rocketstream.protocol.record import (
    encode_batch,
    index_keys,
    pack_host,
    record_of,
)
from rocketstream.protocol.tag_hash import tags_code
from rocketstream.server.broker.core.batches import Batch, read_batch
from rocketstream.server.broker.core.sends import SendRules
from rocketstream.server.store import dispatch
from rocketstream.server.store.dispatch import DispatchEntry

RULES = SendRules("C1", "h", 1 << 20, refuses_transactions=False)
HOST = pack_host("10.0.0.1", 10911)
VALUES = st.text(st.characters(max_codepoint=0x2FF, exclude_categories=["Cs"]), max_size=4)
NAMES = st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "WAIT", "a%b", "u"])


def header(properties: str = "", **changes: object) -> SendMessageRequestHeader:
    made = SendMessageRequestHeader("g", "T1", "TBW102", 4, 2, 1, 1_700_000_000_000, 0, properties)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def read(
    head: SendMessageRequestHeader, items: list[tuple[int, bytes, bytes]], host: bytes = HOST
) -> Batch:
    steps = read_batch(RULES, head, 2, encode_batch(items), (host, HOST))
    while True:
        try:
            next(steps)
        except StopIteration as done:
            batch: Batch = done.value
            return batch


def records_of(batch: Batch) -> list[bytes]:
    """The records a store would write at offset 0, at time 9."""
    return [record_of(draft, 0, 0, 9) for draft in batch.drafts]


@given(
    st.lists(st.tuples(NAMES, VALUES), max_size=2),
    st.lists(st.lists(st.tuples(NAMES, VALUES), max_size=3), min_size=1, max_size=2),
    st.integers(1, 5),
    st.sampled_from([HOST, pack_host("::1", 1)]),
)
def test_every_message_is_stored_as_its_own_properties_say(
    common: list[tuple[str, str]],
    kinds: list[list[tuple[str, str]]],
    times: int,
    host: bytes,
) -> None:
    texts = ["\x02".join(f"{n}\x01{v}" for n, v in kind).encode() for kind in kinds * times]
    shared = "\x02".join(f"{n}\x01{v}" for n, v in common)
    batch = read(
        header(shared, sys_flag=0), [(7, b"%d" % n, text) for n, text in enumerate(texts)], host
    )
    for number, (text, draft) in enumerate(zip(texts, batch.drafts, strict=True)):
        properties = {**decode_properties(shared), "CLUSTER": "C1", **decode_properties(text)}
        told = decode_message(record_of(draft, 0, 0, 9))
        assert told.properties == properties
        assert (told.body, told.flag, told.born_timestamp) == (b"%d" % number, 7, 1_700_000_000_000)
        assert draft[12] == tags_code(properties.get("TAGS"))
        assert draft[13] == index_keys(properties.get("UNIQ_KEY"), properties.get("KEYS"))


def test_usual_messages_need_no_dictionaries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the properties of the batch are decoded."""
    decoded: list[bytes | str] = []

    def counted(text: bytes | str) -> dict[str, str]:
        decoded.append(text)
        return decode_properties(text)

    monkeypatch.setattr("rocketstream.server.broker.core.batches.decode_properties", counted)
    items = [(0, b"x", b"UNIQ_KEY\x01%d\x02WAIT\x01true\x02TAGS\x01A" % n) for n in range(100)]
    batch = read(header("WAIT\x01true"), items)
    assert len(batch.drafts) == 100
    assert len(decoded) == 1
    last = b"CLUSTER\x01C1\x02UNIQ_KEY\x0199\x02WAIT\x01true\x02TAGS\x01A"
    assert last in batch.drafts[99][11]


@pytest.mark.parametrize("text", [b"DELAY\x013", b"TRAN_MSG\x01true", b"u\x01" + b"x" * 32_760])
def test_a_message_no_batch_takes_is_refused_behind_any_number(text: bytes) -> None:
    for before in range(4):
        items = [(0, b"x", b"u\x01v")] * before + [(0, b"x", text)]
        with pytest.raises(BrokerError) as caught:
            read(header("WAIT\x01true"), items)
        assert caught.value.code == ResponseCode.MESSAGE_ILLEGAL
    if not text.startswith(b"u"):
        with pytest.raises(BrokerError):
            read(header(text.decode()), [(0, b"x", b"u\x01v")] * 4)


def test_records_of_a_batch_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketstream.server.broker.core.batches.BATCH_STORED_BYTES_MAX", 500)
    for host in (HOST, pack_host("::1", 1)):
        with pytest.raises(BrokerError, match="more than 500 bytes"):
            read(header(), [(0, b"x" * 50, b"u\x01v")] * 4, host)


@pytest.mark.parametrize("name", ["TAGS", "KEYS", "UNIQ_KEY"])
def test_what_a_header_says_of_all_messages_is_said_of_each(name: str) -> None:
    batch = read(header(f"{name}\x01A"), [(0, b"x", b"u\x01%d" % n) for n in range(4)])
    told = {name: "A"}
    keys = index_keys(told.get("UNIQ_KEY"), told.get("KEYS"))
    assert [(draft[12], draft[13]) for draft in batch.drafts] == [
        (tags_code(told.get("TAGS")), keys)
    ] * 4


def test_a_delay_behind_messages_that_name_none_is_refused() -> None:
    items = [(0, b"x", b"DELAY\x010")] * 3
    assert len(read(header(), items).drafts) == 3
    with pytest.raises(BrokerError):
        read(header(), [*items, (0, b"x", b"DELAY\x013")])


@pytest.mark.parametrize(("count", "steps"), [(1, 1), (8, 1), (9, 2), (16, 2), (17, 3)])
def test_eight_messages_of_a_batch_are_read_in_a_step(count: int, steps: int) -> None:
    """Between steps the broker serves others."""
    body = encode_batch([(0, b"x", b"u\x01v")] * count)
    assert len(list(read_batch(RULES, header(), 2, body, (HOST, HOST)))) == steps


@pytest.mark.parametrize(("given", "stored"), [(None, 0), (0, 0), (3, 3)])
@pytest.mark.parametrize("host", [HOST, pack_host("::1", 1)], ids=["v4", "v6"])
def test_messages_of_a_batch_have_the_attempts_of_its_header(
    given: int | None, stored: int, host: bytes
) -> None:
    batch = read(header(reconsume_times=given), [(0, b"x", b"u\x01v")], host)
    (record,) = records_of(batch)
    told = decode_message(record)
    assert (told.reconsume_times, told.prepared_transaction_offset) == (stored, 0)


@pytest.mark.parametrize("host", [HOST, pack_host("::1", 1)], ids=["v4", "v6"])
def test_records_of_a_batch_may_fill_their_bound(
    host: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = [(0, b"x" * 50, b"u\x01v")] * 3
    size = sum(map(len, records_of(read(header(), items, host))))
    name = "rocketstream.server.broker.core.batches.BATCH_STORED_BYTES_MAX"
    monkeypatch.setattr(name, size)
    assert len(read(header(), items, host).drafts) == 3
    monkeypatch.setattr(name, size - 1)
    with pytest.raises(BrokerError, match="more than"):
        read(header(), items, host)


@pytest.mark.parametrize("name", ["MYWAIT", "WAITS", "w"])
def test_a_name_like_one_of_the_batch_leaves_that_in_place(name: str) -> None:
    batch = read(header("WAIT\x01false"), [(0, b"x", f"{name}\x01v".encode())])
    (record,) = records_of(batch)
    assert decode_message(record).properties == {"WAIT": "false", "CLUSTER": "C1", name: "v"}


def test_of_a_property_given_twice_the_last_counts() -> None:
    batch = read(header(), [(0, b"x", b"TAGS\x01a\x02KEYS\x01k\x02TAGS\x01b\x02KEYS\x01l\x02")])
    ((code, keys),) = [(draft[12], draft[13]) for draft in batch.drafts]
    assert (code, keys) == (tags_code("b"), ["l"])
    (record,) = records_of(batch)
    told = decode_message(record).properties
    assert told == {"CLUSTER": "C1", "TAGS": "b", "KEYS": "l"}


@pytest.mark.parametrize(
    "order", ["TAGS KEYS UNIQ_KEY", "KEYS UNIQ_KEY TAGS", "UNIQ_KEY TAGS KEYS"]
)
def test_alike_messages_have_their_own_tags_and_keys_wherever_they_stand(order: str) -> None:
    texts = [
        "\x02".join(f"{name}\x01{name[0]}{number}" for name in order.split()).encode()
        for number in range(5)
    ]
    batch = read(header(), [(0, b"x", text) for text in texts])
    assert [(draft[12], draft[13]) for draft in batch.drafts] == [
        (tags_code(f"T{number}"), [f"U{number}", f"K{number}"]) for number in range(5)
    ]


@pytest.mark.parametrize("name", ["KEYS", "UNIQ_KEY", "TAGS", "u"])
def test_alike_messages_with_one_of_the_properties_have_no_others(name: str) -> None:
    batch = read(header(), [(0, b"x", f"{name}\x01v{number}".encode()) for number in range(4)])
    assert [(draft[12], draft[13]) for draft in batch.drafts] == [
        (
            tags_code(f"v{number}") if name == "TAGS" else 0,
            [f"v{number}"] if name in ("KEYS", "UNIQ_KEY") else [],
        )
        for number in range(4)
    ]


def test_a_message_is_found_by_its_id_and_as_many_keys_as_are_indexed() -> None:
    assert index_keys(None, None) == []
    assert index_keys("id", None) == ["id"]
    assert index_keys("", "a  b") == ["a", "b"]
    many = [str(number) for number in range(300)]
    assert index_keys("id", " ".join(many)) == ["id", *many[:256]]
    assert index_keys("id", "  ".join(many)) == ["id", *many[:256]]


@pytest.mark.parametrize("white", ["\u3000", "\u00a0", "\t", "\u2028", "\n"])
def test_only_a_blank_parts_keys(white: str) -> None:
    """As for whoever asks for one: any other white space is part of a key, as it is in Java's."""
    assert index_keys(None, f"a{white}b c") == [f"a{white}b", "c"]


@pytest.mark.parametrize("text", ["a  b\u3000c ", " ".join(map(str, range(300)))])
def test_an_index_made_anew_has_the_keys_it_had(text: str) -> None:
    properties = encode_properties({"UNIQ_KEY": "id", "KEYS": text}).encode()
    entry = DispatchEntry("T", 0, 0, 0, 0, 0, 0, properties)
    assert dispatch.index_keys(entry) == tuple(index_keys("id", text))


@pytest.mark.parametrize(
    ("given", "waits"), [("", True), ("WAIT\x01true", True), ("WAIT\x01false", False)]
)
def test_a_batch_waits_for_the_disk_unless_its_header_says_otherwise(
    given: str, waits: bool
) -> None:
    assert read(header(given), [(0, b"x", b"u\x01v")]).wants_flush is waits


def test_a_body_of_just_the_maximum_is_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers C-431, C-430."""
    items = [(0, b"x", b"u\x01v")] * 2
    size = len(encode_batch(items))
    monkeypatch.setattr(f"{__name__}.RULES", SendRules("C1", "h", size, refuses_transactions=False))
    assert len(read(header(), items).drafts) == 2
    monkeypatch.setattr(
        f"{__name__}.RULES", SendRules("C1", "h", size - 1, refuses_transactions=False)
    )
    with pytest.raises(BrokerError, match=f"msg body length limit {size - 1}B"):
        read(header(), items)


def test_a_batch_of_nothing_and_one_for_retries_are_refused() -> None:
    """Covers C-431."""
    with pytest.raises(BrokerError, match="the message is illegal"):
        read(header(), [])
    with pytest.raises(BrokerError, match="the message is illegal"):
        read(header(topic="%RETRY%g"), [(0, b"x", b"u\x01v")])


def test_properties_of_each_message_may_fill_their_bound() -> None:
    """Covers C-430: also of those that are read the quick way."""
    room = 32_767 - len("CLUSTER\x01C1\x02u\x01")
    for before in range(4):
        items = [(0, b"x", b"u\x01v")] * before
        assert len(read(header(), [*items, (0, b"x", b"u\x01" + b"x" * room)]).drafts) == before + 1
        with pytest.raises(BrokerError, match="the message is illegal"):
            read(header(), [*items, (0, b"x", b"u\x01" + b"x" * (room + 1))])


def test_a_delay_the_header_names_is_that_of_each_message() -> None:
    """None may have one; a message's own 0 goes before it, behind any number of others."""
    with pytest.raises(BrokerError):
        read(header("DELAY\x013"), [(0, b"x", b"u\x01v")])
    assert len(read(header("DELAY\x010"), [(0, b"x", b"u\x01v")] * 4).drafts) == 4
    items = [(0, b"x", b"DELAY\x010")] * 4
    assert len(read(header("DELAY\x013"), items).drafts) == 4
    for before in range(4):
        with pytest.raises(BrokerError):
            read(header("DELAY\x010"), [*items[:before], (0, b"x", b"DELAY\x011")])


@pytest.mark.parametrize("host", [HOST, pack_host("::1", 1)], ids=["v4", "v6"])
def test_a_zero_byte_in_properties_is_stored_as_it_came(host: bytes) -> None:
    items = [(0, b"x", b"u\x01v"), (0, b"y", b"u\x01\0"), (0, b"z", b"u\x01w")]
    batch = read(header(), items, host)
    told = [decode_message(record).properties["u"] for record in records_of(batch)]
    assert told == ["v", "\0", "w"]
    common = read(header("n\x01\0"), [(0, b"x", b"u\x01v")] * 4, host)
    assert [decode_message(record).properties["n"] for record in records_of(common)] == ["\0"] * 4
