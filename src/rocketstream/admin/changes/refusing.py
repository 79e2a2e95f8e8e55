"""Refusing a plan that is not forced: it has problems, or it is no longer true.

Law: pure; plans of resets and of other changes are refused in the same words.
"""

from __future__ import annotations

from collections.abc import Sequence

from rocketstream.errors import ClientStateError


def refuse_problems(refused: str, problems: Sequence[str], **about: str) -> None:
    """Raise where a plan has problems.

    Args:
        refused: what is not done, as the text begins.
        problems: of the plan, in sentences.
        about: what the error carries.

    Raises:
        ClientStateError: there are some.
    """
    if problems:
        told = "; ".join(problems)
        raise ClientStateError(f"{refused}: {told}. Force it if that is meant", **about)


def refuse_changed(refused: str, changed: Sequence[str], **about: str) -> None:
    """Raise where a plan is no longer what would be planned now.

    Raises:
        ClientStateError: it is not; the text says in what.
    """
    if changed:
        told = "; ".join(changed)
        raise ClientStateError(
            f"{refused}, it is no longer as it was shown: {told}. Look again", **about
        )
