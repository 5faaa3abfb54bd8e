"""How long `fedkeel ui` takes until something is on the screen, with many runs: python benchmarks/paint.py [RUNS]

Makes runs by copying one, starts the page as a user does, and asks Chromium when it painted first. Three cases: the
server was just started; it has read all runs; one of them has changed since.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from fedkeel import api, config

PAINT = """() => new Promise((done) => new PerformanceObserver((list, observer) => {
  for (const entry of list.getEntries()) if (entry.name === "first-contentful-paint") {
    observer.disconnect();
    done(entry.startTime);
  }
}).observe({type: "paint", buffered: true}))"""


def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "runs"
        table = {"model": {"name": "logistic"}, "partition": {"clients": 20}, "run": {"executor": "serial"}}
        one = config.expand({**table, "training": {"rounds": 50, "participation": 0.2, "steps": 2}}, [])[0]
        api.run(one, folder / "0000")
        for at in range(1, count):
            shutil.copytree(folder / "0000", folder / f"{at:04d}")
        command = [sys.executable, "-m", "fedkeel", "ui", str(folder), "--port", "0"]
        began = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, sync_playwright() as playwright:
            try:
                assert server.stdout is not None
                address = server.stdout.readline().strip()
                print(f"{count:,} runs; the address is printed after {time.perf_counter() - began:.2f} s")
                chromium = shutil.which("chromium") or shutil.which("google-chrome")
                browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
                page = browser.new_page()
                show("server just started", page, address)
                page.get_by_text(re.compile("as of")).wait_for(timeout=120_000)
                print(f"  all read {time.perf_counter() - began:.2f} s after the start of the server")
                for _ in range(3):
                    show("all runs read before", page, address)
                (folder / "0007" / "run.sqlite").touch()
                show("one run has changed", page, address)
                show("filtered, sorted", page, f"{address}?q=00&sort=best")
                browser.close()
            finally:
                server.terminate()


def show(case: str, page: Page, address: str) -> None:
    page.goto(address)
    paint = page.evaluate(PAINT)
    answer = page.evaluate("performance.getEntriesByType('navigation')[0].responseEnd")
    loaded = page.evaluate("performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd")
    print(f"  {case}: first paint {paint:.0f} ms (answer {answer:.0f} ms, page ready {loaded:.0f} ms)")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
