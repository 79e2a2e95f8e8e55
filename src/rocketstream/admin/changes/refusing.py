"""The refusal of a plan that is not forced and has problems, or is no longer true.

Pure: plans of resets and of other changes are refused in the same words.
"""

from __future__ import annotations

from collections.abc import Sequence

from rocketstream.errors import ClientStateError


def refuse_problems(refused: str, problems: Sequence[str], **about: str) -> None:
    """Raise if a plan has problems.

    Args:
        refused: the action, as the error names it at its beginning.
        problems: the plan's problems, in sentences.
        about: the parameters of the error.

    Raises:
        ClientStateError: the plan has problems.
    """
    if problems:
        told = "; ".join(problems)
        raise ClientStateError(f"{refused}: {told}. Force it if you want it all the same", **about)


def refuse_changed(refused: str, changed: Sequence[str], **about: str) -> None:
    """Raise if a plan differs from what would be planned now.

    Raises:
        ClientStateError: the plan is no longer true; the error says in which points.
    """
    if changed:
        told = "; ".join(changed)
        raise ClientStateError(
            f"{refused}, it is no longer as it was shown: {told}. Look again", **about
        )
