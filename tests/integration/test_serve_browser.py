"""The pages of the server in a real browser: the whole story, with the mouse and with the keyboard alone."""

import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

from playwright.sync_api import Browser, Error, Page, ViewportSize, expect, sync_playwright
from safetensors.torch import load_file

import covey
from tests.browsers import axe, chromium
from tests.integration.served import SMALL_RUN, Server, at_rest
from tests.programs import PATIENCE, wait_until
from tests.task.federations import SETTINGS, regression

PHONE: ViewportSize = {"width": 360, "height": 740}
DESK: ViewportSize = {"width": 1280, "height": 900}

ROUND = "Number(document.getElementById('main').dataset.round || 0)"
"""The last round that a live page has drawn."""

CONTRAST = """() => {
  const channel = (value) => {
    const v = value / 255;
    return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  };
  const parse = (text) => (text.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const ground = (node) => {
    for (let one = node; one; one = one.parentElement) {
      const colour = parse(getComputedStyle(one).backgroundColor);
      if (colour.length < 4 || colour[3] > 0.99) return colour;
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const node of document.querySelectorAll("body *")) {
    const spoken = [...node.childNodes].some((one) => one.nodeType === 3 && one.textContent.trim());
    if (!spoken || !node.getClientRects().length || node.closest(":disabled, datalist, noscript")) continue;
    const style = getComputedStyle(node);
    const ink = light(parse(node.closest("svg") ? style.fill : style.color));
    const [one, other] = [ink, light(ground(node))].sort((a, b) => b - a);
    const large = parseFloat(style.fontSize) >= 24;
    const ratio = (one + 0.05) / (other + 0.05);
    if (ratio < (large ? 3 : 4.5))
      poor.push(`${node.tagName} "${node.textContent.trim().slice(0, 30)}" ${ratio.toFixed(2)}`);
  }
  return poor;
}"""
"""Text whose contrast with what is behind it is too low (WCAG 2.2, 1.4.3)."""

UNNAMED = """() => {
  const named = (node) =>
    node.getAttribute("aria-label") || (node.labels && node.labels.length) || node.textContent.trim() ||
    (node.getAttribute("aria-labelledby") || "").split(" ").some((id) => document.getElementById(id));
  const controls = "a, button, input:not([type=hidden]), select, textarea, [role=img], [role=region]";
  const bad = [...document.querySelectorAll(controls)]
    .filter((node) => !named(node)).map((node) => node.outerHTML.slice(0, 80));
  const ids = [...document.querySelectorAll("[id]")].map((node) => node.id);
  const twice = ids.filter((id, place) => ids.indexOf(id) !== place);
  const width = document.documentElement.scrollWidth;
  const wide = width > innerWidth + 1 ? [`wider than the window: ${width}`] : [];
  const titled = document.querySelectorAll("h1").length === 1 && document.documentElement.lang && document.title;
  return [...bad, ...twice.map((id) => `twice: ${id}`), ...wide, ...(titled ? [] : ["no title"])];
}"""
"""Controls without a name, identities that are there twice, pages wider than the window."""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    if chromium() is None:
        pytest.skip("there is no Chromium to open the pages in")
    one = Server(tmp_path_factory.mktemp("served") / "runs")
    covey.Client(one.address).run(name="base", **SMALL_RUN, rounds=4)
    yield one
    assert "Traceback" not in one.close()


@pytest.fixture(scope="module")
def browser():
    if chromium() is None:
        pytest.skip("there is no Chromium to open the pages in")
    with sync_playwright() as play:
        one = play.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield one
        one.close()


@contextmanager
def visiting(browser: Browser, address: str) -> Iterator[tuple[Page, list[str]]]:
    """Yield a page, and the list of what its console says; it must ask nobody but the server."""
    context = browser.new_context(viewport=DESK, base_url=address, accept_downloads=True)
    one = context.new_page()
    spoken: list[str] = []
    asked: list[str] = []
    one.on("console", lambda message: spoken.append(message.text) if message.type in ("error", "warning") else None)
    one.on("pageerror", lambda error: spoken.append(str(error)))
    one.on("request", lambda request: asked.append(request.url))
    one.set_default_timeout(1000 * PATIENCE)
    expect.set_options(timeout=1000 * PATIENCE)
    yield one, spoken
    context.close()
    assert {url for url in asked if not url.startswith((address, "data:", "blob:"))} == set()


@pytest.fixture
def page(server, browser):
    """A page of the server whose console must be clean in the end."""
    with visiting(browser, server.address) as (one, spoken):
        yield one
    assert spoken == []


def spent_by(process: int) -> float:
    """Return the processor time of one process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def computing() -> float:
    """Return the processor time of all processes that this one has started, and those that they have."""
    parents, spent = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            number, rest = path.parent.name, path.read_text().rpartition(")")[2].split()
            parents[number], spent[number] = rest[1], int(rest[11]) + int(rest[12])
    mine = {str(os.getpid())}
    while more := {number for number, parent in parents.items() if parent in mine} - mine:
        mine |= more
    return sum(spent[number] for number in mine) / os.sysconf("SC_CLK_TCK")


class Written:
    """A run whose lines are written here, so that the time of writing is known."""

    def __init__(self, server: Server, place: Path) -> None:
        base = server.folder / "base"
        place.mkdir(parents=True)
        (place / "config.json").write_bytes((base / "config.json").read_bytes())
        self._path = place / "metrics.jsonl"
        self._line = json.loads((base / "metrics.jsonl").read_text().splitlines()[0])

    def write(self, *rounds: int) -> None:
        """Write lines of rounds."""
        with self._path.open("a") as file:
            file.writelines(json.dumps({**self._line, "round": number}) + "\n" for number in rounds)


def until(page: Page, expression: str) -> None:
    """Wait until an expression holds; Playwright's own wait would need `eval`, which the page forbids."""

    def holds() -> bool:
        # Between two pages there is nothing to ask.
        with suppress(Error):
            return bool(page.evaluate(expression))
        return False

    wait_until(holds, expression, pause=0.1)


def look(page: Page, name: str) -> None:
    """Keep a picture if somebody asked for them."""
    if folder := os.environ.get("COVEY_SCREENSHOTS"):
        page.screenshot(path=f"{folder}/{name}.png", full_page=True)


def sound(page: Page, name: str) -> None:
    """Assert that a page is readable, named and not too wide: light and dark, on a desk and on a phone."""
    found: list[tuple[Any, ...]] = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for width, size in (("desk", DESK), ("phone", PHONE)):
            page.set_viewport_size(size)
            page.wait_for_timeout(80)
            look(page, f"{name}-{scheme}-{width}")
            found += [(scheme, width, fault) for fault in page.evaluate(CONTRAST) + page.evaluate(UNNAMED)]
            # Run in the page's own world by the debugger, which its policy does not concern.
            page.evaluate(axe())
            faults = page.evaluate("async () => (await axe.run()).violations")
            found += [(scheme, width, one["id"], [node["html"][:90] for node in one["nodes"]]) for one in faults]
    assert found == [], name
    page.emulate_media(color_scheme="light")
    page.set_viewport_size(DESK)


def test_the_whole_story(server, page, tmp_path):
    covey.Client(server.address).wait(covey.Client(server.address).jobs()[-1]["id"])

    # A run from the form, with the command that it stands for.
    page.goto("/new/run")
    sound(page, "new")
    page.get_by_label("method", exact=True).fill("fedprox")
    page.get_by_label("clients", exact=True).fill("20")
    page.get_by_label("rounds", exact=True).fill("4000")
    page.get_by_label("set", exact=True).fill("environment.samples=40\nlocal.epochs=3")
    command = "covey run --method fedprox --clients 20 --rounds 4000 --set environment.samples=40 --set local.epochs=3"
    expect(page.locator("#command")).to_have_text(command)
    page.get_by_role("button", name="Begin").click()

    # The curve grows while one looks.
    page.wait_for_url("**/live/fedprox-uniform-*")
    expect(page.locator(".lead")).to_have_text("fedprox, digits, uniform, mlp, 20 clients, 2 a round, seed 0, local")
    expect(page.get_by_role("link", name="Order a model of it")).to_be_visible()
    path = page.url.rpartition("/live/")[2]
    until(page, f"{ROUND} >= 3")
    points = "document.querySelector('#accuracy-chart polyline').getAttribute('points').split(' ').length"
    first = page.evaluate(points)
    until(page, f"{points} > {first}")
    until(page, "document.querySelectorAll('#mix-chart rect').length >= 20")
    until(page, "document.querySelectorAll('#class-chart rect').length === 10")
    assert page.evaluate("document.querySelectorAll('#part-chart rect').length") == 20
    expect(page.locator("#accuracy")).to_have_text(re.compile(r"\d+\.\d %"))
    expect(page.locator("#left")).to_have_text(re.compile(r"\d"))

    # Stop after the round, and resume.
    page.get_by_role("button", name="Stop after this round").click()
    expect(page.locator("#state")).to_contain_text("stopped")
    stopped = covey.Client(server.address).run_of(path)["done"]
    assert 3 <= stopped < 4000
    until(page, f"{ROUND} === {stopped}")
    expect(page.locator("#round")).to_have_text(f"{stopped} of 4,000")
    sound(page, "live")
    page.get_by_role("button", name="Resume").click()
    until(page, f"{ROUND} > {stopped}")
    page.get_by_role("button", name="Stop after this round").click()
    expect(page.locator("#state")).to_contain_text("stopped")

    # Compare two.
    page.goto("/")
    sound(page, "runs")
    page.set_viewport_size(PHONE)
    assert page.get_by_role("columnheader", name="accuracy").bounding_box()["x"] < 300
    page.set_viewport_size(DESK)
    page.get_by_label("tick base").check()
    page.get_by_label(f"tick {path}").check()
    expect(page.locator("#ticked")).to_have_text("2 ticked")
    page.get_by_role("button", name="Compare the ticked ones").click()
    until(page, "document.querySelectorAll('.js-line').length >= 2")
    expect(page.locator("h1")).to_contain_text("fedprox")
    look(page, "report")
    page.get_by_role("link", name="Back to all runs").click()
    page.wait_for_url(server.address + "/")

    # A model by sliders, downloaded and loaded.
    page.goto("/mix")
    page.get_by_label("Base run").select_option("base")
    page.get_by_role("button", name="Take it").click()
    page.get_by_label("0", exact=True).fill("60")
    page.get_by_label("3", exact=True).fill("40")
    expect(page.locator("#nearest")).to_contain_text("clients together come")
    expect(page.locator("#share-0")).to_have_text("60 %")
    sound(page, "mix")
    page.get_by_label("Rounds of fine-tuning").fill("3")
    page.get_by_role("button", name="Order this model").click()
    page.wait_for_url("**/job/*")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download the model").click()
    sound(page, "job")
    download.value.save_as(tmp_path / "model.safetensors")
    about = covey.Client(server.address).job(page.url.rpartition("/")[2])["model"]
    assert about["target"][:4] == [0.6, 0, 0, 0.4]
    made = covey.Run.open(server.folder / f"ondemand-base-{about['job'][:8]}" / "target-1").model()
    tensors = load_file(tmp_path / "model.safetensors")
    assert all((tensors[name] == value).all() for name, value in made.state_dict().items())


def test_the_keyboard_alone_begins_a_run_ticks_and_moves_a_slider(server, page):
    covey.Client(server.address).wait(covey.Client(server.address).jobs()[-1]["id"])
    page.goto("/")

    def tab_to(selector, most=120):
        for _ in range(most):
            page.keyboard.press("Tab")
            if page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
                outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
                assert outline != "none", f"nobody sees that {selector} has the focus"
                return
        raise AssertionError(f"the keyboard does not reach {selector}")

    tab_to("a.skip", 1)
    tab_to("input[name=run]")
    page.keyboard.press("Space")
    assert page.locator("input[name=run]:checked").count() == 1
    page.keyboard.press("Space")
    tab_to("#compare-button, a[href^='/live/']")
    page.goto("/new/run")
    tab_to("[name=method]")
    page.keyboard.type("fedavg")
    tab_to("[name=rounds]")
    page.keyboard.type("2")
    tab_to("button.main")
    page.keyboard.press("Enter")
    page.wait_for_url("**/live/*")
    expect(page.locator("#state")).to_contain_text("finished")
    page.goto("/mix?base=base")
    tab_to("#class-2")
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    expect(page.locator("#share-2")).to_have_text("100 %")
    expect(page.locator("#nearest")).to_contain_text("clients")
    tab_to("#order")
    page.goto("/")
    tab_to("#theme")
    page.keyboard.press("Enter")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.goto("/queue")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_a_new_run_joins_the_list_and_ticks_stay(server, page):
    client = covey.Client(server.address)
    client.wait(client.jobs()[-1]["id"])
    job = client.run(name="endless", **SMALL_RUN, rounds=100_000)
    page.goto("/")
    page.get_by_label("tick base").check()
    fresh = Written(server, server.folder / "newcomer")
    fresh.write(1)
    expect(page.locator("tr[data-run=newcomer]")).to_be_visible()
    assert page.get_by_label("tick base").is_checked()
    expect(page.locator("#ticked")).to_have_text("1 ticked")
    assert page.evaluate("performance.getEntriesByType('navigation')[0].type") == "navigate"
    shutil.rmtree(server.folder / "newcomer")
    client.cancel(job["id"])
    expect(page.locator("section[aria-labelledby=waiting]")).to_have_count(0)


def test_a_comparison_and_other_pages_are_sound(server, page):
    client = covey.Client(server.address)
    job = client.compare(["fedavg", "iid"], 1, settings={**SMALL_RUN, "rounds": 3}, name="both")
    analysis = client.analyze(settings={key: SMALL_RUN[key] for key in ("clients", "environment")}, rounds=1)
    client.wait(job["id"])
    client.wait(analysis["id"])
    page.goto("/live/both")
    until(page, "document.querySelectorAll('#accuracy-chart polyline').length === 2")
    page.get_by_label("Details of").select_option("iid/seed-0")
    until(page, "document.querySelectorAll('#mix-chart rect').length >= 10")
    sound(page, "comparison")
    for name in ("comparison", "analysis", "ondemand"):
        page.goto(f"/new/{name}")
        sound(page, f"new-{name}")
    # Long titles, with numbers that nobody wants to read in full.
    shares = [0.0123456789 * (label + 1) for label in range(10)]
    model = client.order("base", {str(label): share / sum(shares) for label, share in enumerate(shares)}, rounds=1)
    page.goto("/queue")
    expect(page.locator(f"tr[data-run='job {model['id']}'] th")).to_contain_text("0=0.0182,1=0.0364,")
    sound(page, "queue")
    client.wait(model["id"])
    page.goto(f"/live/ondemand-base-{model['id'][:8]}")
    until(page, f"{ROUND} === 1")
    assert page.locator("#accuracy-chart text").all_text_contents()[-2:] == ["1", "round"]
    sound(page, "one-round")
    page.goto(f"/job/{analysis['id']}")
    sound(page, "analysis")


@pytest.mark.filterwarnings("ignore:.*the task is regression")
def test_the_live_page_of_another_task_shows_its_main_metric(server, page):
    run = covey.run(SETTINGS, federation=regression(), out=server.folder / "amounts")
    page.goto("/live/amounts")
    score = f"{run.metrics[-1]['score']:.4g}"
    said = "document.getElementById('accuracy-chart').getAttribute('aria-label')"
    until(page, f"{said} === 'RMSE by round: RMSE {score} after round 2'")
    expect(page.locator("#accuracy")).to_have_text(score)
    expect(page.locator("#accuracy-chart-figure h2")).to_have_text("RMSE")
    # There are no classes, so nothing is said about them.
    until(page, "document.getElementById('class-chart-figure').hidden")
    until(page, "document.getElementById('mix-chart-figure').hidden")
    expect(page.get_by_role("link", name="Order a model of it")).to_have_count(0)
    sound(page, "regression")
    shutil.rmtree(run.folder)


def test_a_page_whose_run_is_removed_says_so(server, page):
    place = server.folder / "short-lived"
    Written(server, place).write(1, 2)
    page.goto("/live/short-lived")
    until(page, f"{ROUND} === 2")
    assert page.locator("#accuracy-chart text").first.text_content().endswith(" %")
    assert re.fullmatch(r"\d.* m?s", page.locator("#time-chart text").first.text_content())
    # The page has asked for all that it shows.
    until(page, "document.getElementById('mix-chart').hasChildNodes()")
    shutil.rmtree(place)
    expect(page.locator("#state")).to_contain_text("removed")
    expect(page.locator("#error")).to_have_text("Its folder is no longer there.")
    expect(page.get_by_role("button", name="Resume")).to_be_hidden()
    sound(page, "removed")


def test_the_page_about_a_thousand_runs_opens_in_under_a_second(server, browser, tmp_path):
    covey.Client(server.address).wait(covey.Client(server.address).jobs()[-1]["id"])
    base = server.folder / "base"
    for number in range(1000):
        place = tmp_path / "runs" / "many" / f"{number:04}"
        place.mkdir(parents=True)
        for name in ("config.json", "metrics.jsonl"):
            (place / name).write_bytes((base / name).read_bytes())
    fresh = Server(tmp_path / "runs")
    took, computed = [], []
    try:
        with visiting(browser, fresh.address) as (page, spoken):
            # The first time, nothing is known of any run; meanwhile the process for jobs imports what they need.
            before = spent_by(fresh.process.pid)
            for number in range(4):
                begin = computing()
                page.goto("/?text=many")
                took.append(page.evaluate("performance.getEntriesByType('navigation')[0].domComplete"))
                computed.append(computing() - begin if number else spent_by(fresh.process.pid) - before)
                assert page.locator("tr[data-run]").count() == 250
                expect(page.locator(".lead")).to_contain_text("1,000 under this folder")
                assert page.get_by_role("link", name="4", exact=True).count() == 1
            look(page, "thousand")
            assert spoken == []
    finally:
        assert "Traceback" not in fresh.close()
    print("milliseconds", json.dumps(took), "seconds computed", json.dumps(computed))
    # Processor time of the server, and later of server, browser and driver together: others change nothing in it.
    assert computed[0] < 1 and min(computed[1:]) < 1
    assert max(took) < 1000 or not at_rest()


def test_a_round_is_drawn_soon_after_its_line_is_written(server, page):
    covey.Client(server.address).wait(covey.Client(server.address).jobs()[-1]["id"])
    place = server.folder / "drawn"
    lines = Written(server, place)
    page.goto("/live/drawn")
    waits = []
    for number in range(1, 21):
        begin = time.time()
        lines.write(number)
        until(page, f"{ROUND} === {number}")
        waits.append(float(page.evaluate("document.getElementById('main').dataset.drawn")) / 1000 - begin)
    shutil.rmtree(place)
    waits.sort()
    print(f"drawn after {waits[0]:.3f} s at best, {waits[10]:.3f} s (median), {waits[-1]:.3f} s at worst")
    # On a busy machine most wait for a processor; each line is a whole pause of the server's away from the one before.
    assert 0 < waits[0] < 0.2
    assert waits[10] < 0.2 or not at_rest()


def test_a_page_goes_on_by_itself_after_the_server_was_killed(server, browser, tmp_path):
    mortal = Server(tmp_path / "runs")
    lines = Written(server, tmp_path / "runs" / "watched")
    with visiting(browser, mortal.address) as (page, spoken):
        page.goto("/live/watched")
        lines.write(1, 2, 3)
        until(page, f"{ROUND} === 3")
        mortal.kill()
        expect(page.locator("#link")).to_contain_text("trying again")
        lines.write(4, 5)
        mortal.start()
        until(page, f"{ROUND} === 5")
        expect(page.locator("#link")).to_have_text("")
        points = page.evaluate("document.querySelector('#accuracy-chart polyline').getAttribute('points').split(' ')")
        assert len(points) == len(set(points)) == 5
        assert all("ERR_" in one for one in spoken)
    assert "Traceback" not in mortal.close()
