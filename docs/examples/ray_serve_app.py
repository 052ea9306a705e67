"""A Ray Serve deployment whose clients have weights."""

import asyncio

from ray import serve

from fairsched.integrations.ray_serve import report_usage, request_router_config, status


@serve.deployment(
    num_replicas=3,
    max_ongoing_requests=8,
    ray_actor_options={"num_cpus": 0.1},
    request_router_config=request_router_config(window_tokens=4_000, weights={"gold": 4}),
)
class Model:
    """Answer with the prompt, in capitals."""

    async def __call__(self, prompt: str, client: str, max_output_tokens: int) -> str:
        await asyncio.sleep(0.05)  # The model computes.
        await report_usage(output_tokens=7)
        return prompt.upper()


handle = serve.run(Model.bind(), route_prefix=None)
answers = [handle.remote("hello", client=name, max_output_tokens=16) for name in ("gold", "free")]
print([answer.result() for answer in answers])
print(status("Model"))
