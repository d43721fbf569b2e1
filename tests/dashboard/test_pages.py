"""The page and its parts, as they are served."""

import re
from importlib.resources import files

import httpx
import pytest

from gateway.dashboard.pages import read_parts
from tests.api.harness import a_gateway, built
from tests.backends.fake_backend import a_fake_backend, plain

pytestmark = pytest.mark.anyio

PARTS = read_parts()
SCRIPTS = sorted(name for name in PARTS if name.endswith(".js"))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_the_page_loads_without_the_key_and_forbids_everything_from_elsewhere() -> None:
    async with a_fake_backend(plain) as engine, a_gateway(engine, admin_key="open") as gw:
        page = await gw.request("GET", "/dashboard")

        assert page.status == 200
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert page.headers["x-content-type-options"] == "nosniff"
        moved = await gw.request("GET", "/dashboard/")
        assert (moved.status, moved.headers["location"]) == (307, "../dashboard")


async def test_every_part_is_served_once_for_all() -> None:
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        for name, part in PARTS.items():
            reply = await gw.request("GET", f"/dashboard/{name}")
            assert (reply.status, reply.body) == (200, part.body)
            assert reply.headers["content-type"] == part.media_type
            known = {"if-none-match": reply.headers["etag"]}
            assert (await gw.request("GET", f"/dashboard/{name}", headers=known)).status == 304


@pytest.mark.parametrize("name", ["nope.js", "..%2Fpages.py", "%2e%2e/pages.py", "pages.py"])
async def test_nothing_else_is_served(name: str) -> None:
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        assert (await gw.request("GET", f"/dashboard/{name}")).status == 404


async def test_with_a_port_of_its_own_admin_has_the_dashboard_and_clients_have_not() -> None:
    async with a_fake_backend(plain) as engine:
        gateway = built(engine, admin={"port": 1})
        for app, status in ((gateway.app, 404), (gateway.admin_app, 200)):
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://gw") as client:
                assert (await client.get("/dashboard")).status_code == status


def test_the_page_refers_to_nothing_that_it_does_not_have() -> None:
    page = PARTS["index.html"].body.decode()
    named = set(re.findall(r'(?:href|src)="dashboard/([^"]+)"', page))
    for script in SCRIPTS:
        named |= set(re.findall(r'from "\./([^"]+)"', PARTS[script].body.decode()))

    assert named == set(PARTS) - {"index.html"}
    assert not re.search(r'(?:href|src)="(?!dashboard/|#)', page)


@pytest.mark.parametrize("name", [*SCRIPTS, "index.html"])
def test_no_part_makes_markup_of_text_or_asks_elsewhere(name: str) -> None:
    text = PARTS[name].body.decode()

    for banned in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert banned not in text
    assert not re.search(r"\son\w+=\"|\sstyle=\"|<style", text)
    links = set(re.findall(r"https?://[^\"' ]+", text))
    assert links <= {"http://www.w3.org/2000/svg"}


def test_all_files_are_parts() -> None:
    folder = files("gateway.dashboard").joinpath("static")
    assert {entry.name for entry in folder.iterdir()} == set(PARTS)
