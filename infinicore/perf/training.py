"""The sides of the cases of training: ours and PyTorch on the same weights and batches.

Both have the same names for layers, optimizers and autocast, so one `Training` serves them; only the decoders are
built differently. Weights and batches come from NumPy, seeded by their names and sizes.
"""

import contextlib
import hashlib
import importlib
import time

import numpy as np

from . import torch_models
from .generation import last_number
from .process import python_with_ours
from .train_cases import NETWORKS, Decoder

_LIBRARIES = {"ours": "infinicore", "torch": "torch"}
_BATCHES = 2  # taken in turn: the third step shows what the first has learnt
_SAMPLES = 400  # values of a tensor that the optimizer's result shows
# between which of the four times that a step takes down a part lies
_PARTS = {None: (0, 3), "forward": (0, 1), "backward": (1, 2), "optimizer": (2, 3)}


def _generator(*what):
    seed = int.from_bytes(hashlib.sha256(repr(what).encode()).digest()[:8], "little")
    return np.random.default_rng(seed)


def values_of(name, shape, std=None):
    """The float32 array that the parameter `name` begins with, the same on every side.

    Matrices have the standard deviation `std`, by default inputs ** -0.5; vectors are near 1 for the weights of norms
    and near 0 for biases.
    """
    for packed, parts in torch_models.PACKED.items():
        if f".{packed}." in name:
            rows = shape[0] // len(parts)
            return np.concatenate([values_of(name.replace(packed, p), (rows, *shape[1:]), std) for p in parts])
    array = _generator(name, tuple(shape)).standard_normal(shape, dtype=np.float32)
    if len(shape) == 1:
        array *= np.float32(0.02)
        return array if name.endswith("bias") else array + np.float32(1)
    array *= np.float32(std or np.prod(shape[1:]) ** -0.5)
    return array


def batches_of(network, batch, tokens):
    """Random pairs (inputs, targets) of NumPy arrays: token ids [batch, tokens], or float32 inputs and classes."""
    rng = _generator(network.name, batch, tokens)
    for _ in range(_BATCHES):
        if isinstance(network, Decoder):
            ids = rng.integers(0, network.vocabulary, (batch, tokens + 1))
            yield ids[:, :-1].copy(), ids[:, 1:].copy()
        else:
            yield rng.random((batch, *network.shape), dtype=np.float32), rng.integers(0, 10, batch)


class Training:
    """A network on one side with its optimizer, after its `first` steps, whose `losses` are kept.

    Decoders train with AdamW, the others with SGD; `autocast` runs forward in bfloat16. With `recorded` our forward and
    backward passes are replayed, as the Trainer's of small models are; PyTorch's run as always, or with `compiled` as
    `torch.compile` has made them.
    """

    def __init__(self, side, network, batch, tokens, autocast, first, recorded=False, compiled=False, device="cpu"):
        network = NETWORKS[network]
        self.library = importlib.import_module(_LIBRARIES[side])
        self.autocast, self.device = autocast, device
        self.model, self.loss = self._network(side, network)
        self._fill(network.std)
        self.model.to(device)
        if compiled and side == "torch":
            self.loss = self.library.compile(self.loss)
        self.optimizer = self._optimizer(network)
        self.batches = [tuple(map(self.tensor, pair)) for pair in batches_of(network, batch, tokens)]
        if recorded and side == "ours":
            self._gradients = self.library.recorded(self._gradients)
        self.count = 0
        self.losses = []
        for _ in range(first):
            self.step(self.losses)

    def tensor(self, array):
        """A NumPy array as a tensor where the training runs."""
        return self.library.from_numpy(array).to(self.device)

    def wait(self):
        """Wait until a GPU has done all that it was given."""
        if self.device != "cpu":
            self.library.cuda.synchronize()

    def _network(self, side, network):
        """(module, function of inputs and targets to the loss)."""
        if isinstance(network, Decoder):
            if side == "torch":
                model = torch_models.decoder(network)
            else:
                from .. import models

                model = models.from_config(network.config())
            return model, model.loss
        nn = importlib.import_module(f"{_LIBRARIES[side]}.nn")
        model = network.build(nn)
        return model, lambda x, y: nn.functional.cross_entropy(model(x), y)

    def _fill(self, std):
        with self.library.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(self.library.from_numpy(values_of(name, tuple(parameter.shape), std)))

    def _optimizer(self, network):
        optim = importlib.import_module(f"{self.library.__name__}.optim")
        if isinstance(network, Decoder):
            return optim.AdamW(self.model.parameters(), lr=1e-3, fused=True)
        return optim.SGD(self.model.parameters(), lr=0.01, momentum=network.momentum, fused=True)

    def _precision(self):
        return self.library.autocast(self.device, self.library.bfloat16) if self.autocast else contextlib.nullcontext()

    def _gradients(self, inputs, targets):
        with self._precision():
            loss = self.loss(inputs, targets)
        self.forward = time.perf_counter()
        loss.backward()
        return loss

    def step(self, losses=None):
        """One step of training; the times at its begin and after forward, backward and the optimizer."""
        inputs, targets = self.batches[self.count % _BATCHES]
        self.count += 1
        begin = time.perf_counter()
        loss = self._gradients(inputs, targets)
        forward, backward = self.forward, time.perf_counter()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if losses is not None:
            losses.append(loss.item())
        self.wait()
        return begin, forward, backward, time.perf_counter()


class Step:
    """Seconds of a step of training, or of the part of it that the case names."""

    def __init__(self, training, part=None):
        self.training = training
        self.start, self.stop = _PARTS[part]

    def measure(self, repetitions):
        """Seconds of one step, as the mean of `repetitions`."""
        seconds = 0.0
        for _ in range(repetitions):
            times = self.training.step()
            seconds += times[self.stop] - times[self.start]
        return seconds / repetitions

    def result(self):
        """The losses of the first steps."""
        return np.asarray(self.training.losses)


class AdamW:
    """Seconds of the optimizer's step over all parameters of a model, with gradients that stay."""

    def __init__(self, training):
        self.training = training
        library = training.library
        for name, parameter in training.model.named_parameters():
            parameter.grad = training.tensor(values_of(f"gradient of {name}", tuple(parameter.shape), 1e-3))
        for _ in range(3):
            training.optimizer.step()
        with library.no_grad():
            named = sorted(training.model.named_parameters())
            self.samples = [_some(parameter.detach().cpu().numpy()) for _, parameter in named]

    def measure(self, repetitions):
        """Seconds of one step, as the mean of `repetitions`."""
        self.training.wait()
        start = time.perf_counter()
        for _ in range(repetitions):
            self.training.optimizer.step()
        self.training.wait()
        return (time.perf_counter() - start) / repetitions

    def result(self):
        """Some values of every parameter after the first three steps."""
        return np.concatenate(self.samples)


def _some(array):
    flat = array.reshape(-1)
    return flat[:: -(-flat.size // _SAMPLES)].copy()


class Memory:
    """Peak resident bytes of a new process that makes the network and trains its first steps."""

    def __init__(self, side, options):
        self._side, self._options = side, options
        if side == "ours":
            self._peak(first=1)  # fills the kernel cache: compiling takes memory too

    def _peak(self, **changed):
        options = {**self._options, **changed}
        code = f"training.Training({self._side!r}, **{options!r}); print(generation.peak_bytes())"
        return last_number(python_with_ours(f"from infinicore.perf import generation, training; {code}"))

    def measure(self, repetitions):
        """Bytes."""
        return self._peak()

    def result(self):
        """None: there is nothing to compare."""
        return None


_trained: dict = {}  # the training of this process: its cases share it


def _training(side, options):
    key = side, *options.items()
    if key not in _trained:
        _trained.clear()  # one at a time: they are large
        _trained[key] = Training(side, **options)
    return _trained[key]


def prepare(side, case):
    """The case, ready to be measured on `side`: its first steps are done."""
    options = {**case.options, "device": case.device}
    part = options.pop("part", None)
    if case.op == "train_memory":
        return Memory(side, options)
    if case.op == "train_adamw":
        _trained.clear()
        return AdamW(Training(side, **{**options, "first": 0}))
    return Step(_training(side, options), part)
