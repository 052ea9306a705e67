"""The page of those who run a gateway, in a real browser."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

from fairsched.engines.gateway.config import ClientConfig, StoreConfig
from tests.support.adapters.gateway_scenarios import ADMIN, Fake, faked
from tests.support.adapters.loops import in_loop, until
from tests.support.engines.browser import Tab, tab

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"
CLIENTS = {name: ClientConfig() for name in ("heavy", "light", HOSTILE)}
WIDTHS = (400, 1280)
ROWS = "[...document.querySelectorAll('#clients tr')].map(row => [...row.cells].map(cell => cell.textContent))"


async def rows(page: Tab) -> dict[str, dict[str, str]]:
    """What the page says of each client."""
    heads = ("client", "wait", "longest", "why", "weight", "credit", "prompt", "output")
    return {row[0]: dict(zip(heads, row, strict=True)) for row in await page.ask(ROWS)}


async def said(page: Tab, text: str) -> None:
    """Wait until the page says this."""
    await page.until("document.querySelector('#said').textContent", lambda found: text in found)


@in_loop
async def test_an_administrator_sees_who_waits_and_owes_changes_a_weight_and_drains(tmp_path: Path) -> None:
    """By what is typed and clicked: a wrong key shows nothing; with the right one a client that was served much is seen
    to owe and to wait for that, and another to be next; a weight that is typed is in force; the drain is asked about
    and begun once.  No name is more than text, and the page is no wider than a phone or a laptop."""
    fields: dict[str, Any] = {"clients": CLIENTS, "admin": True, "quantum": 16, "window_requests": 1}
    async with faked(Fake(tokens=40), **fields) as (fake, here), tab(tmp_path) as page:
        drained: list[bool] = []
        here.gateway.drain = lambda: drained.append(True)
        await here.ask("heavy", max_tokens=50)
        fake.answers.clear()
        calls = [asyncio.ensure_future(here.ask(HOSTILE))]
        await until(lambda: here.account.window.in_flight == 1)
        calls += [asyncio.ensure_future(here.ask(name)) for name in ("heavy", "heavy", "light")]
        await until(lambda: here.account.window.waiting == 3)

        await page.load(str(here.http.url.with_path("/gateway")))
        await page.write("#key", "a guess")
        await said(page, "not one of admin_keys")
        assert await page.ask("document.querySelector('#shown').hidden")
        await page.write("#key", ADMIN)
        await page.until(f"{ROWS}.length === 3")
        told = await rows(page)
        assert [told[name]["wait"] for name in CLIENTS] == ["2", "1", "0"]
        assert told["heavy"]["why"] == "It has no credit now: clients that have some go first."
        assert told["light"]["why"] == "It is next, and waits for room at a server."
        assert int(told["heavy"]["credit"]) < 0 <= int(told["light"]["credit"])
        assert not await page.ask("document.querySelector('#store').checkVisibility()")
        for width in WIDTHS:
            assert await page.picture(tmp_path / f"page-{width}.png", width) <= width

        await page.write("[aria-label='weight of light']", "7")
        await said(page, "light has weight 7 now")
        assert here.gateway.config.clients["light"].weight == 7
        await page.click("#drain button")
        await said(page, "draining")
        assert (drained, len(page.dialogs)) == ([True], 1)
        assert await page.ask("document.title") == "fairsched gateway"
        assert page.errors == []
        fake.answers.set()
        await asyncio.gather(*calls)


@in_loop
async def test_with_a_store_the_page_says_whether_it_answers_and_that_calls_wait_for_it(tmp_path: Path) -> None:
    """Credit is what is on lease; when the store is gone and a client's lease is spent, that is why its call waits."""
    folder = tmp_path / "account"
    store = StoreConfig(folder.as_uri(), gateways=1, lease=16)
    fields: dict[str, Any] = {"clients": CLIENTS, "quantum": 16, "store": store}
    async with faked(Fake(tokens=40), **fields) as (_, here), tab(tmp_path) as page:
        await here.ask("heavy", max_tokens=50)
        await page.load(str(here.http.url.with_path("/gateway")))
        await page.write("#key", ADMIN)
        await page.until("document.querySelector('#storeup').textContent === 'answers'")
        await page.until(f"{ROWS}.some(row => row[0] === 'heavy' && Number(row[5]) < 0)")
        shutil.rmtree(folder)
        folder.write_text("no folder")
        calls = [asyncio.ensure_future(here.ask(name)) for name in ("heavy", "light")]
        await page.until("document.querySelector('#storeup').textContent === 'away'")
        await page.until(f"{ROWS}.some(row => row[3].includes('the store of the shared account is away'))")
        for width in WIDTHS:
            assert await page.picture(tmp_path / f"away-{width}.png", width) <= width
        folder.unlink()
        await asyncio.gather(*calls)
        await page.until("document.querySelector('#storeup').textContent === 'answers'")
        assert page.errors == []
