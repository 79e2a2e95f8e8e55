"""The option that names a file of keys, which may stand anywhere among the words of a command.

Law: a key never stands among the arguments of a command, where every process of the machine can
read it. Clients read keys and TLS from the environment themselves (``client.credentials``,
``transport.tls``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

KEY_FILE_OPTION: Final = "--key-file"


def to_the_front(argv: Sequence[str]) -> list[str]:
    """Return the arguments with ``--key-file FILE`` before the command, wherever it stood."""
    front: list[str] = []
    rest: list[str] = []
    words = iter(argv)
    for word in words:
        if word == "--":
            return [*front, *rest, word, *words]
        if word == KEY_FILE_OPTION:
            front += [word, *[following for following in [next(words, None)] if following]]
        elif word.startswith(KEY_FILE_OPTION + "="):
            front.append(word)
        else:
            rest.append(word)
    return [*front, *rest]
