"""The page at `/` as a real browser shows it. CI fails without one; elsewhere these tests skip."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.serve import Server
from tests.browser import Browser
from tests.conftest import IN_CI
from tests.support_serving import ask, relu_file, serving, tensor

X = [[1.0, -2.0, 3.0]]

pytestmark = pytest.mark.skipif(
    not IN_CI and shutil.which("chromedriver") is None,
    reason="Chromium is not installed (Debian: apt install chromium chromium-driver)",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of two models, of which one has been asked twice."""
    files = {"relu": relu_file(), "idle": relu_file()}
    with serving(tmp_path_factory.mktemp("models"), files) as made:
        for _ in range(2):
            reply = ask(made, "POST", "/v2/models/relu/infer", {"inputs": [tensor(X)]})
            assert reply.status == 200
        yield made


@pytest.fixture(scope="module")
def browser(server: Server) -> Iterator[Browser]:
    """A browser that shows the server's page."""
    with Browser() as made:
        made.open(f"http://127.0.0.1:{server.port}/")
        yield made


def one(browser: Browser, selector: str) -> str:
    (found,) = browser.find(selector)
    return found


def test_page_shows_the_state_and_the_models_of_the_server(browser: Browser) -> None:
    assert browser.title() == "Penstock: ready"
    assert browser.text(one(browser, "#state")) == "ready"
    rows = [browser.text(row) for row in browser.find("tbody tr")]
    assert rows == ["relu 1 ready", "idle 1 ready"]


def test_plan_of_a_model_opens(browser: Browser) -> None:
    plans = [e for e in browser.find("details") if browser.text(e).startswith("plan of relu")]
    (plan,) = plans
    place = browser.find("details").index(plan) + 1
    summary = one(browser, f"details:nth-of-type({place}) > summary")
    content = one(browser, f"details:nth-of-type({place}) > pre")
    assert not browser.is_displayed(content)
    browser.click(summary)
    assert browser.is_displayed(content)
    assert "reference" in browser.text(content)


def test_last_receipts_open_with_a_trace_of_their_steps(browser: Browser) -> None:
    receipts = browser.find("details:has(.trace)")
    assert len(receipts) == 2
    assert "relu on reference" in browser.text(receipts[0])
    traces = browser.find("details .trace")
    assert not browser.is_displayed(traces[0])
    browser.click(browser.find("details:has(.trace) > summary")[0])
    assert browser.is_displayed(traces[0])
    lane = browser.rectangle(browser.find("details .lane")[0])
    bar = browser.rectangle(browser.find("details .bar")[0])
    assert lane["width"] > 100
    assert 2 <= bar["width"] <= lane["width"]
    assert lane["x"] <= bar["x"] < lane["x"] + lane["width"]
    assert "reference" in browser.text(browser.find("details:has(.trace) > pre")[0])


def test_page_keeps_to_its_own_policy_and_to_the_width_of_its_column(
    browser: Browser, tmp_path: Path
) -> None:
    assert browser.complaints() == []
    width = browser.rectangle(one(browser, "body"))["width"]
    for element in browser.find("table, pre, .lane"):
        if browser.is_displayed(element):
            assert browser.rectangle(element)["width"] <= width
    browser.picture(tmp_path / "page.png")
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")
