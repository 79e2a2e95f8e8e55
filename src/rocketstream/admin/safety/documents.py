"""Our own JSON documents on this machine, read whole: bounded, of a known format and version.

Law: a file that is not the expected document is refused by name, with what it lacks.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocketstream.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class DocumentKind:
    """The expected kind of a document.

    Attributes:
        called: the kind in words, as in "not an undo file".
        format: the value of its field ``format``.
        version: the version that this release reads.
        bytes_max: the largest size accepted.
    """

    called: str
    format: str
    version: int
    bytes_max: int


def read_document(path: str | os.PathLike[str], kind: DocumentKind) -> dict[str, Any]:
    """Return the fields of a document.

    Raises:
        ConfigurationError: the file cannot be read, or is of another kind; the error says why.
    """
    try:
        if os.path.getsize(path) > kind.bytes_max:
            raise ConfigurationError(
                f"{path} has more than {kind.bytes_max} bytes: it is not an {kind.called}"
            )
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigurationError(
            f"{path} is not an {kind.called}: it is not JSON ({error})"
        ) from error
    if not isinstance(value, dict) or value.get("format") != kind.format:
        raise ConfigurationError(
            f'{path} is not an {kind.called}: it has no "format": "{kind.format}"'
        )
    if value.get("version") != kind.version:
        raise ConfigurationError(
            f"{path} is an {kind.called} of version {value.get('version')}; this release reads "
            f"version {kind.version}"
        )
    return value
