"""A page in a real browser: Debian's chromium without a window, by its DevTools protocol."""

import asyncio
import base64
import dataclasses
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tornado.websocket import WebSocketClientConnection, websocket_connect

CHROMIUM = shutil.which("chromium")
MISSING = "no chromium here; apt-get install chromium"
TIMEOUT = 60


@dataclasses.dataclass
class Visit:
    """What a page did: values of the expressions, console messages, addresses asked for.

    ``load_seconds``: from the start of the navigation to the end of the load event;
    ``cpu_seconds`` of it the page's main thread ran, which other work changes less.
    """

    values: list[Any]
    messages: list[str]
    requests: list[str]
    load_seconds: float
    cpu_seconds: float


def visit(
    page: Path,
    expressions: Sequence[str] = (),
    screenshot: Path | None = None,
    size: tuple[int, int] = (1280, 900),
    dark: bool = False,
    scripts: bool = True,
) -> Visit:
    """Open a file, evaluate JavaScript expressions one after the other, take a picture."""
    assert CHROMIUM is not None, MISSING
    # Chromium's helpers may write a last file while the folder is being removed.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [CHROMIUM, "--headless", "--disable-gpu", "--remote-debugging-port=0"]
        command += [f"--user-data-dir={profile}", "--no-first-run", "--hide-scrollbars"]
        command += ["--no-sandbox"] if os.getuid() == 0 else []
        with subprocess.Popen(
            [*command, "about:blank"], stderr=subprocess.PIPE, text=True
        ) as browser:
            try:
                address = _address(browser)
                run = _visit(address, page, expressions, screenshot, size, dark, scripts)
                return asyncio.run(asyncio.wait_for(run, TIMEOUT))
            finally:
                browser.terminate()
                assert browser.stderr is not None
                browser.stderr.close()


def _address(browser: subprocess.Popen) -> str:
    assert browser.stderr is not None
    said = []
    for line in browser.stderr:
        said.append(line)
        match = re.match(r"DevTools listening on (ws://\S+)", line)
        if match:
            return match[1]
    raise RuntimeError("chromium does not start: " + "".join(said))


class _Session:
    """Commands to one page, and the events that it sends."""

    def __init__(self, connection: WebSocketClientConnection) -> None:
        self.connection = connection
        self.session: str | None = None
        self.events: list[dict] = []
        self.number = 0

    async def read(self) -> dict:
        text = await self.connection.read_message()
        if text is None:
            raise RuntimeError("chromium closed the connection")
        return json.loads(text)

    async def send(self, method: str, **parameters: Any) -> dict:
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        await self.connection.write_message(json.dumps(message))
        while True:
            answer = await self.read()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    async def wait_for(self, method: str) -> None:
        while not any(event.get("method") == method for event in self.events):
            self.events.append(await self.read())

    async def evaluate(self, expression: str) -> Any:
        result = await self.send(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")


async def _visit(
    address: str,
    page: Path,
    expressions: Sequence[str],
    screenshot: Path | None,
    size: tuple[int, int],
    dark: bool,
    scripts: bool,
) -> Visit:
    session = _Session(await websocket_connect(address, max_message_size=1 << 28))
    target = await session.send("Target.createTarget", url="about:blank")
    attached = await session.send(
        "Target.attachToTarget", targetId=target["targetId"], flatten=True
    )
    session.session = attached["sessionId"]
    for domain in ("Page", "Runtime", "Log", "Network"):
        await session.send(f"{domain}.enable")
    width, height = size
    await session.send(
        "Emulation.setDeviceMetricsOverride",
        width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
    )  # fmt: skip
    scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    await session.send("Emulation.setEmulatedMedia", features=scheme)
    await session.send("Emulation.setScriptExecutionDisabled", value=not scripts)
    await session.send("Performance.enable", timeDomain="threadTicks")
    await session.send("Page.navigate", url=page.resolve().as_uri())
    await session.wait_for("Page.loadEventFired")
    measured = await session.send("Performance.getMetrics")
    metrics = {metric["name"]: metric["value"] for metric in measured["metrics"]}
    values = [await session.evaluate(expression) for expression in expressions]
    timing = "performance.getEntriesByType('navigation')[0].loadEventEnd / 1000"
    seconds = await session.evaluate(timing) if scripts else 0.0
    if screenshot is not None:
        picture = await session.send("Page.captureScreenshot", format="png")
        screenshot.write_bytes(base64.b64decode(picture["data"]))
    await session.send("Runtime.evaluate", expression="0")  # events so far have come
    session.connection.close()
    messages, requests = _messages(session.events), _requests(session.events)
    return Visit(values, messages, requests, seconds, metrics["TaskDuration"])


def _messages(events: Sequence[dict]) -> list[str]:
    """Errors and warnings of the console, uncaught exceptions, and what the browser logged."""
    found = []
    for event in events:
        parameters = event.get("params", {})
        if event.get("method") == "Runtime.consoleAPICalled":
            found.append(f"{parameters['type']}: {parameters['args']}")
        elif event.get("method") == "Runtime.exceptionThrown":
            found.append(f"exception: {parameters['exceptionDetails']}")
        elif event.get("method") == "Log.entryAdded":
            found.append(f"{parameters['entry']['level']}: {parameters['entry']['text']}")
    return found


def _requests(events: Sequence[dict]) -> list[str]:
    return [
        event["params"]["request"]["url"]
        for event in events
        if event.get("method") == "Network.requestWillBeSent"
    ]
