"""Where this package may lie when Spark reads with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketstream.errors import NotSupportedError
from rocketstream.spark.setup.shipping import check_place, check_requirements


def test_an_installed_package_is_accepted(tmp_path: Path) -> None:
    """Also that of an environment Spark unpacked: the folder has the archive's name."""
    check_requirements()
    for folder in ("environment", "environment.zip", "userFiles-0a/environment"):
        place = tmp_path / folder / "lib/python3.11/site-packages/rocketstream/spark"
        place.mkdir(parents=True)
        check_place(str(place / "source.py"))


def test_a_package_inside_an_archive_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "package.zip"
    archive.touch()
    with pytest.raises(NotSupportedError, match=r"--py-files.*by_value=True"):
        check_place(str(archive / "rocketstream" / "spark" / "source.py"))


def test_a_package_among_the_files_of_an_application_is_refused() -> None:
    with pytest.raises(NotSupportedError, match="addPyFile"):
        check_place("/tmp/spark-1/userFiles-0a1b-2c/rocketstream/spark/source.py")
