"""The common ground of the services of ``Admin``: connections they share, operations they declare.

Law: an operation is declared once, as a method marked ``question`` or ``change``; the blocking face
and the awaited one are both made from it. Its arguments are checked here and nowhere else.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from types import MethodType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from rocketstream._util.clock import Clock
from rocketstream.admin.memory import SweepMemory
from rocketstream.admin.wire.looking import AdminWire
from rocketstream.checks import check_call
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.errors import ClientStateError

if TYPE_CHECKING:
    from rocketstream.admin.messages.masking import Masking
    from rocketstream.admin.safety.audit import AuditLog, ChangeGate

P = ParamSpec("P")
R = TypeVar("R")


class Reach:
    """One cluster within reach: the connections, the clock and the rules all services share.

    Args:
        timeout_ms: bound of one request.
        audit: where changes are written down; None writes nothing.
        read_only: whether every change is refused.
        masking: which parts of messages are hidden; None takes the environment's rules.
        producer_settings: connect a producer to the same cluster.
    """

    def __init__(
        self,
        client: BlockingAdminClient,
        timeout_ms: int,
        clock: Clock,
        *,
        audit: AuditLog | None = None,
        read_only: bool = False,
        masking: Masking | None = None,
        producer_settings: dict[str, Any] | None = None,
    ) -> None:
        self.client = client
        self.wire = AdminWire(client, timeout_ms)
        self.timeout_ms = timeout_ms
        self.clock = clock
        self.read_only = read_only
        self.masking = masking
        self.producer_settings = producer_settings or {}
        self.memory = SweepMemory()
        self.is_closed = False
        self._audit = audit

    @property
    def gate(self) -> ChangeGate:
        """Admits changes, or refuses them."""
        from rocketstream.admin.safety.audit import ChangeGate  # most commands only look

        return ChangeGate(self.client, self.timeout_ms, self._audit, read_only=self.read_only)

    def check_open(self) -> None:
        """Raise if the ``Admin`` is closed.

        Raises:
            ClientStateError: it is.
        """
        if self.is_closed:
            raise ClientStateError("this Admin is closed; make a new one")


class Service:
    """The operations of ``Admin`` on one thing; it keeps nothing itself."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._client = reach.client
        self._wire = reach.wire
        self._clock = reach.clock
        self._timeout_ms = reach.timeout_ms

    @property
    def _changes(self) -> ChangeGate:
        return self._reach.gate


class Awaited:
    """The face of a service whose operations are awaited.

    Args:
        call: runs a call on a thread; told whether it is to be completed even when cancelled.
    """

    def __init__(
        self, call: Callable[[bool, Callable[[], Any]], Coroutine[Any, Any, Any]], service: Service
    ) -> None:
        self._call = call
        self._service = service


class Operation(Generic[P, R]):
    """A method of a service, as both faces have it."""

    def __init__(self, method: Callable[Concatenate[Any, P], R], *, is_change: bool) -> None:
        @functools.wraps(method)
        def call(service: Service, /, *args: P.args, **kwargs: P.kwargs) -> R:
            check_call(method, (service, *args), kwargs)
            service._reach.check_open()
            return method(service, *args, **kwargs)

        @functools.wraps(method)
        async def awaited(face: Awaited, /, *args: P.args, **kwargs: P.kwargs) -> Any:
            run = functools.partial(call, face._service, *args, **kwargs)
            return await face._call(is_change, run)

        self.is_change = is_change
        self._call, self._awaited = call, awaited

    @overload
    def __get__(self, face: None, kind: type) -> Callable[..., Any]: ...
    @overload
    def __get__(self, face: Awaited, kind: type) -> Callable[P, Coroutine[Any, Any, R]]: ...
    @overload
    def __get__(self, face: Service, kind: type) -> Callable[P, R]: ...
    def __get__(self, face: Awaited | Service | None, kind: type) -> Callable[..., Any]:
        function: Callable[..., Any] = self._awaited if issubclass(kind, Awaited) else self._call
        return function if face is None else MethodType(function, face)


def question(method: Callable[Concatenate[Any, P], R]) -> Operation[P, R]:
    """Mark a method as one that only looks: awaited, it ends early when it is cancelled."""
    return Operation(method, is_change=False)


def change(method: Callable[Concatenate[Any, P], R]) -> Operation[P, R]:
    """Mark a method as one that changes a cluster: once begun it is always completed."""
    return Operation(method, is_change=True)
