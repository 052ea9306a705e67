"""A worker that computes: each step's plan as one flat batch through a Llama model with paged keys and values.

It decides nothing and counts nothing: the worker's events say which request holds memory, the plan says what is
computed.
"""

from collections.abc import Sequence
from pathlib import Path

import attrs
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fairsched.engines.serving import Sampling
from fairsched.engines.torch.attention import KVCache, gather, on_device
from fairsched.engines.torch.checkpoint import load_checkpoint
from fairsched.engines.torch.cuda import FA2_PAGE_TOKENS, DecodeGraphs, reads_pages, varlen
from fairsched.engines.torch.model import SIZES, Llama, babbling
from fairsched.engines.torch.pages import FlatBatch, Ints, PagePool, PrefixPages, Seats, pages_needed
from fairsched.engines.torch.random_bits import Keys, bits, key_of, keys_of
from fairsched.model import events as ev
from fairsched.model.decision import StepPlan
from fairsched.model.request import Prompt

WAITS = -1
"""The seat of a request that is not running."""


class _Sequence:
    """A request's tokens, and its seat while it runs."""

    __slots__ = ("context", "generated", "id", "kv", "prompt", "prompt_ids", "sampling", "seat")

    def __init__(self, request_id: int, prompt_ids: Ints, sampling: Sampling, generated: list[int]) -> None:
        self.id = request_id
        self.prompt_ids = prompt_ids
        self.prompt = Prompt(len(prompt_ids))
        self.sampling = sampling
        self.generated = generated
        self.context = prompt_ids
        self.kv = b""
        self.seat = WAITS


class TorchExecutor:
    """`engines.serving.executor.Executor` on one device; see there for the order of calls.

    `kv_capacity_tokens` is the worker's capacity and `running_max` the most requests that it runs at once; prompts with
    keys have blocks of `page_tokens`.  Keys name tokens: prompts with equal keys have equal tokens there.

    On CUDA in half precision, with pages that FlashAttention reads in place (`engines.torch.cuda`), steps that only
    decode are replayed as CUDA graphs, which are captured here.
    """

    def __init__(self, model: Llama, kv_capacity_tokens: int, *, page_tokens: int = 16, running_max: int = 256) -> None:
        pages = pages_needed(kv_capacity_tokens, page_tokens, running_max)
        self.model = model
        self.page_tokens = page_tokens
        self.pool = PagePool(pages)
        self.prefixes = PrefixPages(self.pool)
        self.seats = Seats(running_max, page_tokens, self.pool)
        in_place = reads_pages(model.device, model.dtype, page_tokens)
        # With graphs one page more, for the requests that pad a batch.
        self.cache = KVCache(
            model.config, pages + in_place, page_tokens, model.device, model.dtype, by_head=not in_place
        )
        self._attend = varlen if in_place else gather
        self._graphs: DecodeGraphs | None = None
        if in_place:
            with torch.inference_mode():
                self._graphs = DecodeGraphs(
                    model,
                    self.cache,
                    running_max=running_max,
                    context_tokens_max=kv_capacity_tokens,
                    scratch_page=pages,
                )
        self.sequences: dict[int, _Sequence] = {}
        self._decoding: dict[int, _Sequence] = {}

    # --- what happens to requests -----------------------------------------------------------------------------------

    def submit(
        self, request_id: int, prompt_ids: Sequence[int], sampling: Sampling, generated: Sequence[int] = ()
    ) -> None:
        ids = np.array(prompt_ids, dtype=np.int64)
        vocab = self.model.config.vocab_size
        every = np.concatenate((ids, np.array(generated, dtype=np.int64)))
        wrong = every[(every < 0) | (every >= vocab)]
        if len(wrong):
            raise ValueError(f"request {request_id}: token {wrong[0]} is not in the vocabulary of {vocab}")
        if not len(ids):
            raise ValueError(f"request {request_id}: a prompt has at least one token")
        self.sequences[request_id] = _Sequence(request_id, ids, sampling, list(generated))

    def follow(self, events: Sequence[ev.Event]) -> None:
        came: dict[int, int] = {}
        for event in events:
            match event:
                case ev.Arrived():
                    self._arrived(event)
                case ev.Admitted():
                    self._admitted(self.sequences[event.request_id])
                    if self.sequences[event.request_id].kv:
                        came[event.request_id] = event.extend_tokens
                case ev.Settled() if event.request_id in came:
                    came[event.request_id] = event.extend_tokens
                case ev.Cached():
                    self._cached(event)
                case ev.Evicted():
                    self.prefixes.evict(event.prompt, event.keep_blocks, event.blocks)
                case ev.Paused() | ev.Resumed():
                    self._pauses(event)
                case ev.Preempted():
                    self._leave(self.sequences[event.request_id])
                case ev.Finished() | ev.Cancelled() | ev.Rejected() | ev.Migrated():
                    self._ended(event.request_id)
                case _:
                    pass
        # After the evictions, which make room for it.
        for request_id, extend_tokens in came.items():
            self._restore(self.sequences[request_id], extend_tokens)

    def _arrived(self, event: ev.Arrived) -> None:
        request, sequence = event.request, self.sequences[event.request.id]
        if request.prompt.tokens != len(sequence.prompt_ids):
            raise ValueError(
                f"request {request.id}: {len(sequence.prompt_ids)} tokens were submitted "
                f"and its prompt has {request.prompt.tokens}"
            )
        if request.prompt.keys and request.prompt.block_tokens != self.page_tokens:
            raise ValueError(
                f"request {request.id}: its prompt has blocks of {request.prompt.block_tokens} tokens, "
                f"and pages have {self.page_tokens}"
            )
        sequence.prompt = request.prompt

    def _admitted(self, sequence: _Sequence) -> None:
        """Share with the request what is cached: the map knows it exactly, where a plan may have been mistaken."""
        prompt, sampling = sequence.prompt, sequence.sampling
        seat = self.seats.sit(self.prefixes.match(prompt, prompt.reusable_blocks))
        self.seats.temperature[seat] = sampling.temperature
        self.seats.top_k[seat] = sampling.top_k
        self.seats.key[seat] = sampling_key(
            sampling.seed, sequence.id if sampling.variant is None else sampling.variant
        )
        sequence.seat = seat
        sequence.context = np.concatenate((sequence.prompt_ids, np.array(sequence.generated, dtype=np.int64)))

    def _restore(self, sequence: _Sequence, extend_tokens: int) -> None:
        """Restore of the KV that came along what is not cached and not planned to be computed."""
        first = int(self.seats.computed[sequence.seat])
        last = min(len(sequence.context) - extend_tokens, len(sequence.kv) // self.cache.token_bytes)
        if last > first:
            self.cache.restore(self.seats.bring(sequence.seat, last - first), sequence.kv, first)
        sequence.kv = b""

    def export_kv(self, request_id: int) -> bytes:
        """See `engines.serving.executor.MovesKV`."""
        sequence = self.sequences[request_id]
        seat = sequence.seat
        if seat == WAITS and sequence.kv:
            return sequence.kv
        if seat == WAITS:
            raise ValueError(f"request {request_id}: it does not run, and has no KV here")
        return self.cache.export(self.seats.slots(seat))

    def import_kv(self, request_id: int, kv: bytes) -> None:
        """See `engines.serving.executor.MovesKV`."""
        tokens, rest = divmod(len(kv), self.cache.token_bytes)
        sequence = self.sequences[request_id]
        most = len(sequence.prompt_ids) + len(sequence.generated) - 1
        if rest or tokens > most:
            raise ValueError(
                f"request {request_id}: {len(kv)} bytes of KV came, and a token has {self.cache.token_bytes} here, "
                f"of which at most {most} can be used"
            )
        sequence.kv = kv

    def _cached(self, event: ev.Cached) -> None:
        seat = self.sequences[event.owner].seat
        own = self.seats.table[seat, : event.blocks].copy()
        self.seats.replace(seat, self.prefixes.cache(event.prompt, own))

    def _pauses(self, event: ev.Paused | ev.Resumed) -> None:
        """Keep the request's seat and pages while it decodes no more, or let it decode again."""
        if isinstance(event, ev.Paused):
            del self._decoding[event.request_id]
        else:
            self._decoding[event.request_id] = self.sequences[event.request_id]

    def _leave(self, sequence: _Sequence) -> None:
        if sequence.seat != WAITS:
            self.seats.leave(sequence.seat)
            self._decoding.pop(sequence.id, None)
            sequence.seat = WAITS

    def _ended(self, request_id: int) -> None:
        sequence = self.sequences.pop(request_id, None)
        if sequence is not None:
            self._leave(sequence)

    # --- computing --------------------------------------------------------------------------------------------------

    def execute(self, plan: StepPlan) -> dict[int, int]:
        decoding = list(self._decoding.values()) if plan.decode else []
        decode = np.array([sequence.seat for sequence in decoding], dtype=np.int64)
        if len(decode) > 1:
            order = np.argsort(self.seats.computed[decode], kind="stable")
            decode = decode[order]
            decoding = [decoding[i] for i in order.tolist()]
        chunks: list[tuple[int, Ints]] = []
        complete: list[_Sequence] = []
        rows, row = list(range(len(decode))), len(decode)
        for request_id, tokens in plan.chunks:
            sequence = self.sequences[request_id]
            chunks.append((sequence.seat, self._chunk(sequence, tokens)))
            row += tokens
            if self.seats.computed[sequence.seat] + tokens == len(sequence.context):
                complete.append(sequence)
                rows.append(row - 1)
        if not row:
            return {}
        produced = decoding + complete
        seats = np.array([sequence.seat for sequence in produced], dtype=np.int64)
        tokens_out = self._compute(self.seats.batch(decode, chunks), np.array(rows, dtype=np.int64), seats)
        self.seats.commit(decode, chunks)
        self.seats.next_id[seats] = tokens_out
        for sequence, token in zip(produced, tokens_out, strict=True):
            sequence.generated.append(token)
        for sequence in complete:
            self._decoding[sequence.id] = sequence
        return dict(zip([sequence.id for sequence in produced], tokens_out, strict=True))

    def _chunk(self, sequence: _Sequence, tokens: int) -> Ints:
        if sequence.seat == WAITS:
            raise ValueError(f"request {sequence.id}: a chunk of {tokens} tokens, and it does not run")
        start = int(self.seats.computed[sequence.seat])
        left = len(sequence.context) - start
        if not 1 <= tokens <= left:
            raise ValueError(f"request {sequence.id}: a chunk of {tokens} tokens, and {left} are left")
        return sequence.context[start : start + tokens]

    @torch.inference_mode()
    def _compute(self, batch: FlatBatch, rows: Ints, seats: Ints) -> list[int]:
        """Return the next token of the requests in `seats`, whose last tokens are at `rows` of the batch."""
        model, device = self.model, self.model.device
        if self._graphs is not None and batch.decoding == len(batch.ids):
            logits = self._graphs.forward(batch)
        else:
            logits = model.forward(
                on_device(batch.ids, device),
                on_device(batch.positions, device),
                self._attend(self.cache, batch, model.dtype),
                None if len(rows) == len(batch.ids) else on_device(rows, device),
            )
        state = self.seats
        # The token that comes out of position p stands at p + 1.
        positions = batch.positions[rows] + 1
        tokens: list[int] = sample(
            logits, state.temperature[seats], state.top_k[seats], state.key[seats], positions
        ).tolist()
        return tokens

    def close(self) -> None:
        """Drop every request, the KV memory and the model."""
        self.sequences.clear()
        self._decoding.clear()
        del self.cache, self.model, self._graphs


Floats = npt.NDArray[np.float32]


def sampling_key(seed: int, variant: int) -> int:
    """Return what a request's noise depends on beside the position: its id stands for a variant that is not given."""
    return key_of(seed, variant)


def sample(logits: Tensor, temperature: Floats, top_k: Ints, keys: Keys, positions: Ints) -> Tensor:
    """Return one token [R] for each row of `logits` [R, vocab]; the other arguments have a number for each row.

    Row r takes the argmax at temperature 0, and otherwise draws from its `top_k` most likely tokens (0: from all) with
    the noise of (`keys`, `positions`).
    """
    if not temperature.any():
        return logits.argmax(dim=-1)
    device, vocab = logits.device, logits.shape[-1]
    drawn = temperature > 0
    scale = on_device(np.where(drawn, temperature, np.float32(1))[:, None], device)
    scores = logits / scale  # at least float32, since the scale is
    top_k = np.where(drawn & (top_k > 0), np.minimum(top_k, vocab), vocab)
    largest = int(top_k[top_k < vocab].max(initial=0))
    if largest:
        best = scores.topk(largest, dim=-1).values
        least = best.gather(1, on_device(np.minimum(top_k, largest)[:, None] - 1, device))
        cut = on_device((top_k < vocab)[:, None], device) & (scores < least)
        scores = scores.masked_fill(cut, -torch.inf)
    noise_keys = on_device(keys_of(keys, positions.astype(np.uint64)).view(np.int64)[:, None], device)
    noise = _gumbel(noise_keys, torch.arange(vocab, device=device), scores.dtype)
    return torch.where(on_device(drawn[:, None], device), scores + noise, scores).argmax(dim=-1)


def _gumbel(keys: Tensor, counters: Tensor, dtype: torch.dtype) -> Tensor:
    # -log(-log(1 - u)): it is small u that win a draw, and those are exact in float32.
    uniform = (bits(keys, counters).to(dtype) + 0.5) * 2.0**-32
    return -torch.log(-torch.log1p(-uniform))


# --- which worker is meant -------------------------------------------------------------------------------------------

BABBLE = "babble"
"""The model of `babbling`."""
DTYPES = {"cpu": torch.float32, "cuda": torch.bfloat16}
"""Numbers that a device computes with."""
PAGE_TOKENS = {"cpu": 16, "cuda": FA2_PAGE_TOKENS}
"""Tokens of a page where nothing says how many: what each device reads best."""

_CPU_KV_TOKENS = 16_384
_CUDA_KV_SHARE = 0.8


@attrs.frozen
class TorchSpec:
    """A worker: a model on a device, with so many threads, pages and seats.

    `model` is a name of `SIZES`, `BABBLE`, or a folder with a checkpoint; weights by name are random.
    """

    model: str = "small"
    device: str = "cpu"
    threads: int = 1
    page_tokens: int = 16
    batch_max: int = 32
    seed: int = 0

    def load(self) -> Llama:
        """Return the model on its device.  Raises `ValueError` where there is none."""
        if self.device not in DTYPES:
            raise ValueError(f"device is cpu or cuda, not {self.device!r}")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device cuda: torch sees no CUDA device on this machine")
        dtype = DTYPES[self.device]
        if self.model == BABBLE:
            return babbling(self.seed, device=self.device, dtype=dtype)
        if self.model in SIZES:
            return Llama.random(SIZES[self.model], self.seed, device=self.device, dtype=dtype)
        if not Path(self.model).is_dir():
            raise ValueError(f"model {self.model!r} is neither a folder nor one of {', '.join(SIZES)}")
        return load_checkpoint(Path(self.model), device=self.device, dtype=dtype)

    def kv_capacity_tokens(self, model: Llama) -> int:
        """KV tokens that fit: a fixed number on a CPU, four fifths of the memory that is free on a GPU."""
        if self.device == "cpu":
            return _CPU_KV_TOKENS
        free, _ = torch.cuda.mem_get_info()
        return int(free * _CUDA_KV_SHARE) // model.config.kv_bytes_per_token

    def executor(self, model: Llama, kv_capacity_tokens: int) -> TorchExecutor:
        """Return the worker's executor.  Sets the number of threads of the whole process."""
        torch.set_num_threads(self.threads)
        return TorchExecutor(model, kv_capacity_tokens, page_tokens=self.page_tokens, running_max=self.batch_max)

    @property
    def facts(self) -> dict[str, str | int]:
        """What a preset says of the worker; a checkpoint by its folder's own name."""
        return {
            "model": self.model if self.model in (*SIZES, BABBLE) else Path(self.model).resolve().name,
            "device": self.device,
            "dtype": str(DTYPES[self.device]).removeprefix("torch."),
            "torch": torch.__version__.partition("+")[0],
            "threads": self.threads,
            "page_tokens": self.page_tokens,
            "batch_max": self.batch_max,
        }
