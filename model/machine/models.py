"""Models by the sizes of their published configurations: what a step multiplies, reads and keeps."""

import attrs

BITS_16 = 2
"""Bytes of a weight, of a value of KV and of an activation, unless weights have 8 bits."""


@attrs.frozen
class ModelSizes:
    """A transformer's sizes: `mlp` is the width between the matrices of a layer's MLP, or of one of its `experts`, of
    which each token takes `experts_used`; 0 experts for a dense model.  All have gated MLPs (three matrices).

    Source: config.json of `repository` on Hugging Face.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    mlp: int
    vocabulary: int
    repository: str
    experts: int = 0
    experts_used: int = 0

    @property
    def attention_parameters(self) -> int:
        """Parameters of a layer's attention: queries, keys, values and output."""
        return self.hidden * self.head_size * (2 * self.heads + 2 * self.kv_heads)

    @property
    def mlp_parameters(self) -> int:
        """Parameters of a layer's MLP, or of one of its experts."""
        return 3 * self.hidden * self.mlp

    @property
    def token_parameters(self) -> int:
        """Parameters of all layers that a token is multiplied with: without head and embedding."""
        return self.layers * (self.attention_parameters + max(self.experts_used, 1) * self.mlp_parameters)

    @property
    def layer_parameters(self) -> int:
        """Parameters of all layers, with all experts."""
        return self.layers * (self.attention_parameters + max(self.experts, 1) * self.mlp_parameters)

    @property
    def head_parameters(self) -> int:
        """Parameters of the head, and as many of the embedding."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters, without norms and biases."""
        return self.layer_parameters + 2 * self.head_parameters

    @property
    def kv_token_bytes(self) -> int:
        """Bytes of keys and values of a token in 16 bits."""
        return 2 * self.layers * self.kv_heads * self.head_size * BITS_16

    def divided(self, gpus: int) -> None:
        """Raise `ValueError` where tensor parallelism cannot divide the model."""
        if self.heads % gpus:
            raise ValueError(f"{self.name} has {self.heads} heads, which do not divide by {gpus} GPUs")
        if self.kv_heads % gpus and gpus % self.kv_heads:
            raise ValueError(f"{self.name} has {self.kv_heads} KV heads, which do not divide by {gpus} GPUs")
        if self.experts % gpus:
            raise ValueError(f"{self.name} has {self.experts} experts, which do not divide by {gpus} GPUs")


_MODELS = (
    # Name, layers, hidden, heads, KV heads, head size, MLP, vocabulary, repository; experts, and those a token takes.
    ModelSizes("llama-2-7b", 32, 4096, 32, 32, 128, 11008, 32000, "meta-llama/Llama-2-7b-hf"),
    ModelSizes("llama-2-13b", 40, 5120, 40, 40, 128, 13824, 32000, "meta-llama/Llama-2-13b-hf"),
    ModelSizes("llama-2-70b", 80, 8192, 64, 8, 128, 28672, 32000, "meta-llama/Llama-2-70b-hf"),
    ModelSizes("codellama-34b", 48, 8192, 64, 8, 128, 22016, 32000, "codellama/CodeLlama-34b-Instruct-hf"),
    ModelSizes("llama-3-8b", 32, 4096, 32, 8, 128, 14336, 128256, "meta-llama/Meta-Llama-3-8B"),
    ModelSizes("llama-3-70b", 80, 8192, 64, 8, 128, 28672, 128256, "meta-llama/Meta-Llama-3-70B"),
    ModelSizes("llama-3.1-8b", 32, 4096, 32, 8, 128, 14336, 128256, "meta-llama/Llama-3.1-8B"),
    ModelSizes("llama-3.1-70b", 80, 8192, 64, 8, 128, 28672, 128256, "meta-llama/Llama-3.1-70B"),
    ModelSizes("qwen2.5-7b", 28, 3584, 28, 4, 128, 18944, 152064, "Qwen/Qwen2.5-7B"),
    ModelSizes("qwen2.5-14b", 48, 5120, 40, 8, 128, 13824, 152064, "Qwen/Qwen2.5-14B"),
    ModelSizes("qwen3-8b", 36, 4096, 32, 8, 128, 12288, 151936, "Qwen/Qwen3-8B"),
    ModelSizes("qwen3-14b", 40, 5120, 40, 8, 128, 17408, 151936, "Qwen/Qwen3-14B"),
    ModelSizes("qwen3-32b", 64, 5120, 64, 8, 128, 25600, 151936, "Qwen/Qwen3-32B"),
    ModelSizes("mistral-nemo", 40, 5120, 32, 8, 128, 14336, 131072, "mistralai/Mistral-Nemo-Instruct-2407"),
    ModelSizes("mixtral-8x7b", 32, 4096, 32, 8, 128, 14336, 32000, "mistralai/Mixtral-8x7B-v0.1", 8, 2),
    ModelSizes("qwen3-30b-a3b", 48, 2048, 32, 4, 128, 768, 151936, "Qwen/Qwen3-30B-A3B", 128, 8),
)
MODELS = {model.name: model for model in _MODELS}
"""Models by name."""
