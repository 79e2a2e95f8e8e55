"""Fetch the dashboard's two browser libraries and write what is shipped of them.

Run `python -m scripts.vendor_web` after changing a version; it needs npm, users do not. Each
package is pinned by version and by the hash its registry signs for; one that differs is not used.
"""

from __future__ import annotations

import base64
import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = ROOT / "src" / "rocketstream" / "dashboard" / "static" / "vendor"
TESTS = ROOT / "tests" / "dashboard" / "vendor"


@dataclass(frozen=True, slots=True)
class Package:
    """One npm package.

    Attributes:
        integrity: SHA-512 of the packed package, base64, as the registry states it.
        files: what is taken of it, and under which name.
        place: where that goes.
    """

    name: str
    version: str
    integrity: str
    licence: str
    files: Mapping[str, str]
    place: Path


PACKAGES = (
    Package(
        "htmx.org",
        "4.0.1",
        "oF7JgXhDW9UXCy/k1ZYFUQgzu/rm19ORWPSPNL91vPluB2PB9+MV55tyQdH/w7o2EAbTYUG5SDW1R60mdkdqGg==",
        "BSD Zero Clause License",
        {"dist/htmx.min.js": "htmx.min.js", "LICENSE": "htmx.LICENSE"},
        SHIPPED,
    ),
    Package(
        "uplot",
        "1.6.32",
        "KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw==",
        "MIT License",
        {
            "dist/uPlot.iife.min.js": "uPlot.iife.min.js",
            "dist/uPlot.min.css": "uPlot.min.css",
            "LICENSE": "uPlot.LICENSE",
        },
        SHIPPED,
    ),
    Package(
        "axe-core",
        "4.14.1",
        "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ==",
        "Mozilla Public License 2.0",
        {"axe.min.js": "axe.min.js", "LICENSE": "axe.LICENSE"},
        TESTS,
    ),
)

THIRD_PARTY = """# Code of others in this directory

Written by `python -m scripts.vendor_web`; nothing here is changed by hand.

| Package | Version | Licence | Files |
|---|---|---|---|
"""


def checked(packed: bytes, package: Package) -> bytes:
    """Return a packed package if it is the one that is pinned.

    Raises:
        ValueError: it is another.
    """
    found = base64.b64encode(hashlib.sha512(packed).digest()).decode()
    if found != package.integrity:
        raise ValueError(
            f"{package.name} {package.version} has the SHA-512 {found}, "
            f"not {package.integrity}: not the package that was looked at, so it is not used"
        )
    return packed


def unpacked(packed: bytes, package: Package) -> dict[str, bytes]:
    """Return the files to ship, by the name they get."""
    found: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
        for inside, name in package.files.items():
            member = archive.extractfile(f"package/{inside}")
            if member is None:
                raise ValueError(f"{package.name} {package.version} has no file {inside}")
            # The map is not shipped, so browsers need not look for it.
            lines = member.read().splitlines(keepends=True)
            kept = [line for line in lines if not line.startswith(b"//# sourceMappingURL")]
            found[name] = b"".join(kept)
    return found


def fetched(package: Package) -> bytes:
    """Return the package as the registry packs it."""
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run(
            ["npm", "pack", "--silent", f"{package.name}@{package.version}"],
            cwd=directory,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        (archive,) = Path(directory).glob("*.tgz")
        return archive.read_bytes()


def third_party(place: Path) -> str:
    """Return the page that names what is in a directory, and its licences."""
    rows = [
        f"| [{p.name}](https://www.npmjs.com/package/{p.name}) | {p.version} | {p.licence} | "
        f"{', '.join(f'`{name}`' for name in p.files.values())} |\n"
        for p in PACKAGES
        if p.place == place
    ]
    return THIRD_PARTY + "".join(rows)


def main() -> int:
    """Fetch, check and write everything."""
    for package in PACKAGES:
        files = unpacked(checked(fetched(package), package), package)
        package.place.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (package.place / name).write_bytes(content)
            sys.stdout.write(f"{package.place.relative_to(ROOT) / name}: {len(content):,} bytes\n")
    for place in (SHIPPED, TESTS):
        (place / "THIRD_PARTY.md").write_text(third_party(place), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
