"""Takes pictures of the built pages, on a desktop and on a phone, into site/look: python docs/look.py

Needs a Chromium on PATH; without one it says so and does nothing.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SITE = Path(__file__).parents[1] / "site"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WINDOWS = {"desktop": "1400,2000", "phone": "400,2400"}
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=4000")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


def main() -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        print(f"skipped: none of {', '.join(BROWSERS)} is on PATH (Debian: apt install chromium)")
        return
    folder = SITE / "look"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    pages = sorted(page for page in SITE.rglob("index.html"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(SITE)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for page in pages:
        path = page.parent.relative_to(SITE).as_posix()
        for name, size in WINDOWS.items():
            picture = folder / f"{path.replace('/', '-').strip('.') or 'start'}-{name}.png"
            address = f"http://127.0.0.1:{server.server_port}/{path}/"
            command = [browser, *OPTIONS, f"--window-size={size}", f"--screenshot={picture}", address]
            subprocess.run(command, check=True, capture_output=True, timeout=120)
    server.shutdown()
    print(f"{len(WINDOWS) * len(pages)} pictures in {folder}")


if __name__ == "__main__":
    main()
