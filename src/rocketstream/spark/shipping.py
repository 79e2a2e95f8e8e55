"""Sending this package inside a pickle, to Pythons that do not have it.

Law: what cloudpickle needs for that, nothing else. ``addPyFile`` is no way: Spark's streaming
source runner looks for such files in the wrong directory.
"""

from __future__ import annotations

import copyreg
import struct

from pyspark import cloudpickle

import rocketstream


def ship_by_value() -> None:
    """Pickle everything of this package by value from now on."""
    make_structs_picklable()
    cloudpickle.register_pickle_by_value(rocketstream)


def make_structs_picklable() -> None:
    """Teach pickle about compiled struct formats, which our modules keep as constants.

    Called in every process that pickles the source on: the planner sends it to the executors.
    """
    copyreg.pickle(struct.Struct, _reduce_struct)


def _reduce_struct(compiled: struct.Struct) -> tuple[type[struct.Struct], tuple[str]]:
    return struct.Struct, (compiled.format,)
