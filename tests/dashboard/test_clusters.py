"""Several clusters in one dashboard: pages of each below its name, and all of them on the first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
from starlette.testclient import TestClient

from rocketstream.admin import Admin
from rocketstream.admin.state import ClusterState
from rocketstream.dashboard import Cluster, Settings, create_app
from rocketstream.errors import ConfigurationError, ConnectError
from rocketstream.testing.clock import ManualClock
from tests.dashboard.rig import HOST, Rig, shop

PAGES = ("/", "/topics", "/messages", "/letters", "/spark", "/brokers", "/group?name=billing")


def cluster(name: str, state: ClusterState | Exception | None = None) -> tuple[Cluster, Rig]:
    rig = Rig(shop() if state is None else state)
    admin = cast(Admin, rig.admin)
    return Cluster(name, rig.collector, lambda: admin, None, lambda who: admin), rig


@contextmanager
def browsing_several(**states: Any) -> Iterator[TestClient]:
    clusters = [cluster(name, state)[0] for name, state in states.items()]
    app = create_app(*clusters, settings=Settings(may_write=True, clock=ManualClock()))
    with TestClient(app, HOST, headers={"accept": "text/html"}, follow_redirects=False) as browser:
        yield browser


def test_the_first_page_has_every_cluster_and_what_is_wrong_there() -> None:
    with browsing_several(east=None, west=ConnectError("nobody at 10.0.0.5")) as browser:
        text = browser.get("/").text
        assert 'href="/cluster/east/?verdict=FALLING+BEHIND"' in text
        assert "FALLING BEHIND 1" in text
        assert "nobody at 10.0.0.5" in text
        assert 'href="/cluster/west/"' in text


def test_every_link_of_a_cluster_s_page_stays_in_the_cluster() -> None:
    with browsing_several(east=None, west=None) as browser:
        for path in PAGES:
            answer = browser.get(f"/cluster/east{path}")
            assert answer.status_code == 200, path
            links = answer.text.replace("/static/", "").split('href="/')[1:]
            links += answer.text.split('action="/')[1:] + answer.text.split('hx-get="/')[1:]
            for link in links:
                place = link.split('"')[0]
                assert (
                    place == ""
                    or place.startswith(("cluster/east/", "cluster/west/", "vendor/"))
                    or place in ("icon.svg", "dashboard.css")
                ), f"{path}: {place}"


def test_the_switch_leads_to_the_same_page_of_another_cluster() -> None:
    with browsing_several(east=None, west=None) as browser:
        assert 'href="/cluster/west/topics"' in browser.get("/cluster/east/topics").text
        assert 'href="/cluster/west/"' in browser.get("/cluster/east/group?name=billing").text
        assert browser.get("/cluster/north/").status_code == 404
        assert browser.get("/topics").status_code == 404


def test_a_preview_of_one_cluster_is_not_carried_out_in_another() -> None:
    app = create_app(cluster("east")[0], cluster("west")[0], settings=Settings(may_write=True))
    with TestClient(app, HOST, headers={"accept": "text/html"}, follow_redirects=False) as browser:
        browser.get("/")
        session = next(iter(browser.cookies.values()))
        site = app.state.sites["east"]
        plan = site.plans.keep(object(), session)
        data = {"form_token": site.sessions.form_token(session), "plan": plan}
        assert browser.post("/cluster/west/change", data=data).status_code == 409
        assert site.plans.take(plan, session) is not None


def test_health_needs_one_cluster_that_answers() -> None:
    with browsing_several(east=None, west=ConnectError("nobody")) as browser:
        answer = browser.get("/healthz")
        assert answer.status_code == 200
        told = answer.json()["clusters"]
        assert (told["east"]["status"], told["west"]["status"]) == ("ok", "starting")
        assert browser.get("/cluster/east/metrics").status_code == 200
    with browsing_several(east=ConnectError("nobody"), west=ConnectError("nobody")) as browser:
        assert browser.get("/healthz").status_code == 503


@pytest.mark.parametrize("names", [(), ("a", "a"), ("a", ""), ("a", "b/c")])
def test_names_that_make_no_addresses_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(ConfigurationError, match="name"):
        create_app(*(cluster(name)[0] for name in names))
