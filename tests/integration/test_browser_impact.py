"""The impact panel in a browser."""

import pytest

from covey.page.run_report import report
from tests.browsers import chromium
from tests.page.test_impact_panel import compared  # noqa: F401 (a fixture)
from tests.page.test_run_report import DRAWN, Browser


def test_a_browser_draws_them(compared, tmp_path, tmp_path_factory):
    program = chromium()
    if program is None:
        pytest.skip("there is no Chromium to open the page in")
    browser = Browser(program, tmp_path_factory.mktemp("profile"))
    try:
        browser.open(report([compared], tmp_path / "page.html"))
        assert all(count > 0 for count in browser.ask(DRAWN))
        assert browser.ask("document.querySelectorAll('#figure-impact .heatmaplayer image').length") == 2
        assert browser.ask("document.querySelectorAll('#figure-client-loss-gap .js-line').length") >= 2
        assert browser.complaints() == []
        assert {url.partition(":")[0] for url in browser.requests()} <= {"file", "data", "blob"}
    finally:
        browser.close()
