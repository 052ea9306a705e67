"""What a gateway tells Prometheus, what it gives servers that order calls themselves, and shares of organisations."""

from functools import partial

from fairsched.engines.gateway.account.account import CLIENTS_SHOWN
from fairsched.engines.gateway.config import ClientConfig
from tests.engines.serving.test_metrics import Sample, sample, samples_of
from tests.support.adapters.gateway_scenarios import ADMIN, Fake, faked, world
from tests.support.adapters.http import Caller, served
from tests.support.adapters.loops import in_loop

value = partial(sample, worker="gateway")


async def scrape(http: Caller) -> dict[Sample, float]:
    """Every sample of the gateway."""
    return samples_of((await http.get("/metrics", headers={"authorization": f"Bearer {ADMIN}"})).text)


@in_loop
async def test_metrics_are_what_happened() -> None:
    """Tokens, ends, the gap and its bound are those of the status; without being asked for there are none."""
    fake = Fake(tokens=5)
    clients = {"a": ClientConfig(), "b": ClientConfig(weight=2)}
    async with served(fake.app) as url, world(url, metrics=True, clients=clients) as here:
        for client in "aab":
            await here.ask(client, stream=True)
        await here.ask("b", max_tokens=5000)
        await here.emptied()
        samples, said = await scrape(here.http), here.status
        assert value(samples, "client_service_tokens_total", client="a", phase="decode") == 10
        assert value(samples, "client_service_tokens_total", client="b", phase="prefill") == 7
        for outcome, count in said["outcomes"].items():
            assert value(samples, "requests_total", outcome=outcome) == count
        bound = said["promise"]["gap_bound"]
        assert value(samples, "service_gap_bound_tokens") == bound / 2
        assert value(samples, "bound_violations_total") == 0
        assert value(samples, "window_free_tokens") == 1000
        assert value(samples, "server_up", server=url) == 1
        assert value(samples, "decision_seconds_count") >= 3
    async with served(fake.app) as url, world(url) as here:
        assert (await here.http.get("/metrics")).status == 404


@in_loop
async def test_labels_are_bounded_and_no_series_falls() -> None:
    """Of many strangers the most served have names, the others share one; sums are kept from scrape to scrape."""
    async with faked(Fake(tokens=3), metrics=True) as (_, here):
        before: dict[Sample, float] = {}
        for start in (0, 15):
            for i in range(start, start + 15):
                for _ in range(1 + i % 3):
                    await here.ask(f"stranger{i}")
            samples = await scrape(here.http)
            tokens = {key: each for key, each in samples.items() if "service_tokens" in key[0]}
            names = {dict(labels)["client"] for _, labels in tokens}
            assert len(names) <= CLIENTS_SHOWN + 1
            both = before.keys() & tokens.keys()
            assert all(tokens[key] >= before[key] for key in both)
            before = tokens
        assert "other" in names
