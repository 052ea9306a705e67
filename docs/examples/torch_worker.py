"""The calls that a serving loop makes to a torch worker."""

from fairsched.engines.serving import Sampling
from fairsched.engines.torch import SIZES, Llama, TorchExecutor
from fairsched.model.decision import StepPlan
from fairsched.model.events import Admitted, Arrived
from fairsched.model.request import Prompt, Request

executor = TorchExecutor(Llama.random(SIZES["tiny"], seed=0), 4096, page_tokens=16, running_max=8)
executor.submit(0, [17, 4, 99], Sampling(temperature=0.8, top_k=50, seed=1))
executor.follow([Arrived(0, 0, Request(0, 0, 0, Prompt(3), 5)), Admitted(0, 0, 0, 0, 3, 0, 5)])
first = executor.execute(StepPlan(chunks=((0, 3),)))  # {request: token}
second = executor.execute(StepPlan())
executor.close()
