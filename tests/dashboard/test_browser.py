"""The dashboard in a real browser, before a gateway under load.

Needs Debian's Chromium and the extra `browser` (`make test-dashboard` sees to both); skipped
without. Screenshots are kept where DASHBOARD_SCREENSHOTS says.
"""

import json
import os
import re
import shutil
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.api.tuner import told_of
from gateway.core.policies import PolicySettings
from gateway.telemetry.decisions import encode
from gateway.tuner.search import Finding, Gain, Objective, Point
from gateway.tuner.tuner import Tuning, told
from tests.e2e.processes import a_fleet

pytest.importorskip("playwright", reason="no Playwright: make test-dashboard installs it")
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium: make test-dashboard installs it"
)

KEY = "sesame"
SECRET = "the prompt nobody may see"
WITHIN_MS = 30_000
DARK, LIGHT = "rgb(16, 21, 27)", "rgb(246, 247, 249)"

Visit = Callable[..., Page]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway with a key, two emulated engines, and workflows that keep coming."""
    folder = tmp_path_factory.mktemp("fleet")
    settings = f"admin_key: {KEY}"
    with a_fleet(folder, "A100-80G", "L40S", speed=10, settings=settings) as url, _load(url):
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--no-proxy-server"]
        )
        yield chromium
        chromium.close()


@pytest.fixture
def visit(gateway: str, browser: Browser) -> Iterator[Visit]:
    """Open the dashboard; afterwards nothing must have gone wrong on the page."""
    wrongs: list[str] = []
    contexts = []

    def opened(
        *,
        key: str | None = KEY,
        width: int = 1440,
        scheme: str = "light",
        strict: bool = True,
        route: Mapping[str, object] | None = None,
    ) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if scheme == "dark" else "light",
        )
        contexts.append(context)
        context.set_default_timeout(WITHIN_MS)
        page = context.new_page()
        if strict:
            page.on("console", lambda m: wrongs.append(m.text) if m.type != "log" else None)
        page.on("pageerror", lambda error: wrongs.append(str(error)))
        if key is not None:
            page.add_init_script(f"sessionStorage.setItem('hexsage-admin-key', '{key}')")
        for pattern, answer in (route or {}).items():
            page.route(pattern, _answering(answer))
        page.goto(f"{gateway}/dashboard")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert wrongs == []


def test_it_asks_for_the_key_and_shows_nothing_before(visit: Visit) -> None:
    page = visit(key=None, strict=False)  # the browser itself logs each 401
    prompt = page.get_by_role("dialog", name=re.compile("admin key"))
    field = page.get_by_role("textbox", name="Admin key")
    expect(prompt).to_be_visible(timeout=WITHIN_MS)
    expect(field).to_be_focused()
    expect(page.locator(".backend")).to_have_count(0)

    field.fill("open")
    field.press("Enter")
    expect(prompt.get_by_role("alert")).to_have_text("That is not the key.", timeout=WITHIN_MS)
    field.fill(KEY)
    field.press("Enter")
    expect(page.locator(".backend")).to_have_count(2, timeout=WITHIN_MS)
    assert page.evaluate("localStorage.getItem('hexsage-admin-key')") is None

    page.get_by_role("button", name="Forget key").click()
    expect(prompt).to_be_visible(timeout=WITHIN_MS)


def test_it_is_live_under_load_and_shows_no_prompt(visit: Visit) -> None:
    page = visit()
    _wait_until_live(page)
    first = page.locator("#requests tbody button").first
    expect(first).to_be_visible(timeout=WITHIN_MS)
    before = first.inner_text()
    expect(first).not_to_have_text(before, timeout=WITHIN_MS)
    expect(page.locator(".run").first).to_be_visible(timeout=WITHIN_MS)
    expect(page.locator(".run .runs, .run .ran").first).to_be_attached(timeout=WITHIN_MS)
    for chart in page.locator("#trends svg").all():
        expect(chart.locator("path").first).to_have_attribute(
            "d", re.compile("^M"), timeout=WITHIN_MS
        )

    assert SECRET not in page.content()
    _keep(page, "light")


def test_a_drained_backend_changes_its_look_and_back(visit: Visit) -> None:
    page = visit()
    _wait_until_live(page)
    card = page.locator(".backend").first
    colour = "getComputedStyle(document.querySelector('.backend')).backgroundColor"
    expect(card).to_contain_text("Up")
    before = page.evaluate(colour)

    card.get_by_role("button", name=re.compile("^Drain")).click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    expect(card).to_have_attribute("data-tone", "good")
    card.get_by_role("button", name=re.compile("^Drain")).click()
    page.get_by_role("dialog").get_by_role("button", name="Drain").click()
    expect(card).to_have_attribute("data-tone", "warn", timeout=WITHIN_MS)
    expect(card).to_contain_text("Draining")
    assert page.evaluate(colour) != before
    expect(page.locator("#fleet-note")).to_have_text("1 of 2 backends up and well")

    card.get_by_role("button", name=re.compile("^Undrain")).click()
    page.get_by_role("dialog").get_by_role("button", name="Undrain").click()
    expect(card).to_contain_text("Up", timeout=WITHIN_MS)


def test_a_click_tells_why_a_request_went_there(visit: Visit, gateway: str) -> None:
    _call(gateway, "browser-asks", "w-browser")
    page = visit()
    _wait_until_live(page)
    page.get_by_label("Request id").fill("browser-asks")
    page.get_by_role("button", name="Why?").click()
    told = page.get_by_role("dialog", name="browser-asks")
    expect(told.locator("tr.is-chosen")).to_contain_text("chosen", timeout=WITHIN_MS)
    expect(told.locator("tbody tr")).to_have_count(2)
    assert SECRET not in page.content()
    page.keyboard.press("Escape")
    expect(told).to_have_count(0)


def test_an_unknown_request_is_told_of_in_words(visit: Visit) -> None:
    page = visit(strict=False)  # the browser logs the 404
    _wait_until_live(page)
    page.get_by_label("Request id").fill("nobody")
    page.get_by_role("button", name="Why?").click()
    expect(page.get_by_role("dialog")).to_contain_text("Nothing is remembered")


def test_requests_can_be_narrowed_to_a_workflow(visit: Visit, gateway: str) -> None:
    _call(gateway, "narrow-1", "w-narrow")
    page = visit()
    _wait_until_live(page)
    page.get_by_label("Workflow", exact=True).fill("w-narrow")
    rows = page.locator("#requests tbody tr")
    expect(rows).to_have_count(1, timeout=WITHIN_MS)
    expect(rows).to_contain_text("narrow-1")


def test_what_the_tuner_found_is_drawn(visit: Visit) -> None:
    page = visit(route={"**/admin/tuner": _tuned()})
    _wait_until_live(page)
    tuner = page.locator("#tuner")
    expect(tuner.locator("svg circle")).to_have_count(4, timeout=WITHIN_MS)
    expect(tuner.locator("tbody tr")).to_have_count(5)
    expect(tuner).to_contain_text("Applied: alpha=0.3: p95 better by 12.0% [4.0%, 19.0%]")
    _keep(page, "tuner")


def test_it_is_dark_where_the_system_is_and_as_chosen(visit: Visit) -> None:
    page = visit(scheme="dark")
    _wait_until_live(page)
    body = page.locator("body")
    expect(body).to_have_css("background-color", DARK)
    _keep(page, "dark")

    theme = page.get_by_role("button", name=re.compile("^Theme"))
    expect(theme).to_have_text("Theme: auto")
    theme.click()
    expect(body).to_have_css("background-color", LIGHT)
    theme.click()
    expect(theme).to_have_text("Theme: dark")
    page.reload()
    expect(body).to_have_css("background-color", DARK)


def test_on_a_small_screen_nothing_is_cut_off(visit: Visit) -> None:
    page = visit(width=390)
    _wait_until_live(page)
    expect(page.locator("#requests tbody button").first).to_be_visible(timeout=WITHIN_MS)
    widths = "[document.documentElement.scrollWidth, document.body.scrollWidth]"
    assert page.evaluate(widths) == [390, 390]
    _keep(page, "small")

    page.locator("#requests tbody button").first.click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert page.evaluate(widths) == [390, 390]


def test_the_keyboard_reaches_everything_and_keeps_its_place(visit: Visit) -> None:
    page = visit()
    _wait_until_live(page)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the fleet")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    drain = page.get_by_role("button", name=re.compile("^Drain a100"))
    expect(drain).to_be_focused()
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(outline) == "solid"

    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog").get_by_role("button", name="Cancel")).to_be_focused()
    page.keyboard.press("Escape")
    expect(drain).to_be_focused()
    seen = page.evaluate("document.getElementById('requests').innerText")
    page.wait_for_function(
        "seen => document.getElementById('requests').innerText !== seen", arg=seen
    )
    expect(drain).to_be_focused()  # frames have come, and the node is the same


def test_a_gateway_that_is_gone_is_told_of_and_found_again(visit: Visit) -> None:
    page = visit(strict=False)  # the browser logs what cannot be fetched
    _wait_until_live(page)
    page.route("**/admin/*", lambda route: route.abort())
    page.reload()
    banner = page.locator("#banner")
    expect(banner).to_contain_text("The gateway does not answer.", timeout=WITHIN_MS)
    expect(page.locator("#connection")).to_contain_text("Reconnecting")

    page.unroute("**/admin/*")
    banner.get_by_role("button", name="Try now").click()
    _wait_until_live(page)
    expect(banner).to_be_hidden()


def _answering(answer: object) -> Callable[[Route], None]:
    return lambda route: route.fulfill(json=answer)


def _tuned() -> object:
    """A search as the tuner's route tells it: it takes minutes of traffic to have a real one."""
    present, no_gain = PolicySettings(), Gain(mean=0.0, low=0.0, high=0.0)
    gain = Gain(mean=0.12, low=0.04, high=0.19)
    curve = (
        Point(label="as it is", settings=present, value=41.0, gain=no_gain),
        *(
            Point(
                label=f"alpha={alpha}", settings=PolicySettings(alpha=alpha), value=value, gain=gain
            )
            for alpha, value in ((0.3, 36.0), (0.7, 43.5), (0.9, 55.0))
        ),
        Point(label="hold=4.0", settings=PolicySettings(hold=4.0), value=40.2, gain=gain),
    )
    finding = Finding(
        policy="hexsage",
        objective=Objective.P95,
        present=present,
        curve=curve,
        winner=curve[1].settings,
        label="alpha=0.3",
        gain=gain,
    )
    tuning = Tuning(
        at=0.0, took_s=20.0, workflows=300, outcome=told(finding), applied=True, finding=finding
    )
    return json.loads(encode({"interval_s": 600.0, "history": [told_of(tuning)]}))


def _wait_until_live(page: Page) -> None:
    expect(page.locator("#connection")).to_contain_text("Live", timeout=WITHIN_MS)
    expect(page.locator(".backend")).to_have_count(2, timeout=WITHIN_MS)


def _keep(page: Page, name: str) -> None:
    folder = os.environ.get("DASHBOARD_SCREENSHOTS")
    if folder:
        page.screenshot(path=Path(folder) / f"dashboard-{name}.png", full_page=True)


@contextmanager
def _load(url: str) -> Iterator[None]:
    """Have four clients ask, one call after another, until the block ends."""
    is_over = threading.Event()

    def client(number: int) -> None:
        turn = 0
        while not is_over.is_set():
            turn += 1
            try:
                _call(
                    url, f"load-{number}-{turn}", f"w-{number}-{turn // 4}", is_last=turn % 4 == 3
                )
            except urllib.error.URLError:
                return  # the fleet is being stopped

    clients = [threading.Thread(target=client, args=(number,)) for number in range(4)]
    for one in clients:
        one.start()
    try:
        yield
    finally:
        is_over.set()
        for one in clients:
            one.join()


def _call(url: str, request_id: str, workflow: str, *, is_last: bool = True) -> None:
    messages = [{"role": "user", "content": SECRET}]
    body = {"model": "m1", "messages": messages, "max_tokens": 150, "ignore_eos": True}
    headers = {
        "content-type": "application/json",
        "x-request-id": request_id,
        "x-workflow-id": workflow,
        "x-workflow-name": "load",
        "x-workflow-deadline-ms": "30000",
        "x-workflow-final": "true" if is_last else "false",
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), headers
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()
