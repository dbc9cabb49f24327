"""The page in a real browser, on a real server: it streams a prompt and shows the rings live.

The browser is driven through chromedriver, whose protocol (W3C WebDriver) is JSON over HTTP.
EGRESS_SCREENSHOT=docs/page.png keeps the picture.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server_kit import Server, free_port
from support import SLOWNESS, wait_until

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="chromium and chromedriver are not installed"),
]

FLAGS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync
    --disable-background-networking --disable-component-update --disable-dev-shm-usage
    --window-size=1280,900"""


class Browser:
    """One window.

    Args:
        port: where its chromedriver listens.
        profile: a fresh directory for the browser.
    """

    def __init__(self, port: int, profile: Path) -> None:
        self._url = f"http://127.0.0.1:{port}"
        wait_until(self._is_there, 20, "chromedriver")
        options = {"binary": CHROMIUM, "args": [*FLAGS.split(), f"--user-data-dir={profile}"]}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options}
        made = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._url += f"/session/{made['sessionId']}"

    def _is_there(self) -> bool:
        try:
            return bool(self._ask("GET", "/status")["ready"])
        except urllib.error.URLError:
            return False

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self._url + path, data, {"Content-Type": "application/json"}, method=method
        )
        with urllib.request.urlopen(request, timeout=60 * SLOWNESS) as answer:
            return json.load(answer)["value"]

    def open(self, url: str) -> None:
        """Load a page and wait until it is loaded."""
        self._ask("POST", "/url", {"url": url})

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression in the page."""
        return self._ask("POST", "/execute/sync", {"script": f"return {script}", "args": []})

    def click(self, selector: str) -> None:
        """Click on an element as a user does."""
        found = self._ask("POST", "/element", {"using": "css selector", "value": selector})
        self._ask("POST", f"/element/{next(iter(found.values()))}/click", {})

    def screenshot(self) -> bytes:
        """The window as PNG."""
        return base64.b64decode(self._ask("GET", "/screenshot"))

    def close(self) -> None:
        """Close the window and end the browser."""
        self._ask("DELETE", "")


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    port = free_port()
    driver = subprocess.Popen(
        [str(DRIVER), f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        window = Browser(port, tmp_path / "profile")
        try:
            yield window
        finally:
            window.close()
    finally:
        driver.terminate()
        driver.wait()


def test_the_page_streams_a_prompt_and_shows_the_rings_live(browser: Browser, tmp_path: Path) -> None:
    runtime = tmp_path / "run"
    runtime.mkdir()
    with Server("--step-ms", "10", runtime=runtime) as server:
        server.wait_ready()
        browser.open(server.url)
        wait_until(lambda: browser.run("$('health').textContent") == "ready", 20, "the badge")
        assert browser.run("$('model').textContent") == "egress-ngram"
        # 2 shards x 2 workers, a ring each way; every process reports its own within about a second.
        wait_until(lambda: browser.run("$('rings').rows.length") == 8, 20, "rows of 8 rings")

        # Somebody else's request, which no end token ends, so that there is something to see for sure.
        params = {"max_new_tokens": 8000, "ignore_eos": True}
        body = json.dumps({"text": "x", "stream": True, "sampling_params": params}).encode()
        with urllib.request.urlopen(f"{server.url}/generate", body, timeout=60 * SLOWNESS):
            browser.run("$('tokens').value = 400")
            browser.click("#go")
            wait_until(lambda: len(browser.run("$('output').textContent")) > 20, 20, "text")
            wait_until(lambda: int(browser.run("$('running').textContent")) > 0, 20, "a request running")
            wait_until(lambda: int(browser.run("$('rate').textContent")) > 0, 20, "a rate")
            used = browser.run("$('rings').textContent")
            wait_until(lambda: browser.run("$('rings').textContent") != used, 20, "the rings' change")
            Path(os.environ.get("EGRESS_SCREENSHOT", tmp_path / "page.png")).write_bytes(browser.screenshot())
        wait_until(lambda: "ended by" in browser.run("$('result').textContent"), 60, "the end")
        assert browser.run("$('result').className") == "quiet"


def test_the_page_stops_a_stream(browser: Browser, tmp_path: Path) -> None:
    runtime = tmp_path / "run"
    runtime.mkdir()
    endless = ("--engine", "replay", "--engine-option", "loops=0", "--step-ms", "20")
    with Server(*endless, runtime=runtime, shards=1, workers=1) as server:
        server.wait_ready()
        browser.open(server.url)
        browser.run("$('tokens').value = 8000")
        browser.click("#go")
        wait_until(lambda: len(browser.run("$('output').textContent")) > 20, 20, "text")
        early = browser.run("$('output').textContent")
        wait_until(lambda: len(browser.run("$('output').textContent")) > len(early), 20, "more text")
        assert browser.run("$('output').textContent").startswith(early)
        browser.click("#stop")
        wait_until(lambda: "stopped after" in browser.run("$('result').textContent"), 20, "the stop")
        wait_until(lambda: server.metric("egress_requests_running") == 0, 20, "the abort in the shard")
        assert server.metric("egress_aborts_total") == 1


def test_the_page_says_what_is_wrong(browser: Browser, tmp_path: Path) -> None:
    runtime = tmp_path / "run"
    runtime.mkdir()
    with Server("--api-key", "sesame", runtime=runtime, shards=1, workers=1) as server:
        server.wait_ready()
        browser.open(server.url)
        wait_until(lambda: not browser.run("$('key-label').hidden"), 20, "the question for the key")
        browser.click("#go")
        wait_until(lambda: "API key" in browser.run("$('result').textContent"), 20, "the refusal")
        assert browser.run("$('result').className") == "bad"
        browser.run("($('key').value = 'sesame', $('key').dispatchEvent(new Event('change')))")
        browser.run("$('tokens').value = 99999")
        browser.click("#go")
        wait_until(lambda: "max_new_tokens" in browser.run("$('result').textContent"), 20, "the 400")
        browser.run("$('tokens').value = 5")
        browser.click("#go")
        wait_until(lambda: "ended by" in browser.run("$('result').textContent"), 20, "the end")
