"""``send`` and ``consume``: bodies, tags, keys, properties, progress, and what is refused."""

from __future__ import annotations

import base64
import signal
from pathlib import Path

from tests.plugins.commands import TIMEOUT_S, Cli, Quick, Starter

MIB = 1024 * 1024


def received(cli: Cli, topic: str, count: int, *more: str) -> list[dict[str, object]]:
    done = cli(
        "consume", topic, "-g", f"g-{topic}", "--from", "earliest", "--max", str(count), "--json",
        *more,
    )  # fmt: skip
    return done.worked().json_lines


def test_a_message_arrives_with_everything_it_was_sent_with(cli: Cli) -> None:
    done = cli(
        "send", "full", "hé", "--tags", "t1", "--keys", "k1 k2", "-p", "city=NYC", "--property",
        "a=b=c", "--json",
    )  # fmt: skip
    (sent,) = done.worked().json_lines
    assert sent["status"] == "SEND_OK"
    assert sent["queueOffset"] == 0
    (message,) = received(cli, "full", 1)
    assert (message["body"], message["tags"], message["keys"]) == ("hé", "t1", "k1 k2")
    assert message["msgId"] == sent["msgId"]
    assert message["queueId"] == sent["queueId"]
    properties = message["properties"]
    assert isinstance(properties, dict)
    assert (properties["city"], properties["a"]) == ("NYC", "b=c")


def test_result_of_one_message_is_one_line(cli: Cli) -> None:
    out = cli("send", "single", "hello").worked().out
    assert out.startswith("SEND_OK single broker=broker-a queue=")
    assert out.count("\n") == 1


def test_lines_of_stdin_and_file_become_messages(cli: Cli, tmp_path: Path) -> None:
    cli("topic", "create", "lines", "-q", "1").worked()
    done = cli("send", "lines", "--stdin", stdin="one\n\ntwo\r\n").worked()
    assert done.out.endswith("sent 2 messages to lines, 1 queue\n")
    file = tmp_path / "in.txt"
    file.write_text("three\nfour", "utf-8")
    cli("send", "lines", "--file", str(file)).worked()
    cli("send", "lines", "--file", "-", stdin="five").worked()
    done = cli("consume", "lines", "-g", "g", "--from", "earliest", "--max", "5").worked()
    assert done.out.split() == ["one", "two", "three", "four", "five"]
    assert done.err == ""


def test_many_messages_are_summed_up(quick: Quick) -> None:
    out = quick("send", "many", "x", "--count", "1200").worked().out
    assert out.startswith("sent 1,200 messages to many, ")
    rows = quick("send", "many", "x", "--count", "600", "--json").worked().json_lines
    assert len({row["msgId"] for row in rows}) == 600
    assert len({(row["queueId"], row["queueOffset"]) for row in rows}) == 600


def test_messages_go_to_the_queue_named(quick: Quick) -> None:
    quick("topic", "create", "chosen", "-q", "4").worked()
    (row,) = quick("send", "chosen", "x", "--queue", "2", "--json").worked().json_lines
    assert row["queueId"] == 2
    (row,) = quick("send", "chosen", "x", "--queue", "broker-a:3", "--json").worked().json_lines
    assert row["queueId"] == 3
    assert "broker-a:3" in quick("send", "chosen", "x", "--queue", "9").failed(2)
    assert "BROKER:ID" in quick("send", "chosen", "x", "--queue", "first").failed(2)


def test_tags_choose_messages(quick: Quick) -> None:
    for tag in ("a", "b", "c"):
        quick("send", "tagged", tag, "--tags", tag).worked()
    found = {message["body"] for message in received(quick, "tagged", 2, "--tags", "a || c")}
    assert found == {"a", "c"}


def test_conditions_choose_messages(quick: Quick) -> None:
    for price in ("3", "5", "7"):
        quick("send", "priced", price, "-p", f"price={price}").worked()
    found = {message["body"] for message in received(quick, "priced", 2, "--sql", "price >= 5")}
    assert found == {"5", "7"}
    asked = ("consume", "priced", "-g", "g", "--sql")
    assert "at character 8" in quick(*asked, "price = = 5").failed(2)
    assert "not both" in quick(*asked, "price = 5", "--tags", "a").failed(2)


def test_what_was_not_printed_is_delivered_again(quick: Quick) -> None:
    quick("topic", "create", "again", "-q", "1").worked()
    quick("send", "again", "--stdin", stdin="\n".join("abcdef")).worked()
    bodies = [message["body"] for message in received(quick, "again", 2)]
    bodies += [message["body"] for message in received(quick, "again", 4)]
    assert bodies == list("abcdef")


def test_bodies_that_are_not_text_are_given_in_base64(quick: Quick) -> None:
    quick("send", "bytes", "--stdin", stdin=b"\xff\xfe\n").worked()
    (message,) = received(quick, "bytes", 1)
    assert message["bodyBase64"] == "//4="
    assert "body" not in message


def test_latest_skips_what_was_there_before_the_group(quick: Quick) -> None:
    """A broker alone would begin a new group of a young topic at its oldest message (C-195)."""
    quick("topic", "create", "fresh", "-q", "1").worked()
    quick("send", "fresh", "old").worked()
    read = ("consume", "fresh", "-g", "g", "--from", "latest")
    assert quick(*read, "--idle", "0.3").worked().out == ""
    quick("send", "fresh", "new").worked()
    assert quick(*read, "--max", "1").worked().out == "new\n"


def test_idle_ends_without_messages(quick: Quick) -> None:
    quick("topic", "create", "idle").worked()
    done = quick("consume", "idle", "-g", "g", "--idle", "0.5").worked()
    assert (done.out, done.err) == ("", "0 messages consumed\n")


def test_ctrl_c_ends_consume_quietly_and_keeps_the_progress(cli: Cli, start: Starter) -> None:
    cli("topic", "create", "stopped", "-q", "1").worked()
    cli("send", "stopped", "one").worked()
    process = start("consume", "stopped", "-g", "g", "--from", "earliest", namesrv=cli.namesrv)
    assert process.stdout is not None
    assert process.stdout.readline() == b"one\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, out, err) == (130, b"", b"")
    (row,) = cli("group", "lag", "g", "--topic", "stopped", "--json").worked().json
    assert row["consumerOffset"] == 1


def test_body_over_4_mib_is_refused(cli: Cli, tmp_path: Path) -> None:
    """Covers C-453."""
    file = tmp_path / "large.txt"
    file.write_text("x" * (4 * MIB + 1), "utf-8")
    assert "4194304" in cli("send", "large", "--file", str(file)).failed().replace(",", "")


def test_body_of_4_mib_is_taken(quick: Quick, tmp_path: Path) -> None:
    file = tmp_path / "large.txt"
    file.write_text("x" * (4 * MIB), "utf-8")
    quick("send", "large", "--file", str(file)).worked()


def test_exactly_one_source_of_bodies_is_needed(quick: Quick) -> None:
    assert "exactly one" in quick("send", "t").failed(2)
    assert "exactly one" in quick("send", "t", "x", "--stdin").failed(2)
    assert "NAME=VALUE" in quick("send", "t", "x", "-p", "novalue").failed(2)
    assert "--count" in quick("send", "t", "--stdin", "--count", "2").failed(2)


def test_missing_file_and_reserved_property_are_named(quick: Quick, tmp_path: Path) -> None:
    missing = str(tmp_path / "none.txt")
    assert missing in quick("send", "t", "--file", missing).failed()
    assert "KEYS" in quick("send", "t", "x", "-p", "KEYS=v").failed()


def test_bad_names_are_refused(quick: Quick) -> None:
    """Covers C-94, C-95."""
    assert "bad topic!" in quick("send", "bad topic!", "x").failed()
    assert "bad group!" in quick("consume", "t", "-g", "bad group!").failed()


def test_consuming_an_unknown_topic_does_not_wait_for_ever(quick: Quick) -> None:
    assert "'nowhere'" in quick("consume", "nowhere", "-g", "g").failed()


def test_bad_start_and_bad_tags_are_refused(quick: Quick) -> None:
    assert "earliest, latest" in quick("consume", "t", "-g", "g", "--from", "soon").failed()
    quick("topic", "create", "tagcheck").worked()
    quick("consume", "tagcheck", "-g", "g", "--tags", "||").failed()


def test_a_file_or_stdin_is_one_message_when_asked(quick: Quick, tmp_path: Path) -> None:
    picture = tmp_path / "picture.bin"
    body = b"\x89PNG\r\n\n\x00 two\nlines\n"
    picture.write_bytes(body)
    quick("topic", "create", "wholes", "-q", "1").worked()
    quick("send", "wholes", "--file", str(picture), "--whole").worked()
    quick("send", "wholes", "--file", "-", "--whole", stdin=body).worked()
    quick("send", "wholes", "--stdin", "--whole", stdin=body).worked()
    read = ("consume", "wholes", "-g", "viewer", "--from", "earliest", "--max", "3", "--json")
    rows = quick(*read).worked().json_lines
    assert [base64.b64decode(row["bodyBase64"]) for row in rows] == [body] * 3
    assert "--whole" in quick("send", "wholes", "x", "--whole").failed(2)
    large = b"x" * (4 * 1024 * 1024 + 1)
    assert "4194304" in quick("send", "wholes", "--stdin", "--whole", stdin=large).failed()


def test_a_delay_level_no_broker_has_is_refused_with_those_there_are(quick: Quick) -> None:
    quick("topic", "create", "later", "-q", "1").worked()
    line = quick("send", "later", "x", "--delay-level", "99").failed(2)
    assert "99; the broker has 1 to 18: 1s 5s" in line
    assert line.count("2h") == 1
    quick("send", "later", "x", "--delay-level", "18").worked()


def test_a_tag_no_subscription_could_name_is_refused(quick: Quick) -> None:
    for tag in ("a || b", " a", ""):
        assert repr(tag) in quick("send", "later", "x", "--tags", tag).failed(2)
