"""``rocketstream dashboard``: what it says, what it refuses, how it ends."""

from __future__ import annotations

import http.client
import re
import shutil
import signal
import socket
import ssl
import subprocess
from pathlib import Path

import pytest

from rocketstream.cli import dashboard
from rocketstream.dashboard import TokenFile
from rocketstream.watch import History
from tests.plugins.commands import Quick, Starter
from tests.plugins.waiting import wait_until

URL = re.compile(r"dashboard (https?)://127\.0\.0\.1:(\d+)/\n")


def test_a_token_is_made_and_shown_once(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    done = Quick()("dashboard", "token", "alice", "--tokens", str(path), "--role", "act").worked()
    assert "alice may act, look" in done.err
    assert TokenFile(path).find(done.out.strip()) is not None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--host", "0.0.0.0"), "no TLS (--tls-cert and --tls-key) and no login"),
        (("--host", "0.0.0.0", "--insecure", "--write"), "name who may with --tokens"),
        (("--tokens", "/nothing/there.json"), "rocketstream dashboard token"),
        (("--host", "no.such.host.invalid", "--insecure"), "is not an address of this machine"),
        (("--mask", "/nothing/there.toml"), "/nothing/there.toml"),
    ],
)
def test_what_it_cannot_be_is_refused_by_name(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    history = ("--history", str(tmp_path / "h.db"))
    assert said in Quick()("dashboard", "--port", "0", *history, *arguments).failed()


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = Quick()("dashboard", "--port", port, "--history", str(tmp_path / "h.db"))
    assert port in done.failed()


def test_a_missing_package_is_said_with_what_installs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(dashboard._NEEDED, "no_such_package", "no-such-package")
    said = Quick()("dashboard", "--history", str(tmp_path / "h.db")).failed()
    assert "no-such-package" in said
    assert "pip install 'rocketstream[dashboard]'" in said


def line(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode()


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_has_a_dashboard_beside_it_and_both_end_cleanly(
    start: Starter,
    tmp_path: Path,
    number: signal.Signals,
) -> None:
    process = start(
        "serve", "--namesrv-port", "0", "--broker-port", "0", "--store", str(tmp_path / "store"),
        "--dashboard", "--dashboard-port", "0",
    )  # fmt: skip
    assert line(process).startswith("ready namesrv=")
    found = URL.fullmatch(line(process))
    assert found is not None

    def is_healthy() -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", int(found[2]), timeout=10)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        finally:
            connection.close()

    wait_until(is_healthy, "first sweep")
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, b"")
    assert [said.split(b":")[0] for said in err.splitlines()] == [b"flush=async"]
    assert (tmp_path / "store" / "dashboard" / "history.db").exists()


@pytest.mark.long
def test_elsewhere_it_speaks_tls_and_asks_for_a_login(
    start: Starter,
    tmp_path: Path,
) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out",
         certificate, "-days", "1", "-subj", "/CN=localhost", "-addext",
         "subjectAltName=DNS:localhost,IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    tokens = str(tmp_path / "tokens.json")
    token = Quick()("dashboard", "token", "alice", "--tokens", tokens).worked().out.strip()
    process = start(
        "dashboard", "--port", "0", "--tls-cert", str(certificate), "--tls-key", str(key),
        "--tokens", tokens, "--history", str(tmp_path / "h.db"), "-n", "127.0.0.1:1",
    )  # fmt: skip
    found = URL.fullmatch(line(process))
    assert found is not None
    assert found[1] == "https"
    context = ssl.create_default_context(cafile=str(certificate))
    connection = http.client.HTTPSConnection("localhost", int(found[2]), context=context)
    connection.request("GET", "/", headers={"Accept": "text/html"})
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 303
    assert "max-age" in answer.headers["Strict-Transport-Security"]
    body = f"token={token}"
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    connection.request("POST", "/login", body, kind)
    answer = connection.getresponse()
    answer.read()
    assert "; Secure" in answer.headers["Set-Cookie"]
    connection.close()
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0


def test_several_clusters_have_one_dashboard(tmp_path: Path) -> None:
    said = Quick()(
        "dashboard", "-n", "10.0.0.1:1", "-n", "b=10.0.0.2:1", "--history", str(tmp_path / "h.db")
    ).failed()
    assert "with several leave it out" in said
    said = Quick()("dashboard", "--port", "0", "-n", "a=10.0.0.1:1", "-n", "a=10.0.0.2:1").failed()
    assert "each takes a name of its own" in said


def test_a_second_dashboard_shows_the_history_that_the_first_writes(tmp_path: Path) -> None:
    path = tmp_path / "h.db"
    with History(path) as first:
        shown, written = dashboard._history(path, "127.0.0.1:9876")
        with shown:
            assert not written
            assert shown.path == first.path
