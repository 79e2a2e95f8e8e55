"""The page about production: its service answers, consumes, and ends in good order."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from rocketstream import Message, Producer
from rocketstream.server.embedded import EmbeddedCluster
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs/production.md").read_text(encoding="utf-8")
PROGRAM = re.search(r"<!-- test: service -->\n```python\n(.*?)```", PAGE, re.DOTALL)
MANIFEST = re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


def test_the_service_answers_consumes_and_ends_in_good_order(tmp_path: Path) -> None:
    assert PROGRAM is not None
    script = tmp_path / "billing.py"
    script.write_text(PROGRAM[1], encoding="utf-8")
    with EmbeddedCluster() as cluster:
        with Producer("shop", namesrv_addr=cluster.namesrv_addr) as producer:
            producer.send(Message("orders", "order 7", keys="order-7"))
        environment = {**os.environ, "NAMESRV_ADDR": cluster.namesrv_addr, "HEALTH_PORT": "0"}
        with subprocess.Popen(
            [sys.executable, str(script)], stderr=subprocess.PIPE, text=True, env=environment
        ) as process:
            assert process.stderr is not None
            lines = iter(process.stderr)
            started = next(line for line in lines if "health on port" in line)
            assert "state=RUNNING" in started
            port = int(started.rsplit(" ", 1)[1])
            next(line for line in lines if "billed order-7" in line)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30) as answer:
                told = json.loads(answer.read())
            assert told["state"] == "RUNNING"
            assert told["queues"] > 0
            process.send_signal(signal.SIGTERM)
            assert "ended in good order" in "".join(lines)
        assert process.returncode == 0


def test_the_grace_period_is_longer_than_the_shutdown() -> None:
    """And the probes ask the port of the program."""
    assert MANIFEST is not None
    assert PROGRAM is not None
    pod = yaml.safe_load(MANIFEST[1])["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > 30
    (container,) = pod["containers"]
    port = container["livenessProbe"]["httpGet"]["port"]
    assert port == container["readinessProbe"]["httpGet"]["port"]
    assert f'"HEALTH_PORT", "{port}"' in PROGRAM[1]
