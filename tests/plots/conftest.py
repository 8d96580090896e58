"""Chromium, for what only a browser can tell; it starts once."""

from __future__ import annotations

import os
import shutil

import pytest

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--window-size=1300,1000",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # no network
)


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """Headless Chromium without a network, driven by Selenium; skips where it is not installed, but where it must be."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        message = "Chromium and its driver are not installed (Debian: chromium, chromium-driver)"
        if os.environ.get("HEADSCOPE_REQUIRE_CHROMIUM"):
            pytest.fail(f"{message}, and they are required here")
        pytest.skip(message)
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    # With a driver given by path nothing is looked for or downloaded.
    running = webdriver.Chrome(options=options, service=Service(driver))
    yield running
    running.quit()
