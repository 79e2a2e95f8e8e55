"""Settings every client kind shares, and who a client is: its address, its id, its message ids.

It makes no connection: it reads environment variables and this machine's address.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import socket
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.client.credentials import signer
from rocketstream.client.hooks import RPCHook, after_response_of, before_request_of
from rocketstream.client.instance.questions import NAMESRV_ADDR_VARIABLE
from rocketstream.errors import ConfigurationError, NotSupportedError
from rocketstream.model import MessageQueue
from rocketstream.protocol.addresses import parse_addresses
from rocketstream.protocol.command import AfterResponse, BeforeRequest
from rocketstream.protocol.message_id import UniqueIdGenerator
from rocketstream.protocol.names import check_topic
from rocketstream.protocol.namespace import (
    namespace_of_endpoint,
    without_namespace,
    without_scheme,
    wrap_namespace,
)
from rocketstream.protocol.trace import CLOUD, LOCAL
from rocketstream.settings import check_values, setting
from rocketstream.transport.tls import TLS_VARIABLE, is_tls_wanted, settings_context

if TYPE_CHECKING:
    import ssl

CLIENT_NAME_VARIABLE = "ROCKETMQ_CLIENT_NAME"
VIP_CHANNEL_VARIABLE = "ROCKETMQ_VIP_CHANNEL"
NAMESRV_DOMAIN_VARIABLE = "ROCKETMQ_NAMESRV_DOMAIN"
NAMESRV_DOMAIN_SUBGROUP_VARIABLE = "ROCKETMQ_NAMESRV_DOMAIN_SUBGROUP"
REBALANCE_INTERVAL_VARIABLE = "ROCKETMQ_REBALANCE_WAIT_INTERVAL_MS"
DEFAULT_INSTANCE_NAME = "DEFAULT"
DEFAULT_DOMAIN_SUBGROUP = "nsaddr"
_CALLBACK_THREADS_FALLBACK = 4

_instance_numbers = itertools.count(1)


def _text(variable: str, default: str, **about: Any) -> Any:
    shown = f"{variable}, else {default!r}"
    return setting(factory=lambda: os.environ.get(variable) or default, shown=shown, **about)


def _flag(variable: str, **about: Any) -> Any:
    return setting(
        factory=lambda: os.environ.get(variable, "").strip().lower() == "true",
        shown=f"{variable}, else False",
        **about,
    )


def _milliseconds(variable: str, default: int, **about: Any) -> Any:
    def read() -> int:
        text = os.environ.get(variable, "").strip()
        if text and not (text.isascii() and text.isdigit()):
            raise ConfigurationError(
                f"environment variable {variable} must be a number of milliseconds, not {text!r}"
            )
        return int(text) if text else default

    return setting(factory=read, shown=f"{variable}, else {default}", low=1, **about)


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Settings of a client instance (C-1 to C-20).

    Clients with the same id share one instance, and with it the settings of the first (C-18).
    Defaults may come from environment variables, which stand for upstream's system properties:
    NAMESRV_ADDR, ROCKETMQ_CLIENT_NAME (``instance_name``), ROCKETMQ_VIP_CHANNEL,
    ROCKETMQ_TLS_ENABLE, ROCKETMQ_NAMESRV_DOMAIN, ROCKETMQ_NAMESRV_DOMAIN_SUBGROUP,
    ROCKETMQ_REBALANCE_WAIT_INTERVAL_MS.

    Attributes:
        namesrv_addr: ``host:port``, several joined by ``;``, or one ``http://host:port``; None
            takes the environment variable NAMESRV_ADDR.
        client_ip: first part of the client id; None takes this machine's address.
        instance_name: second part; DEFAULT becomes one of its own per client (C-114).
        unit_name: third part, usually none.
        poll_name_server_interval_ms: how often routes are refreshed.
        heartbeat_broker_interval_ms: how often brokers hear of this client.
        persist_consumer_offset_interval_ms: how often changed offsets are sent to brokers.
        rebalance_interval_ms: how often queues are divided again if nothing asks for it.
        pull_time_delay_ms_when_exception: pause after a failed pull.
        vip_channel_enabled: use the broker's port - 2 for all but pulls and heartbeats (C-13).
        access_key: ACL user, with ``secret_key``; None takes those of the environment:
            ROCKETMQ_ACCESS_KEY, ROCKETMQ_SECRET_KEY and ROCKETMQ_SECURITY_TOKEN, or the file
            ROCKETMQ_KEY_FILE. An empty text takes none.
        secret_key: ACL secret; never shown.
        security_token: token of a temporary ACL user.
        ssl_context: TLS for every connection; None for plain.
        api_timeout_ms: bound of route look-ups, heartbeats and member lists.
        connect_timeout_ms: bound of one connect.
        namespace: put before every topic and group, as ``namespace%topic``; None takes the instance
            id that ``namesrv_addr`` begins with, if it does (C-5).
        use_tls: TLS with the system's trusted certificates, or those of ROCKETMQ_TLS_CA_FILE and
            its neighbours (``transport.tls.environment_context``); ``ssl_context`` gives others.
        unit_mode: told in heartbeats and with created topics (unitised deployments).
        access_channel: ``LOCAL`` or ``CLOUD``; says where and how message trace goes (C-544).
        enable_stream_request_type: mark the client id and each request as a stream reader's (C-17).
        client_callback_executor_threads: most threads that run callbacks and listeners called on
            request; 0 takes the number of processors.
        rpc_hook: one or several ``RPCHook`` that see every request and answer.
        namesrv_domain: host of an address server that is asked by HTTP for the name servers when
            none is given (C-130).
        namesrv_domain_subgroup: last part of its URL.
    """

    namesrv_addr: str | None = None
    client_ip: str | None = setting(None, java="clientIP")
    instance_name: str = _text(CLIENT_NAME_VARIABLE, DEFAULT_INSTANCE_NAME)
    unit_name: str | None = None
    poll_name_server_interval_ms: int = setting(30_000, low=1)
    heartbeat_broker_interval_ms: int = setting(30_000, low=1)
    persist_consumer_offset_interval_ms: int = setting(5_000, low=1)
    rebalance_interval_ms: int = _milliseconds(REBALANCE_INTERVAL_VARIABLE, 20_000, java="")
    pull_time_delay_ms_when_exception: int = setting(
        1_000, low=1, java="pullTimeDelayMillsWhenException"
    )
    vip_channel_enabled: bool = _flag(VIP_CHANNEL_VARIABLE)
    access_key: str | None = setting(None, java="", secret=True)
    secret_key: str | None = setting(None, java="", secret=True)
    security_token: str | None = setting(None, java="", secret=True)
    ssl_context: ssl.SSLContext | None = setting(None, java="")
    api_timeout_ms: int = setting(3_000, low=1, java="mqClientApiTimeout")
    connect_timeout_ms: int = setting(3_000, low=1, java="")
    namespace: str | None = None
    use_tls: bool = setting(
        factory=lambda: is_tls_wanted(os.environ),
        shown=f"{TLS_VARIABLE}, else False",
        java="useTLS",
    )
    unit_mode: bool = False
    access_channel: str = LOCAL
    enable_stream_request_type: bool = False
    client_callback_executor_threads: int = 0
    rpc_hook: RPCHook | Sequence[RPCHook] | None = None
    namesrv_domain: str | None = _text(NAMESRV_DOMAIN_VARIABLE, "", java="")
    namesrv_domain_subgroup: str = _text(
        NAMESRV_DOMAIN_SUBGROUP_VARIABLE, DEFAULT_DOMAIN_SUBGROUP, java=""
    )

    def __repr__(self) -> str:
        return (
            f"ClientConfig(namesrv_addr={self.namesrv_addr!r}, client_ip={self.client_ip!r}, "
            f"instance_name={self.instance_name!r})"
        )

    # --- where the name servers are ---------------------------------------------------------------

    def name_servers(self) -> list[str]:
        """Return the addresses to ask for routes; none while an address server must tell them.

        Raises:
            ConfigurationError: none given and none in the environment, or not ``host:port``.
        """
        text = self._namesrv_text()
        if text:
            return parse_addresses(without_scheme(text))
        if self.namesrv_domain:
            return []
        raise ConfigurationError(
            "No name server address, please set it: "
            f"namesrv_addr='host:9876' or the environment variable {NAMESRV_ADDR_VARIABLE}"
        )

    def shown_name_servers(self) -> str | None:
        """Return where the name servers are, in words for people; None while nothing says so."""
        text = self._namesrv_text()
        if text or not self.namesrv_domain:
            return text or None
        return f"as {self.namesrv_domain} says"

    def address_server_url(self) -> str | None:
        """Return where to ask for name server addresses when none is given (C-130)."""
        if self._namesrv_text() or not self.namesrv_domain:
            return None
        host = self.namesrv_domain
        port = "" if ":" in host else ":8080"
        url = f"http://{host}{port}/rocketmq/{self.namesrv_domain_subgroup}"
        return f"{url}-{self.unit_name}?nofix=1" if _is_set(self.unit_name) else url

    def _namesrv_text(self) -> str:
        return (self.namesrv_addr or os.environ.get(NAMESRV_ADDR_VARIABLE, "")).strip()

    # --- namespace --------------------------------------------------------------------------------

    def effective_namespace(self) -> str | None:
        """Return the namespace given, or the one the name server address implies (C-5)."""
        return self.namespace or namespace_of_endpoint(self._namesrv_text())

    def with_namespace(self, resource: str) -> str:
        """Return a topic or group as the servers know it (C-146)."""
        return wrap_namespace(self.effective_namespace(), resource)

    def topic_with_namespace(self, topic: str) -> str:
        """Return a topic as the servers know it.

        Raises:
            ConfigurationError: a name that no topic can have (C-95).
        """
        check_topic(topic)
        return self.with_namespace(topic)

    def without_namespace(self, resource: str) -> str:
        """Return a topic or group as the user knows it (C-147)."""
        return without_namespace(resource, self.effective_namespace())

    def queue_with_namespace(self, message_queue: MessageQueue) -> MessageQueue:
        """Return a queue as the servers know it (C-148).

        Raises:
            ConfigurationError: it is not a queue.
        """
        if not isinstance(message_queue, MessageQueue):
            raise ConfigurationError(
                f"message_queue must be a rocketstream.MessageQueue, not {message_queue!r}"
            )
        topic = self.with_namespace(message_queue.topic)
        return (
            message_queue if topic == message_queue.topic else message_queue._replace(topic=topic)
        )

    def queue_without_namespace(self, message_queue: MessageQueue) -> MessageQueue:
        """Return a queue as the user knows it (C-148)."""
        topic = self.without_namespace(message_queue.topic)
        return (
            message_queue if topic == message_queue.topic else message_queue._replace(topic=topic)
        )

    def queues_without_namespace(
        self, message_queues: Iterable[MessageQueue]
    ) -> list[MessageQueue]:
        """Return queues as the user knows them (C-148)."""
        return [self.queue_without_namespace(mq) for mq in message_queues]

    # --- connections ------------------------------------------------------------------------------

    def tls_context(self) -> ssl.SSLContext | None:
        """Return what TLS connections are made with, None for plain ones (C-14)."""
        if self.ssl_context is not None:
            return self.ssl_context
        return settings_context() if self.use_tls else None

    def rpc_hooks(self) -> tuple[RPCHook, ...]:
        """Return the hooks around requests."""
        hook = self.rpc_hook
        if hook is None:
            return ()
        return tuple(hook) if isinstance(hook, Sequence) else (hook,)

    def before_request(self) -> BeforeRequest | None:
        """Return the call before each request, None where none is needed.

        Raises:
            ConfigurationError: only one of the two keys is given.
        """
        sign = signer(self.access_key, self.secret_key, self.security_token)
        return before_request_of(
            self.rpc_hooks(), sign, reads_stream=self.enable_stream_request_type
        )

    def after_response(self) -> AfterResponse | None:
        """Return the call for each answer, None where no hook wants one."""
        return after_response_of(self.rpc_hooks())

    def callback_threads(self) -> int:
        """Return how many threads may run callbacks (C-4)."""
        if self.client_callback_executor_threads < 0:
            return _CALLBACK_THREADS_FALLBACK
        processors = os.cpu_count() or _CALLBACK_THREADS_FALLBACK
        return self.client_callback_executor_threads or processors

    # --- checks and identity ----------------------------------------------------------------------

    def checked(self) -> ClientConfig:
        """Return this configuration if its values can be used.

        Raises:
            ConfigurationError: one that cannot; the text names it and what is accepted.
        """
        check_values(self)
        if self.namesrv_addr and self.namesrv_addr.strip():
            self.name_servers()
        for hook in self.rpc_hooks():
            if not all(callable(getattr(hook, name, None)) for name in _HOOK_METHODS):
                raise ConfigurationError(
                    f"rpc_hook must have the methods {' and '.join(_HOOK_METHODS)}; {hook!r} "
                    "lacks one"
                )
        if self.access_channel not in (LOCAL, CLOUD):
            raise ConfigurationError(
                f"access_channel must be {LOCAL} or {CLOUD}, not {self.access_channel!r}"
            )
        return self

    def with_own_instance(self, clock: Clock = SYSTEM_CLOCK) -> ClientConfig:
        """Return the configuration with DEFAULT replaced by a name of its own (C-114)."""
        if self.instance_name != DEFAULT_INSTANCE_NAME:
            return self
        nanos = int(clock.monotonic_ms() * 1_000_000) + next(_instance_numbers)
        return replace(self, instance_name=f"{os.getpid()}#{nanos}")

    def client_id(self) -> str:
        """Return the id brokers know this client by (C-19)."""
        parts = [self.client_ip or local_address(), self.instance_name]
        if self.unit_name is not None and _is_set(self.unit_name):
            parts.append(self.unit_name)
        if self.enable_stream_request_type:
            parts.append(STREAM)
        return "@".join(parts)


def _is_set(text: str | None) -> bool:
    return bool(text) and not str(text).isspace()


STREAM = "STREAM"
"""Last part of the id of a client that reads a stream (C-12)."""
_HOOK_METHODS = ("before_request", "after_response")
_FIELDS = frozenset(each.name for each in fields(ClientConfig))


def client_config(
    config: ClientConfig | None, namesrv_addr: str | None, settings: dict[str, Any]
) -> ClientConfig:
    """Return a client's configuration, given as one, as keywords, or as both.

    Args:
        config: the configuration the keywords override.
        namesrv_addr: overrides its address unless None.
        settings: keywords of a client; those that are fields of ``ClientConfig`` are taken out.

    Raises:
        ConfigurationError: a value in it cannot be used.
    """
    own = {name: settings.pop(name) for name in list(settings) if name in _FIELDS}
    if namesrv_addr is not None:
        own["namesrv_addr"] = namesrv_addr
    if config is None:
        config = ClientConfig()
    elif not isinstance(config, ClientConfig):
        given = type(config).__name__  # its values may be secret
        raise ConfigurationError(f"config must be a rocketstream.ClientConfig, not a {given}")
    return replace(config, **own).checked()


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """The address and ids that tell one process from others.

    Attributes:
        address: address of its machine.
        unique_ids: its generator of UNIQ_KEYs.
        new_uuid: returns a unique id, as ``str(uuid4())`` does.
    """

    address: str
    unique_ids: UniqueIdGenerator
    new_uuid: Callable[[], str]


_identity: Callable[[], ProcessIdentity | None] = lambda: None  # noqa: E731


def set_process_identity(identity: Callable[[], ProcessIdentity | None] | None) -> None:
    """Have a function say which process calls; for simulations, which run several in one."""
    global _identity
    _identity = identity or (lambda: None)


def new_uuid() -> str:
    """Return a unique id."""
    identity = _identity()
    return str(uuid.uuid4()) if identity is None else identity.new_uuid()


def local_address() -> str:
    """Return this machine's address towards others; the loopback one when it has no other."""
    identity = _identity()
    return _outward_address() if identity is None else identity.address


@lru_cache(maxsize=1)
def _outward_address() -> str:
    for family, probe in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        # Connecting a datagram socket sends nothing; it only asks the routing table.
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as sock:
                sock.connect((probe, 9))
                return str(sock.getsockname()[0])
        except OSError:
            continue
    return "127.0.0.1"


_generators: dict[int, UniqueIdGenerator] = {}


def unique_ids() -> UniqueIdGenerator:
    """Return this process's generator of UNIQ_KEYs; a forked child gets its own."""
    identity = _identity()
    if identity is not None:
        return identity.unique_ids
    pid = os.getpid()
    generator = _generators.get(pid)
    if generator is None:
        generator = UniqueIdGenerator(
            _packed(local_address()), pid, int.from_bytes(os.urandom(4)), month_start_ms
        )
        generator = _generators.setdefault(pid, generator)
    return generator


def month_start_ms(now_ms: int) -> int:
    """Return when the month of ``now_ms`` began, local time, ms since 1970."""
    start = datetime.fromtimestamp(now_ms / 1000).replace(
        day=1, hour=0, minute=0, second=0, microsecond=0
    )
    return int(start.timestamp() * 1000)


def _packed(address: str) -> bytes:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.inet_pton(family, address)


@cache
def check_columns(call: str) -> None:
    """Check that what columns need is installed.

    Raises:
        NotSupportedError: pyarrow or numpy is missing.
    """
    for package in ("pyarrow", "numpy"):
        if importlib.util.find_spec(package) is None:
            raise NotSupportedError(
                f"{call} needs the package {package}: pip install 'rocketstream[columns]'"
            )
