"""CRC-32 by the fastest code at hand: ``isal`` where it is installed, else the standard library.

Law: one function, the same numbers by either. Intel's library folds 64 bytes at a time and takes
0.1 us for 1 KiB, zlib 0.4: of reading a message on Spark the CRC was the dearest single step.
"""

from __future__ import annotations

try:
    from isal.isal_zlib import crc32
except ImportError:  # not on every platform
    from zlib import crc32

__all__ = ["crc32"]
