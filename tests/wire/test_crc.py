"""CRC-32 by whichever code is at hand."""

from __future__ import annotations

import importlib
import sys
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstream.protocol import crc


@given(st.binary(max_size=4096))
def test_crc_is_that_of_the_standard_library(data: bytes) -> None:
    assert crc.crc32(data) == crc.crc32(memoryview(data)) == zlib.crc32(data)


def test_without_isal_the_standard_library_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors need not have what the driver has."""
    monkeypatch.setitem(sys.modules, "isal", None)
    monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
    try:
        assert importlib.reload(crc).crc32 is zlib.crc32
    finally:
        monkeypatch.undo()
        importlib.reload(crc)
