"""What makes this package travel by value, and that nobody else's pickling changes."""

from __future__ import annotations

import copyreg
import functools
import pickle
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import datasource as api

import rocketstream
from rocketstream.columns.table import ALL_COLUMNS
from rocketstream.errors import NotSupportedError
from rocketstream.model import MessageQueue
from rocketstream.spark import format as formats
from rocketstream.spark.format import Shipped
from rocketstream.spark.listener.sink import Consumed, ConsumerWriter, pack, unpack
from rocketstream.spark.listener.task import Counts
from rocketstream.spark.options import read_options
from rocketstream.spark.progress.source import ProgressReader
from rocketstream.spark.reader import RocketMQPartition, RocketMQStreamReader
from rocketstream.spark.scan import PartitionPlan, QueueRange, new_scan
from rocketstream.spark.setup.shipping import make_constants_picklable, ship_by_value
from rocketstream.spark.sink.writer import RocketMQStreamWriter, SinkCommit
from tests.spark_setup import shipped_functions


@pytest.fixture
def shipping() -> Iterator[None]:
    """Undo what is registered with Spark's pickler."""
    table = cloudpickle.CloudPickler.dispatch_table
    before = dict(table.maps[0])
    ship_by_value()
    yield
    cloudpickle.unregister_pickle_by_value(rocketstream)
    table.maps[0].clear()
    table.maps[0].update(before)


@pytest.mark.usefixtures("shipping")
@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
@pytest.mark.parametrize("cached", [shipped_functions.squared, shipped_functions.cubed])
def test_cached_functions_of_others_are_pickled_as_before(dumps: Any, cached: Any) -> None:
    """By name: the same object comes back, with its cache."""
    assert pickle.loads(dumps(cached)) is cached  # noqa: S301
    using = functools.partial(map, cached)
    assert list(pickle.loads(dumps(using))([2])) == [cached(2)]  # noqa: S301


@pytest.mark.usefixtures("shipping")
def test_nothing_is_taught_to_pickle_itself() -> None:
    """Only Spark's pickler is; what cannot be pickled elsewhere still cannot."""
    assert struct.Struct not in copyreg.dispatch_table
    assert functools._lru_cache_wrapper not in copyreg.dispatch_table
    with pytest.raises(TypeError):
        pickle.dumps(struct.Struct(">i"))


def test_reading_registers_nothing_global() -> None:
    """Each source that is made calls this, in the user's driver too."""
    before = dict(copyreg.dispatch_table)
    make_constants_picklable()
    make_constants_picklable()
    assert copyreg.dispatch_table == before


@pytest.mark.usefixtures("shipping")
def test_constants_of_ours_travel_by_value() -> None:
    """Compiled formats, their methods, and cached functions."""
    compiled = pickle.loads(cloudpickle.dumps(struct.Struct(">iq").unpack))  # noqa: S301
    assert compiled(struct.pack(">iq", 4, 5)) == (4, 5)

    def doubled(number: int) -> int:
        return 2 * number

    doubled.__module__ = "rocketstream.made_up"
    cached = functools.lru_cache(maxsize=7, typed=True)(doubled)
    again = pickle.loads(cloudpickle.dumps(cached))  # noqa: S301
    assert again(4) == 8
    assert again.cache_parameters() == {"maxsize": 7, "typed": True}
    again(4)
    assert again.cache_info().hits == 1


@pytest.mark.parametrize(
    "source",
    [
        "rocketstream.spark.source.RocketMQDataSource",
        "rocketstream.spark.progress.source.ProgressDataSource",
        "rocketstream.spark.listener.sink.RocketMQConsumerSink",
    ],
)
def test_every_format_travels_and_no_module_with_it(source: str) -> None:
    """A module holds modules: pickling one by value goes deeper than Python lets it.

    The other side has none of ours.
    """
    module, _, name = source.rpartition(".")
    program = (
        "from pyspark import cloudpickle; "
        f"from {module} import {name}; "
        "from rocketstream.spark.setup.shipping import ship_by_value; "
        "ship_by_value(); "
        f"data = cloudpickle.dumps({name}); "
        "import sys; "
        "sys.modules |= {name: None for name in sys.modules if name.startswith('rocketstream')}; "
        "cloudpickle.loads(data); "
        "print(len(data))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert 100_000 < int(done.stdout) < 2_000_000


def test_progress_is_asked_where_the_package_is_not() -> None:
    """The services of ``Admin`` check arguments there too, by names a function brings along."""
    program = (
        "import sys; from functools import partial; from pyspark import cloudpickle; "
        "from rocketstream.spark.options.formats import progress_options; "
        "from rocketstream.spark.progress.tables import take; "
        "from rocketstream.spark.setup.shipping import ship_by_value; "
        "ship_by_value(); "
        "options = progress_options({'nameServer': '127.0.0.1:1', 'groups': 'billing'}); "
        "data = cloudpickle.dumps(partial(take, options, 0)); "
        "sys.modules |= {name: None for name in sys.modules if name.startswith('rocketstream')}; "
        "cloudpickle.loads(data)()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert "ConnectError: no name server answered" in done.stderr


def a_reader() -> RocketMQStreamReader:
    options = read_options({"nameServer": "h:1", "topic": "T", "checkBodyCrc": "true"}, "stream")
    return RocketMQStreamReader(new_scan(options, ALL_COLUMNS))


def a_partition() -> RocketMQPartition:
    span = QueueRange(MessageQueue("T", "b", 0), 0, 9)
    return RocketMQPartition(PartitionPlan((span,), {"b": "h:1"}))


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
def test_what_the_same_package_pickled_comes_out_as_it_went_in(dumps: Any) -> None:
    reader, partition, told = pickle.loads(  # noqa: S301
        dumps((a_reader(), a_partition(), SinkCommit(7)))
    )
    assert reader._scan == a_reader()._scan
    assert (partition.value, told) == (a_partition().value, SinkCommit(7))


@pytest.mark.parametrize("made", [a_reader(), a_partition()])
def test_what_another_version_planned_is_refused_with_both_versions(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without names in the pickle its values would be taken for those of other fields."""
    monkeypatch.setattr(formats, "__version__", "0.0.7")
    data = cloudpickle.dumps(made)
    monkeypatch.setattr(formats, "__version__", "0.0.8")
    with pytest.raises(NotSupportedError) as caught:
        pickle.loads(data)  # noqa: S301
    text = str(caught.value)
    assert text.startswith("the driver has rocketstream 0.0.7 (")
    assert ", the worker has rocketstream 0.0.8 (" in text
    assert "Install one version for the driver and every worker" in text
    assert str(pickle.loads(pickle.dumps(caught.value))) == text  # noqa: S301


@pytest.mark.parametrize("told", [SinkCommit(7), Consumed(Counts(consumed=1))])
def test_what_a_worker_of_another_version_tells_is_refused(
    told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = pickle.dumps(told)
    monkeypatch.setattr(formats, "__version__", "0.0.8")
    with pytest.raises(NotSupportedError, match=r"^the worker has .*, the driver has .* 0\.0\.8 "):
        pickle.loads(data)  # noqa: S301


def test_a_listener_that_another_version_packed_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = pack(lambda messages: None, orderly=False)
    monkeypatch.setattr(formats, "__version__", "0.0.8")
    with pytest.raises(NotSupportedError, match=r"rocketstream 0\.0\.8"):
        unpack(text, orderly=False)


@dataclass(frozen=True, slots=True)
class Plan:
    """A value as an older tree of the same version has it."""

    check: bool
    pulls: int


@dataclass(frozen=True, slots=True)
class PlanWithMore:
    """The same value in a newer tree."""

    check: bool
    more: bool
    pulls: int


class Carrier(Shipped):
    """Carries a value deep in others, as a partition does."""

    def __init__(self, plans: tuple[Plan, ...]) -> None:
        self.plans = plans


def test_fields_that_differ_within_a_version_are_refused_by_the_name_of_their_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Trees under development have one version for many sources."""
    data = pickle.dumps(Carrier((Plan(check=True, pulls=8),)))
    PlanWithMore.__name__ = PlanWithMore.__qualname__ = "Plan"
    monkeypatch.setattr(sys.modules[__name__], "Plan", PlanWithMore)
    with pytest.raises(NotSupportedError, match=r"with another Plan: "):
        pickle.loads(data)  # noqa: S301


def test_another_version_is_named_also_where_it_lacks_a_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A name that is not found would send the user to look for a package that is not installed."""
    data = pickle.dumps(Carrier((Plan(check=True, pulls=8),)))
    monkeypatch.delattr(sys.modules[__name__], "Plan")
    monkeypatch.delattr(sys.modules[__name__], "Carrier")
    monkeypatch.setattr(formats, "__version__", "0.0.8")
    with pytest.raises(NotSupportedError, match=r"rocketstream 0\.0\.8"):
        pickle.loads(data)  # noqa: S301


def test_everything_of_ours_that_spark_pickles_tells_its_version() -> None:
    """A reader, writer, partition or answer of a task without it would be read wrongly."""
    assert {ConsumerWriter, ProgressReader, RocketMQStreamWriter} <= set(_below(Shipped))
    bases = [
        getattr(api, name)
        for name in dir(api)
        if name.endswith(("Reader", "Writer", "InputPartition", "WriterCommitMessage"))
    ]
    ours = {
        each
        for base in bases
        for each in _below(base)
        if each.__module__.startswith("rocketstream.")
    }
    assert len(ours) > 10
    assert [each for each in ours if not issubclass(each, Shipped)] == []


def _below(kind: type) -> list[type]:
    found: list[type] = kind.__subclasses__()
    return found + [each for sub in found for each in _below(sub)]
