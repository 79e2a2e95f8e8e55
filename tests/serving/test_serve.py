"""``rocketstream serve``: the ready line, clean ends, and what it refuses."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from rocketstream._util.clock import SYSTEM_CLOCK
from rocketstream.protocol.codes import RequestCode
from rocketstream.server import embedded
from rocketstream.server.embedded import EmbeddedSettings
from rocketstream.server.store import RetentionConfig
from tests.kits.peer import Peer
from tests.plugins.commands import TIMEOUT_S, Cli, Quick, Starter

READY = re.compile(r"ready namesrv=(127\.0\.0\.1:\d+) broker=(127\.0\.0\.1:\d+) store=(.+)\n")
FREE = ("--namesrv-port", "0", "--broker-port", "0")


def ready_line(process: subprocess.Popen[bytes]) -> re.Match[str]:
    assert process.stdout is not None
    line = process.stdout.readline().decode()
    found = READY.fullmatch(line)
    assert found is not None, line
    return found


def ended(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    out, err = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, out, err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_prints_one_line_when_ready_and_ends_cleanly(
    start: Starter, tmp_path: Path, number: signal.Signals
) -> None:
    process = start("serve", *FREE, "--store", str(tmp_path / "store"), "--flush", "sync")
    found = ready_line(process)
    assert found[3] == str(tmp_path / "store")
    Cli(found[1])("send", "greetings", "hello").worked()
    process.send_signal(number)
    said = b"flush=sync: what was acknowledged survives the end of this process and a power loss\n"
    assert ended(process) == (0, b"", said)
    assert not (tmp_path / "store" / "abort").exists()


def test_messages_are_there_after_a_restart(start: Starter, tmp_path: Path) -> None:
    arguments = ("serve", *FREE, "--store", str(tmp_path / "store"))
    first = start(*arguments)
    Cli(ready_line(first)[1])("send", "greetings", "hello").worked()
    first.terminate()
    code, _, said = ended(first)
    assert code == 0
    assert said.startswith(b"flush=async: ")
    assert b"not a power loss; --flush sync survives that" in said
    second = start(*arguments)
    namesrv = ready_line(second)[1]
    done = Cli(namesrv)("consume", "greetings", "-g", "g", "--from", "earliest", "--max", "1")
    assert done.worked().out == "hello\n"
    second.terminate()
    assert ended(second)[0] == 0


def test_port_in_use_is_named(start: Starter, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = Quick()(
            "serve", "--namesrv-port", str(port), "--broker-port", "0",
            "--store", str(tmp_path / "store"),
        )  # fmt: skip
    assert str(port) in done.failed()


def test_store_in_use_is_named(start: Starter, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    first = start("serve", *FREE, "--store", store)
    ready_line(first)
    assert store in Quick()("serve", *FREE, "--store", store).failed()


def test_store_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    store = str(tmp_path / "file" / "store")
    assert store in Quick()("serve", *FREE, "--store", store).failed()


def test_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """An input/output error came without the name of the file, and without what to do."""
    unreadable = Path("/proc/self/mem")
    if not unreadable.exists():
        pytest.skip("no file here whose first byte is an input/output error")
    store = tmp_path / "store"
    store.mkdir()
    (store / "checkpoint").symlink_to(unreadable)
    said = Quick()("serve", *FREE, "--store", str(store)).failed()
    assert f"{store / 'checkpoint'}: Input/output error: check that disk" in said


def test_delay_levels_are_used(start: Starter, tmp_path: Path) -> None:
    process = start("serve", *FREE, "--store", str(tmp_path / "s"), "--delay-levels", "1s 2s")
    cli = Cli(ready_line(process)[1])
    cli("send", "later", "hello", "--delay-level", "1").worked()
    done = cli("consume", "later", "-g", "g", "--from", "earliest", "--max", "1", "--json")
    (message,) = done.worked().json_lines
    assert message["body"] == "hello"
    assert message["storeTimestamp"] - message["bornTimestamp"] >= 900


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--delay-levels", "1s soon"), "soon"),
        (("--host", "192.0.2.1"), "--insecure"),
    ],
)
def test_settings_that_cannot_be_used_are_named(
    tmp_path: Path, arguments: tuple[str, ...], named: str
) -> None:
    done = Quick()("serve", *FREE, "--store", str(tmp_path / "s"), *arguments)
    assert named in done.failed()


@pytest.mark.parametrize(
    "arguments",
    [
        ("--flush", "never"),
        ("--broker-port", "70000"),
        ("-x",),
        ("--delete-at", "24"),
        ("--retention", "long"),
    ],
)
def test_options_that_do_not_exist_are_usage_errors(arguments: tuple[str, ...]) -> None:
    assert arguments[0] in Quick()("serve", *arguments).failed(2)


def test_unknown_topics_are_refused_when_not_auto_created(start: Starter, tmp_path: Path) -> None:
    process = start("serve", *FREE, "--store", str(tmp_path / "s"), "--no-auto-create")
    cli = Cli(ready_line(process)[1])
    assert "nowhere" in cli("send", "nowhere", "hello").failed()


def test_producers_are_asked_as_often_as_told(start: Starter, tmp_path: Path) -> None:
    """Covers C-418: transactionTimeOut and transactionCheckInterval."""
    process = start(
        "serve", *FREE, "--store", str(tmp_path / "store"),
        "--transaction-timeout", "0", "--transaction-check-interval", "0.1",
    )  # fmt: skip
    with Peer(ready_line(process)[2]) as producer:
        producer.heartbeat("c1", producer="pg")
        half = {"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": "U1"}
        born_ms = SYSTEM_CLOCK.now_ms()
        assert producer.send("T1", properties=half, sys_flag=4, born_ms=born_ms).code == 0
        producer.next_asked(RequestCode.CHECK_TRANSACTION_STATE)
    process.terminate()
    assert ended(process)[0] == 0


def test_retention_and_the_pace_of_offsets_are_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[EmbeddedSettings] = []
    monkeypatch.setattr(embedded, "serve", lambda cluster, _: given.append(cluster.settings))
    quick, store = Quick(), ("--store", str(tmp_path / "s"))
    quick("serve", *store).worked()
    quick(
        "serve", *store, "--retention", "2h30m", "--delete-at", "1", "--delete-at", "13",
        "--offset-interval", "0.25",
    ).worked()  # fmt: skip
    usual, changed = given
    assert usual.retention == RetentionConfig()
    assert usual.offset_persist_interval_ms == 5_000
    assert changed.retention == RetentionConfig(
        file_reserved_ms=9_000_000, delete_when_hours=(1, 13)
    )
    assert changed.offset_persist_interval_ms == 250


def test_servers_can_be_apart(start: Starter, tmp_path: Path) -> None:
    """The name server alone, and a broker that joins it."""
    process = start("serve", "--only", "namesrv", *FREE, "--store", str(tmp_path / "n"))
    assert process.stdout is not None
    line = process.stdout.readline().decode()
    found = re.fullmatch(r"ready namesrv=(\S+) store=\S+\n", line)
    assert found is not None, line
    joining = ("--join", found[1], "--broker-name", "shop", "--cluster-name", "Shops")
    broker = start("serve", *FREE, *joining, "--store", str(tmp_path / "b"))
    assert ready_line(broker)[1] == found[1]
    quick = Quick(found[1])
    (row,) = quick("broker", "list", "--json").worked().json
    assert (row["brokerName"], row["cluster"]) == ("shop", "Shops")
    broker.terminate()
    assert ended(broker)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--only", "broker"), "--join"),
        (("--only", "namesrv", "--join", "127.0.0.1:9876"), "give one"),
        (("--join", "nowhere"), "'nowhere'"),
        (("--join", ";"), "no address in ';'"),
        (("--dashboard-write",), "--dashboard-write needs --dashboard"),
        (("--dashboard-port", "0"), "--dashboard, which is not given"),
    ],
)
def test_servers_that_fit_together_are_asked_for(
    tmp_path: Path, arguments: tuple[str, ...], named: str
) -> None:
    done = Quick()("serve", *FREE, "--store", str(tmp_path / "s"), *arguments)
    assert done.code != 0
    assert named in done.err
