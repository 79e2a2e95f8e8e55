"""A disk and a clock that misbehave: a few lines of C before the C library of the broker's process.

They need a C compiler. What they do is told to them by a file they map: three numbers.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

FAULTS = ("slow-disk", "clock", "failing-disk")
SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
static volatile long long *told(void) {
    static volatile long long *at;
    if (!at) {
        int file = open(getenv("OUTSIDE_SHIM"), O_RDONLY);
        if (file < 0) return 0;
        void *map = mmap(0, 24, PROT_READ, MAP_SHARED, file, 0);
        close(file);
        if (map == MAP_FAILED) return 0;
        at = map;
    }
    return at;
}
static int before(void) {
    volatile long long *at = told();
    if (at && at[0]) usleep((useconds_t)at[0]);
    if (at && at[1]) { errno = EIO; return -1; }
    return 0;
}
int fsync(int file) {
    static int (*real)(int);
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    return before() ? -1 : real(file);
}
int fdatasync(int file) {
    static int (*real)(int);
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    return before() ? -1 : real(file);
}
int msync(void *start, size_t size, int flags) {
    static int (*real)(void *, size_t, int);
    if (!real) real = (int (*)(void *, size_t, int))dlsym(RTLD_NEXT, "msync");
    return before() ? -1 : real(start, size, flags);
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    volatile long long *at = clock == CLOCK_REALTIME ? told() : 0;
    if (at) now->tv_sec += at[2];
    return result;
}
"""


def compiled(folder: Path) -> Path | None:
    """Compile it; None where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    source, library = folder / "shim.c", folder / "shim.so"
    if not library.exists():
        source.write_text(SOURCE)
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(source), "-ldl"],
            check=True,
            timeout=120,
        )
    return library


class Control:
    """The numbers the shim reads: delay of a flush in µs, whether it fails, seconds of clock."""

    def __init__(self, path: Path) -> None:
        self._path = path
        if not path.exists():
            path.write_bytes(bytes(24))

    def variables(self, library: Path) -> dict[str, str]:
        """The variables of a process that is to have it."""
        return {"LD_PRELOAD": str(library), "OUTSIDE_SHIM": str(self._path)}

    def begin(self, fault: str, how_much: float) -> None:
        """Begin a fault: a disk takes half a second at most, a clock jumps an hour at most."""
        if fault == "slow-disk":
            self._set(0, int(20_000 + how_much * 500_000))
        elif fault == "failing-disk":
            self._set(1, 1)
        else:
            self._set(2, int((how_much - 0.5) * 7_200))

    def end(self, fault: str) -> None:
        """End it. A clock that has jumped stays where it is."""
        if fault != "clock":
            self._set(FAULTS.index("slow-disk") if fault == "slow-disk" else 1, 0)

    def _set(self, index: int, value: int) -> None:
        with self._path.open("r+b") as file:
            file.seek(index * 8)
            file.write(struct.pack("=q", value))
