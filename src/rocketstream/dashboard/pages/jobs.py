"""Changes under way and their results; other pages start them."""

from __future__ import annotations

from pathlib import PurePath
from typing import Final

from starlette.responses import Response

from rocketstream.admin import ResetDone
from rocketstream.dashboard.jobs import Job
from rocketstream.dashboard.site import Ask, PageError, get, post


def _job(ask: Ask, job_id: str) -> Job:
    job = ask.jobs.find(job_id)
    if job is None:
        raise PageError(
            404, "this change is no longer known, or belongs to a dashboard that has ended"
        )
    return job


async def page(ask: Ask) -> Response:
    """Return the page of one change."""
    job = _job(ask, ask.need("id"))
    undo = None
    if isinstance(job.result, ResetDone) and job.result.undo_path:
        undo = PurePath(job.result.undo_path).name
    template = "job_live.html" if ask.is_part else "job.html"
    return ask.show(template, title=job.title, job=job, undo=undo)


async def stop(ask: Ask) -> Response:
    """End the change after its present step."""
    job = _job(ask, ask.field("job"))
    ask.jobs.stop(job)
    return ask.go("/job", id=job.id)


ROUTES: Final = (get("/job", page), post("/job/stop", stop))
