"""A report that a headless Chromium has opened, at the width of a desk or of a phone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Page:
    """A report that a browser of some width has opened."""

    def __init__(self, chromium: Any, path: Path, width: int):
        self.chromium = chromium
        self.read_logs()
        self.width = width
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        chromium.get(path.as_uri())
        self.drawn()

    def command(self, name: str, **given: Any) -> Any:
        return self.chromium.execute_cdp_cmd(name, given)

    def js(self, script: str, *given: Any) -> Any:
        return self.chromium.execute_script(script, *given)

    def read_logs(self) -> tuple[list[Any], list[str]]:
        """Console messages, and the addresses of all requests, since the last call."""
        console = self.chromium.get_log("browser")
        sent = [json.loads(e["message"])["message"] for e in self.chromium.get_log("performance")]
        urls = [m["params"]["request"]["url"] for m in sent if m["method"] == "Network.requestWillBeSent"]
        return console, urls

    def drawn(self) -> None:
        """Wait until the browser has drawn what has changed."""
        self.js("return new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def center(self, selector: str, across: float = 0.5, down: float = 0.5) -> tuple[float, float]:
        """A point of an element that is scrolled into view, in pixels of the window."""
        self.js("document.querySelector(arguments[0]).scrollIntoView({block: 'center', behavior: 'instant'})", selector)
        box = self.js("return document.querySelector(arguments[0]).getBoundingClientRect().toJSON()", selector)
        return box["x"] + across * box["width"], box["y"] + down * box["height"]

    def mouse(self, kind: str, at: tuple[float, float], **more: Any) -> None:
        self.command("Input.dispatchMouseEvent", type=kind, x=at[0], y=at[1], **more)

    def click(self, selector: str) -> None:
        at = self.center(selector)
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.mouse(kind, at, button="left" if kind != "mouseMoved" else "none", clickCount=1)

    def shown(self) -> tuple[float, float]:
        """From when to when the memory chart shows the step."""
        return self.js("const d = document.querySelector('.memory').dataset; return [Number(d.from), Number(d.to)]")

    def axis(self) -> str:
        return self.js("return document.querySelector('.memory .time-axis').textContent")

    def tooltip(self) -> str:
        return self.js("const t = document.getElementById('tooltip'); return t.hidden ? '' : t.innerText")
