"""A real browser, driven over its debugging protocol: a page is loaded, typed into, clicked, asked and pictured."""

import asyncio
import base64
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

START_SECONDS = 120
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")


def chromium() -> str:
    """The browser's program; the test is skipped where there is none."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("there is no browser: Debian's chromium is one")
    return found


class Tab:
    """A page.  `errors` are those of its scripts and its policy, and `dialogs` what it asked and was told yes."""

    def __init__(self, line: aiohttp.ClientWebSocketResponse) -> None:
        self.errors: list[str] = []
        self.dialogs: list[str] = []
        self._line = line
        self._session: str | None = None
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._background: set[asyncio.Task[Any]] = set()

    async def hear(self) -> None:
        """Take what the browser says, until it ends."""
        async for message in self._line:
            said = message.json()
            if (answer := self._answers.pop(said.get("id", 0), None)) is not None:
                answer.set_result(said)
            match said.get("method"):
                case "Page.javascriptDialogOpening":
                    self.dialogs.append(said["params"]["message"])
                    task = asyncio.ensure_future(self.tell("Page.handleJavaScriptDialog", accept=True))
                    self._background.add(task)
                    task.add_done_callback(self._background.discard)
                case "Runtime.exceptionThrown":
                    self.errors.append(str(said["params"]["exceptionDetails"]))
                case "Log.entryAdded" if said["params"]["entry"]["source"] in ("security", "javascript"):
                    self.errors.append(said["params"]["entry"]["text"])

    async def tell(self, method: str, **parameters: Any) -> Any:
        """Tell the browser to do something, and return what it answers."""
        number = len(self._answers) + 1
        while number in self._answers:
            number += 1
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        session = {} if self._session is None else {"sessionId": self._session}
        await self._line.send_json({"id": number, "method": method, "params": parameters, **session})
        said = await answer
        assert "error" not in said, (method, said)
        return said["result"]

    async def begin(self) -> None:
        """Open the page."""
        target = await self.tell("Target.createTarget", url="about:blank")
        attached = await self.tell("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            await self.tell(f"{domain}.enable")

    async def load(self, url: str) -> None:
        """Go to an address."""
        await self.tell("Page.navigate", url=url)
        await self.until("document.readyState === 'complete'")

    async def ask(self, script: str) -> Any:
        """The value of an expression in the page."""
        said = await self.tell("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in said, (script, said)
        return said["result"].get("value")

    async def until(self, script: str, over: Callable[[Any], object] = bool) -> Any:
        """Wait until the value of an expression is as it should be, and return it."""
        async with asyncio.timeout(START_SECONDS):
            while not over(found := await self.ask(script)):
                await asyncio.sleep(0.02)
        return found

    async def click(self, selector: str) -> None:
        """Click where an element is, as a pointer does."""
        await self.ask(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center'}})")
        box = await self.ask(
            f"(() => {{ const box = document.querySelector({selector!r}).getBoundingClientRect();"
            " return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        where = {"x": box[0], "y": box[1], "button": "left", "clickCount": 1}
        for event in ("mousePressed", "mouseReleased"):
            await self.tell("Input.dispatchMouseEvent", type=event, **where)

    async def write(self, selector: str, text: str) -> None:
        """Put a text in place of what stands in a field, and press enter."""
        await self.click(selector)
        await self.ask(f"document.querySelector({selector!r}).select()")
        await self.tell("Input.insertText", text=text)
        key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
        for event in ("keyDown", "keyUp"):
            await self.tell("Input.dispatchKeyEvent", type=event, **key)

    async def picture(self, path: Path, width: int) -> int:
        """Write a picture of the whole page in a window of that width; returns the width that the page needs."""
        await self.tell(
            "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False
        )
        needed = await self.ask("document.documentElement.scrollWidth")
        shown = await self.tell("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shown["data"]))
        return int(needed)


@asynccontextmanager
async def tab(folder: Path) -> AsyncIterator[Tab]:
    """A page in a browser of its own."""
    options = [*FLAGS, f"--user-data-dir={folder / 'profile'}", "--remote-debugging-port=0", "about:blank"]
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(chromium(), *options, stdout=quiet, stderr=quiet)
    try:
        line = folder / "profile/DevToolsActivePort"
        async with asyncio.timeout(START_SECONDS):
            while not (line.exists() and line.read_text().count("\n")):
                if process.returncode is not None:
                    pytest.skip("the browser does not run here")
                await asyncio.sleep(0.02)
        port, path = line.read_text().split("\n")[:2]
        async with (
            aiohttp.ClientSession() as http,
            http.ws_connect(f"ws://127.0.0.1:{port}{path}", max_msg_size=1 << 28) as socket,
        ):
            opened = Tab(socket)
            hearing = asyncio.ensure_future(opened.hear())
            await opened.begin()
            yield opened
            hearing.cancel()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
