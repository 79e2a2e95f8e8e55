"""A request together with the way its answer is read.

Law: a value; who is asked, how long the answer is waited for and what a refusal means is theirs
who ask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from rocketstream.late import dataclass
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import Header

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Question(Generic[T_co]):
    """One question to a broker or a name server.

    Attributes:
        code: the code of the request.
        header: its fields; None where it has none.
        read: returns what a successful answer says.
        patience: how many times as long as for other questions an answer is waited for.
    """

    code: RequestCode
    header: Header | None
    read: Callable[[RemotingCommand], T_co]
    patience: int = 1

    def command(self) -> RemotingCommand:
        """Return the request, made anew each time."""
        return RemotingCommand.request(self.code, self.header)
