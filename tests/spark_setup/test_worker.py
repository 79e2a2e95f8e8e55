"""What a worker process keeps, and what it needs."""

from __future__ import annotations

import gc
import importlib.metadata
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketstream.columns.table import ALL_COLUMNS
from rocketstream.errors import DataLossError, NotSupportedError
from rocketstream.model import MessageQueue
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.spark import worker
from rocketstream.spark.losses import report_loss
from rocketstream.spark.options import read_options
from rocketstream.spark.patience import Patience
from rocketstream.spark.scan import new_scan
from rocketstream.spark.setup import shipping
from rocketstream.testing.clock import ManualClock
from rocketstream.transport.blocking_pool import BlockingPool


@pytest.fixture
def thawed() -> Iterator[None]:
    """Have nothing prepared yet; undo a freeze of this process, unless it was frozen before."""
    frozen = gc.get_freeze_count()
    worker._keeper().frozen_pid = 0
    yield
    if not frozen:
        gc.unfreeze()
    worker._keeper().frozen_pid = 0


@pytest.mark.usefixtures("thawed")
def test_the_heap_is_frozen_once_per_process() -> None:
    """Covers S 3: collecting after every task costs 25 ms otherwise."""
    worker.prepare()
    frozen = gc.get_freeze_count()
    assert frozen > 10_000
    kept = [[] for _ in range(1_000)]  # type: ignore[var-annotated]
    worker.prepare()
    assert gc.get_freeze_count() <= frozen
    assert len(kept) == 1_000


def test_after_the_freeze_a_task_imports_nothing_more() -> None:
    """What is imported later is not frozen; pandas alone cost 18 ms a task.

    Compressed, wide and undecodable records of both ways of decoding, and a connection.
    """
    program = Path(__file__).with_name("late_imports_program.py")
    subprocess.run([sys.executable, str(program)], check=True, timeout=120)


def test_connections_are_kept_by_process_and_credentials() -> None:
    """Covers S 8.6; another user's connections are not borrowed."""
    plain = read_options({"nameServer": "h:1", "topic": "T"}, "batch")
    keyed = read_options(
        {"nameServer": "h:1", "topic": "T", "accessKey": "a", "secretKey": "b"}, "batch"
    )
    assert worker.pool(plain) is worker.pool(plain)
    assert worker.pool(plain) is not worker.pool(keyed)
    worker.close_pools()
    assert worker._keeper().pools == {}


def test_pools_of_tokens_that_are_renewed_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker kept one for every session token, 24 a day; a task that has one goes on with it."""
    idle_closed: list[BlockingPool] = []
    worker.close_pools()
    monkeypatch.setattr(BlockingPool, "close_idle", lambda pool: idle_closed.append(pool))
    given = {"nameServer": "h:1", "topic": "T", "accessKey": "a", "secretKey": "b"}
    made = [
        worker.pool(read_options({**given, "securityToken": f"token-{number}"}, "batch"))
        for number in range(20)
    ]
    kept = [pool for _, pool in worker._keeper().pools.values()]
    assert kept == made[-8:]
    assert idle_closed == made[:-8]
    assert not any(pool._closed for pool in made)
    worker.close_pools()


@pytest.mark.parametrize("by_environment", [False, True])
def test_keys_that_are_replaced_in_their_file_are_the_ones_that_sign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_environment: bool
) -> None:
    """A worker outlives the keys of a mounted secret."""
    file = tmp_path / "keys"
    given = {"nameServer": "h:1", "topic": "T"}
    if by_environment:
        monkeypatch.setenv("ROCKETMQ_KEY_FILE", str(file))
    else:
        given["keyFile"] = str(file)
    options = read_options(given, "batch")

    def signed_by() -> tuple[BlockingPool, str]:
        pool, command = (
            worker.pool(options),
            RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO),
        )
        assert pool._before_request is not None
        pool._before_request("h:1", command)
        return pool, (command.ext_fields or {})["AccessKey"]

    pools = []
    for number, name in enumerate(("first", "later")):
        (tmp_path / name).write_text(f"accessKey: {name}\nsecretKey: secret\n")
        (tmp_path / name).replace(file)
        os.utime(file, (number, number))
        pools.append(signed_by())
        assert signed_by() == pools[-1]
    (old, first), (_, later) = pools
    assert (first, later) == ("first", "later")
    assert old._closed, "what an old connection was opened with may count no more"
    worker.close_pools()


def test_importing_the_packages_imports_neither_spark_nor_arrow() -> None:
    """Covers S 6: an import at the wrong time hurts every lookup of any format."""
    program = (
        "import sys, rocketstream.spark; "
        "assert not {'pyspark', 'pyarrow', 'numpy'} & set(sys.modules); "
        "import pyspark_rocketmq, pyspark_rocketmq_progress; "
        "mine = {m for m in sys.modules if m.startswith('rocketstream.spark.')}; "
        "light = {'letters', 'setup', 'java', 'launchers', 'preparation'}; "
        "assert {m.rpartition('.')[2] for m in mine} <= light, mine; "
        "assert 'rocketstream.client' not in sys.modules; "
        "assert pyspark_rocketmq.DefaultSource.name() == 'rocketmq'; "
        "assert pyspark_rocketmq_progress.DefaultSource.name() == 'rocketmq-progress'"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize(
    ("versions", "text"),
    [
        ({"numpy": "2.0", "pyarrow": "18.1.0"}, "pyarrow is 18.1.0, older than 19"),
        ({"pyarrow": "19.0"}, "numpy is missing"),
        ({}, "numpy is missing; pyarrow is missing.*rocketstream\\[spark\\]"),
    ],
)
def test_what_is_missing_is_said_in_words(
    monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], text: str
) -> None:
    """Covers S 2.3: Spark itself only says "Connection reset"."""

    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(NotSupportedError, match=text):
        shipping.check_requirements()


def test_scans_and_losses_survive_pickling() -> None:
    """Both cross processes: plans to the executors, errors back."""
    scan = new_scan(read_options({"nameServer": "h:1", "topic": "T"}, "batch"), ALL_COLUMNS)
    assert pickle.loads(pickle.dumps(scan)) == scan  # noqa: S301
    with pytest.raises(DataLossError) as caught:
        report_loss(True, MessageQueue("T", "b", 1), "gone")
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301
    assert str(again) == str(caught.value)
    assert again.parameters == {"queue": ("T", "b", 1)}


def test_patience_counts_from_the_first_failure() -> None:
    """A success forgives what was before."""
    clock = ManualClock()
    patience = Patience(1_000, clock)
    assert not patience.exhausted()
    for _ in range(2):
        clock.advance(499.5)
        assert not patience.exhausted()
    clock.advance(1)
    assert patience.exhausted()
    patience.succeeded()
    assert not patience.exhausted()


def test_a_process_that_stood_still_was_not_patient_meanwhile() -> None:
    """Its network wakes after it: the second failure in an hour is none of a broker's."""
    clock = ManualClock()
    patience = Patience(1_000, clock)
    assert not patience.exhausted()
    clock.advance(3_600_000)
    assert not patience.exhausted()
    clock.advance(499)
    assert not patience.exhausted()
    clock.advance(1)
    assert patience.exhausted()
