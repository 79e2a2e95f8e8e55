"""What makes this package travel by value, and that nobody else's pickling changes."""

from __future__ import annotations

import copyreg
import functools
import pickle
import struct
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark import cloudpickle

import rocketstream
from rocketstream.spark.setup.shipping import make_constants_picklable, ship_by_value
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
