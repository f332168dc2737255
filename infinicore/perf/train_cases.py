"""The cases of the suite `train`: steps of training, the optimizer alone, peak memory; and the shapes of the networks.

What each side does for a case is in `training.py`; PyTorch's decoders are in `torch_models.py`.
"""

from dataclasses import dataclass

from .cases import TORCH, Case

# |difference| of the losses of the first steps: of independent implementations in float32, and where bfloat16 rounds
_LOSS_TOLERANCE = {"float32": 1e-5, "bfloat16": 5e-3}
# A step of AdamW reads a parameter, its gradient and two states, and writes all but the gradient: float32 each.
ADAMW_BYTES = 28


@dataclass(kw_only=True, slots=True, frozen=True)
class Decoder:
    """A GPT-2 or a Llama to train, by its sizes; the head is the embedding, and nothing is dropped out."""

    name: str
    family: str
    hidden: int
    layers: int
    heads: int
    vocabulary: int
    context: int
    intermediate: int
    std: float = 0.02  # of the weights

    @property
    def matrices(self):
        """Values in the matrices that every token multiplies with, the head included."""
        products = 3 if self.family == "llama" else 2
        layer = 4 * self.hidden**2 + products * self.hidden * self.intermediate
        return self.layers * layer + self.hidden * self.vocabulary

    @property
    def parameters(self):
        """All trained values."""
        if self.family == "llama":
            return self.matrices + (2 * self.layers + 1) * self.hidden
        vectors = self.layers * (9 * self.hidden + self.intermediate) + 2 * self.hidden
        return self.matrices + self.context * self.hidden + vectors

    def step_flops(self, batch, tokens):
        """FLOPs of forward and backward: twice as many backward as forward, and nothing computed again.

        6 for each value of a matrix and token (Kaplan et al., arXiv 2001.08361), and causal attention.
        """
        attention = self.layers * 2 * tokens * (tokens + 1) * self.hidden
        return batch * (6 * self.matrices * tokens + 3 * attention)

    def config(self):
        """What config.json says of it."""
        if self.family == "gpt2":
            return {
                "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": self.vocabulary,
                "n_embd": self.hidden, "n_layer": self.layers, "n_head": self.heads, "n_positions": self.context,
                "n_inner": self.intermediate, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
            }  # fmt: skip
        return {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": self.vocabulary,
            "hidden_size": self.hidden, "intermediate_size": self.intermediate, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "num_key_value_heads": self.heads, "rms_norm_eps": 1e-5,
            "max_position_embeddings": self.context, "rope_theta": 10000.0, "tie_word_embeddings": True,
        }  # fmt: skip


@dataclass(kw_only=True, slots=True, frozen=True)
class Classifier:
    """A network of plain layers from inputs of `shape` to ten classes.

    `build(nn)` makes it from PyTorch's or our layers, which have the same names; `flops` are a step's for one input.
    """

    name: str
    shape: tuple[int, ...]
    layers: tuple[tuple, ...]  # (name in `nn`, its arguments)
    flops: float
    momentum: float = 0.0
    std: None = None  # weights by the number of inputs

    def build(self, nn):
        return nn.Sequential(*(getattr(nn, kind)(*arguments) for kind, *arguments in self.layers))


def _mlp(name, width, activation):
    layers = ("Linear", 784, width), (activation,), ("Linear", width, 10)
    # two products forward, the same for the weights' gradients, and one for the hidden layer's
    return Classifier(name=name, shape=(784,), layers=layers, flops=2.0 * width * (2 * 784 + 3 * 10))


GPT2 = Decoder(
    name="GPT-2 124M", family="gpt2", hidden=768, layers=12, heads=12, vocabulary=50257, context=1024,
    intermediate=3072,
)  # fmt: skip
EVEN_GPT2 = Decoder(  # whose head costs little, so that two stages of six layers are alike
    name="a GPT-2 of 10M", family="gpt2", hidden=256, layers=12, heads=4, vocabulary=1024, context=256,
    intermediate=1024,
)  # fmt: skip
LLAMA = Decoder(
    name="Llama 25M", family="llama", hidden=384, layers=6, heads=6, vocabulary=32000, context=1024, intermediate=1024
)
NANO = Decoder(
    name="nanoGPT small", family="gpt2", hidden=128, layers=4, heads=4, vocabulary=65, context=64, intermediate=512
)
TINY_GPT2 = Decoder(
    name="tiny GPT-2", family="gpt2", hidden=32, layers=2, heads=2, vocabulary=97, context=32, intermediate=64
)
TINY_LLAMA = Decoder(
    name="tiny Llama", family="llama", hidden=32, layers=2, heads=2, vocabulary=97, context=32, intermediate=48
)
SIGMOID_MLP = _mlp("MLP 784-30-10 sigmoid", 30, "Sigmoid")
RELU_MLP = _mlp("MLP 784-128-10 relu", 128, "ReLU")
CONVOLUTIONAL = Classifier(
    name="convolutional net 28x28",
    shape=(1, 28, 28),
    layers=(
        ("Conv2d", 1, 32, 3), ("ReLU",), ("MaxPool2d", 2), ("Conv2d", 32, 64, 3), ("ReLU",), ("MaxPool2d", 2),
        ("Flatten",), ("Linear", 1600, 10),
    ),
    # the images need no gradient: two products of the first layer, three of the others
    flops=2.0 * (2 * 26**2 * 32 * 9 + 3 * 11**2 * 64 * 288 + 3 * 1600 * 10),
    momentum=0.9,
)  # fmt: skip
NETWORKS = {n.name: n for n in (GPT2, LLAMA, NANO, TINY_GPT2, TINY_LLAMA, SIGMOID_MLP, RELU_MLP, CONVOLUTIONAL)}


def _common(network, batch, tokens=None, dtype="float32", first=3, recorded=False, **more):
    """What the rows of one training have in common; a row of dtype bfloat16 is float32 under autocast."""
    options = {"network": network.name, "batch": batch, "tokens": tokens, "first": first, "recorded": recorded}
    return {
        "suite": "train", "dtype": dtype, "peers": TORCH, "group": network.name, "absolute": True,
        "tolerance": _LOSS_TOLERANCE[dtype], "options": {**options, "autocast": dtype == "bfloat16"}, **more,
    }  # fmt: skip


def _decoder_steps(model, batch, tokens, dtypes=("float32", "bfloat16"), **more):
    """Whole steps of training on `batch` sequences of `tokens`."""
    for dtype in dtypes:
        how = (", autocast" if dtype == "bfloat16" else "") + (", recorded" if more.get("recorded") else "")
        yield Case(
            name=f"{model.name} step {batch}x{tokens}{how}", op="train_step", unit="tokens/s",
            work=batch * tokens, limit="fma", limit_work=model.step_flops(batch, tokens),
            **_common(model, batch, tokens, dtype, **more),
        )  # fmt: skip


def _parts(model, batch, tokens, **more):
    """Where the time of a float32 step goes; each row runs whole steps."""
    common = _common(model, batch, tokens, **more)
    for part in ("forward", "backward", "optimizer"):
        options = {**common["options"], "part": part}
        name = f"{model.name} {part} {batch}x{tokens}"
        yield Case(name=name, op="train_step", unit="ms", **{**common, "options": options, "compared": False})


def _adamw(model):
    """The optimizer alone, on all parameters of the model with fixed gradients."""
    moved = ADAMW_BYTES * model.parameters
    common = _common(model, 1, 1, repeat=False)
    yield Case(
        name=f"AdamW on {model.name}", op="train_adamw", unit="GB/s", work=moved, limit="update", limit_work=moved,
        limit_bytes=16 * model.parameters,
        # a parameter moves by 1e-3 a step
        **{**common, "tolerance": 1e-6},
    )  # fmt: skip


def _memory(model, batch, tokens):
    """The peak of a new process that makes the model and trains three steps."""
    yield Case(
        name=f"{model.name} peak memory {batch}x{tokens}", op="train_memory", unit="MB",
        **_common(model, batch, tokens, repeat=False, rounds=1, compared=False),
    )  # fmt: skip


def _classifier(network, batch):
    for recorded in (False, True):
        yield Case(
            name=f"{network.name} step, batch {batch}{', recorded' if recorded else ''}", op="train_step", unit="ms",
            limit="fma", limit_work=batch * network.flops, **_common(network, batch, first=10, recorded=recorded),
        )  # fmt: skip


def _large(quick):
    model, short, long = (TINY_GPT2, (2, 8), (1, 32)) if quick else (GPT2, (4, 64), (2, 512))
    once = {} if quick else {"repeat": False, "rounds": 5}  # a step takes seconds
    yield from _decoder_steps(model, *short, ("float32",), **once)
    yield from _parts(model, *short, **{**once, "rounds": 3})  # of the training just measured
    yield from _decoder_steps(model, *short, ("bfloat16",), **once)
    yield from _decoder_steps(model, *long, **{**once, "rounds": 3})
    yield from _adamw(model)
    yield from _memory(model, *short)
    if not quick:
        yield from _memory(model, *long)


def _llama(quick):
    if quick:
        yield from _decoder_steps(TINY_LLAMA, 2, 16)
    else:
        yield from _decoder_steps(LLAMA, 8, 256, repeat=False, rounds=5)


def _small(quick):
    if not quick:
        for recorded in (False, True):
            yield from _decoder_steps(NANO, 12, 64, ("float32",), first=10, recorded=recorded)
    for network in (SIGMOID_MLP, RELU_MLP, CONVOLUTIONAL):
        yield from _classifier(network, 8 if quick else 64)


TRAIN = (_large, _llama, _small)
