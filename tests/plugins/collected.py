"""Keeps what was collected out of the way of Python's collection of garbage.

Law: knows pytest, nothing of the project.

The tests are 1.7 million objects, which never become garbage. Looking through them takes 1.3 s of a
quiet processor and several of a busy one, in which every loop and listener of the process stands
still: whatever a test waits for is late then, in the middle of anything.
"""

from __future__ import annotations

import gc


def pytest_collection() -> None:
    """Look for no garbage while tests are collected: nearly all that is made then stays."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Set aside what there is now: what tests make is collected as before."""
    gc.enable()
    gc.collect()
    gc.freeze()
