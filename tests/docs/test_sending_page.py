"""The page on sending: its example runs as printed, and its settings are the producer's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rocketstream.client.producer.settings import ProducerSettings
from rocketstream.server.embedded import EmbeddedCluster

PAGE = (Path(__file__).resolve().parents[2] / "docs/sending.md").read_text(encoding="utf-8")
EXAMPLE = re.compile(r"<!-- test: (\w+) -->\n```python\n(.*?)```", re.DOTALL)
SAID = {
    "gather": "2000 places\n",
    "flush": "100 stored\n",
    "columns": "10000 stored; ['brokerName', 'queueId', 'queueOffset', 'status', 'outcome', "
    "'error']\n",
    "request": "b'HOW LATE?'\n",
}
DEFAULT_ADDR = "127.0.0.1:9876"


def test_every_example_says_what_it_promises(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    examples = dict(EXAMPLE.findall(PAGE))
    assert examples.keys() == SAID.keys()
    for name, program in examples.items():
        with EmbeddedCluster() as cluster:
            exec(program.replace(DEFAULT_ADDR, cluster.namesrv_addr), {})  # noqa: S102 - our own page
        assert capsys.readouterr().out == SAID[name]


def test_the_settings_have_the_defaults_told() -> None:
    settings = ProducerSettings("group")
    told = dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", PAGE, re.MULTILINE))
    assert len(told) == 4
    for name, default in told.items():
        assert getattr(settings, name) == (False if default == "off" else int(default))
