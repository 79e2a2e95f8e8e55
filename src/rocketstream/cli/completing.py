"""Shell completion: the words that may come next, and the scripts by which shells ask for them.

The command tree is read here; a function handed in returns names of a cluster.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from rocketstream.cli.declare import Commands

ASKING: Final = "complete-words"
"""The first word of the scripts' call: ``rocketstream complete-words WORD… CURRENT``."""
TIMEOUT_MS: Final = 800
"""A cluster that takes longer is not waited for: no names are better than a shell that hangs."""
NAMES_MAX: Final = 2_000
_KINDS: Final = {
    "topic": "topics", "topics": "topics", "origin": "topics",
    "group": "groups", "source": "groups", "target": "groups",
    "broker": "brokers",
}  # fmt: skip
_CHOICES: Final = re.compile(r"[A-Za-z0-9-]+(\|[A-Za-z0-9-]+)+")

Names = Callable[[str], list[str]]


def complete(root: Any, words: Sequence[str], names: Names) -> list[str]:
    """Return what may stand in the place of the last word, sorted.

    Args:
        root: the command tree.
        words: the typed words behind the program's name; the last one is begun, or empty.
        names: the names of a kind (``topics``, ``groups``, ``brokers``) the cluster knows.
    """
    *before, current = words or [""]
    command, place, waiting = _walk(root, before)
    if waiting is not None:
        return _matching(_values(waiting, names), current)
    if current.startswith("-"):
        option, equals, begun = current.partition("=")
        if equals:
            asked = next((p for p in _options(command) if option in p.opts), None)
            values = [] if asked is None else _matching(_values(asked, names), begun)
            return [f"{option}={value}" for value in values]
        return _matching([word for p in _options(command) for word in _spellings(p)], current)
    if isinstance(command, Commands):
        return _matching([] if place else command.list_commands(None), current)
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    if not arguments or (place >= len(arguments) and arguments[-1].nargs != -1):
        return []
    return _matching(_values(arguments[min(place, len(arguments) - 1)], names), current)


def _walk(root: Any, before: Sequence[str]) -> tuple[Any, int, Any]:
    """Return the command the words lead to, how many arguments it has, the option that waits."""
    command, place, waiting = root, 0, None
    for word in before:
        if waiting is not None:
            waiting = None
        elif word.startswith("-") and len(word) > 1:
            found = next((p for p in _options(command) if word in p.opts), None)
            waiting = None if found is None or _is_flag(found) else found
        elif isinstance(command, Commands) and (below := command.get_command(None, word)):
            command, place = below, 0
        else:
            place += 1
    return command, place, waiting


def _options(command: Any) -> Iterator[Any]:
    return (p for p in command.params if p.param_type_name == "option" and not p.hidden)


def _is_flag(option: Any) -> bool:
    # --watch may stand alone: what follows it may be anything.
    return bool(option.is_flag) or bool(option.count) or "--watch" in option.opts


def _spellings(option: Any) -> list[str]:
    spelled = [*option.opts, *option.secondary_opts]
    return [word for word in spelled if word.startswith("--")] or spelled


def _values(parameter: Any, names: Names) -> list[str]:
    metavar = parameter.metavar or ""
    if _CHOICES.fullmatch(metavar):
        return [word for word in metavar.split("|") if word.islower()]
    kind = _KINDS.get(parameter.name or "")
    return [] if kind is None else names(kind)


def _matching(words: Sequence[str], begun: str) -> list[str]:
    # Retry, dead letter and system names are many and rarely meant.
    return sorted({w for w in words if w.startswith(begun) and (begun or not w.startswith("%"))})[
        :NAMES_MAX
    ]


_BASH: Final = r"""# rocketstream: put this into ~/.bashrc:  eval "$(rocketstream completion bash)"
_rocketstream() {
    local cur line words=("${COMP_WORDS[@]:1:COMP_CWORD}")
    cur="${COMP_WORDS[COMP_CWORD]}"
    COMPREPLY=()
    while IFS= read -r line; do
        COMPREPLY+=("$line")
    done < <("${COMP_WORDS[0]}" complete-words "${words[@]}" 2>/dev/null)
    [[ "$cur" == *=* ]] && COMPREPLY=("${COMPREPLY[@]#*=}")
}
complete -o default -F _rocketstream rocketstream
"""
_ZSH: Final = r"""#compdef rocketstream
# rocketstream: put this into ~/.zshrc, behind compinit:  eval "$(rocketstream completion zsh)"
_rocketstream() {
    local -a found
    found=("${(@f)$("${words[1]}" complete-words "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "${found[1]}" ]]; then compadd -- "${found[@]}"; else _files; fi
}
compdef _rocketstream rocketstream
"""
_FISH: Final = r"""# rocketstream: save this as ~/.config/fish/completions/rocketstream.fish
function __rocketstream_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l found ($words[1] complete-words $words[2..-1] 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c rocketstream -f -a '(__rocketstream_complete)'
"""
SCRIPTS: Final = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
