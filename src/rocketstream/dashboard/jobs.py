"""Changes under way: each on a thread and with an Admin of its own, watched, stopped, bounded.

Law: each change is recorded with the name of its user.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Protocol

from rocketstream import limits
from rocketstream._util.clock import Clock
from rocketstream._util.stopping import Stop, call_until
from rocketstream.admin import Admin
from rocketstream.errors import RocketMQError

_log = logging.getLogger(__name__)
ENDING_S: Final = 30.0


class ChangeFactory(Protocol):
    """Makes the Admin of one change."""

    def __call__(self, who: str) -> Admin:
        """Return an Admin that records changes under the name ``who``; closed by the caller."""
        ...


class JobState(StrEnum):
    """The state of a job."""

    RUNNING = "running"
    STOPPING = "stopping"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


class JobsBusyError(RocketMQError):
    """Too many changes are under way."""

    condition = "BUSY"


@dataclass(slots=True)
class Job:
    """One change under way, or its result.

    Attributes:
        kind: ``reset``, ``redrive``, ``consume`` or ``change``.
        title: the change, in words for people.
        total: how many steps it has; None where that is not known.
        done: how many steps are done.
        facts: further values for the page of its kind.
        result: its result; None while it runs, and where it failed.
        error: why it failed.
    """

    id: str
    kind: str
    title: str
    group: str
    user: str
    began_ms: int
    total: int | None = None
    done: int = 0
    state: JobState = JobState.RUNNING
    ended_ms: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    result: Any = None
    error: str | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    cancel: Stop = field(default_factory=Stop)

    @property
    def is_over(self) -> bool:
        """Whether the job has ended."""
        return self.state not in (JobState.RUNNING, JobState.STOPPING)


Work = Callable[[Admin, Job], Any]


class Jobs:
    """The changes of one dashboard; to be closed. Thread safe."""

    def __init__(self, factory: ChangeFactory, clock: Clock) -> None:
        self._factory = factory
        self._clock = clock
        self._lock = threading.Lock()
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._threads: dict[str, threading.Thread] = {}

    def start(
        self,
        kind: str,
        title: str,
        group: str,
        user: str,
        work: Work,
        *,
        total: int | None = None,
        facts: dict[str, Any] | None = None,
    ) -> Job:
        """Begin a change and return at once.

        Raises:
            JobsBusyError: too many are under way.
        """
        with self._lock:
            if len(self._threads) >= limits.DASHBOARD_JOBS_MAX:
                raise JobsBusyError(
                    f"{len(self._threads)} changes are under way already; wait for one of them"
                )
            job = Job(
                secrets.token_urlsafe(12), kind, title, group, user, self._clock.now_ms(),
                total=total, facts=facts or {},
            )  # fmt: skip
            while len(self._jobs) >= limits.DASHBOARD_KEPT_MAX:
                over = next(key for key, old in self._jobs.items() if old.is_over)
                del self._jobs[over]
            self._jobs[job.id] = job
            thread = threading.Thread(
                target=self._run, args=(job, work), name="rocketstream-dashboard-job", daemon=True
            )
            self._threads[job.id] = thread
        thread.start()
        return job

    def find(self, job_id: str) -> Job | None:
        """Return a job; None for one that is forgotten or never existed."""
        with self._lock:
            return self._jobs.get(job_id)

    def of_group(self, group: str) -> list[Job]:
        """Return the jobs of a group, the newest first."""
        with self._lock:
            return [job for job in reversed(self._jobs.values()) if job.group == group]

    def stop(self, job: Job) -> None:
        """End a job after its present step."""
        with self._lock:
            if job.state is JobState.RUNNING:
                job.state = JobState.STOPPING
        job.stop.set()

    def close(self) -> None:
        """Stop running jobs and wait for them; blocks."""
        with self._lock:
            threads, jobs = list(self._threads.values()), list(self._jobs.values())
        for job in jobs:
            if not job.is_over:
                self.stop(job)
                job.cancel.ask()
        for thread in threads:
            thread.join(ENDING_S)

    def _run(self, job: Job, work: Work) -> None:
        state, error = JobState.DONE, None
        try:
            with self._factory(job.user) as admin:
                job.result = call_until(job.cancel, lambda: work(admin, job))
            if job.stop.is_set():
                state = JobState.STOPPED
        except asyncio.CancelledError:
            state = JobState.STOPPED
        except (RocketMQError, OSError) as failure:
            state, error = JobState.FAILED, str(failure)
        except Exception as failure:
            _log.exception("INTERNAL a change of the dashboard failed")
            state, error = JobState.FAILED, f"a bug in the dashboard: {failure!r}"
        with self._lock:
            job.error, job.ended_ms, job.state = error, self._clock.now_ms(), state
            self._threads.pop(job.id, None)
