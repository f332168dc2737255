"""The sides of the cases of language models: ours, transformers and llama.cpp on the same checkpoint, greedily.

Each side is used the way it is fastest from Python: ours through `generate`, transformers by calls of
the model with its cache (its `generate` adds some 10 % to a small model's step), llama.cpp through
`eval` and the logits in its memory. Token ids go in and come out; no tokenizer takes part.
"""

import os
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

from .. import config
from . import checkpoint
from .cases import Skip
from .model_cases import MODELS, STORIES
from .process import python, python_with_ours


def find_checkpoint(name, folder):
    """The path of the checkpoint `name`: a trained one from the test data, or random weights made in `folder`.

    Raises Skip where the test data is absent.
    """
    model = MODELS[name]
    if model is STORIES:
        given = config.get("INFINICORE_TEST_DATA")
        roots = [Path(given)] if given else [Path.cwd() / "../shared", Path(__file__).parents[2] / "../shared"]
        for root in roots:
            if (root / "models" / name / "config.json").exists():
                return str((root / "models" / name).resolve())
        raise Skip(f"there is no models/{name} in `INFINICORE_TEST_DATA`")
    return str(checkpoint.write_random(model, Path(folder, name)))


def make_gguf(name, path, folder, kind=None):
    """The checkpoint at `path` as a GGUF file in `folder`, of its own dtype or of the type `kind`; written once."""
    gguf = Path(folder, f"{name}-{kind}.gguf" if kind else f"{name}.gguf")
    if not gguf.exists():
        if kind:
            _quantize(make_gguf(name, path, folder), gguf, kind)
        else:
            checkpoint.write_gguf(path, gguf)
    return str(gguf)


_QUANTIZE = """
import ctypes, llama_cpp
params = llama_cpp.llama_model_quantize_default_params()
params.ftype, params.pure = llama_cpp.LLAMA_FTYPE_MOSTLY_{kind}, True
status = llama_cpp.llama_model_quantize({source!r}, {target!r}, ctypes.byref(params))
print(status)
raise SystemExit(status)
"""


def _quantize(source, target, kind):
    """Write the GGUF file `source` with every matrix of the type `kind`, by llama.cpp in a process of its own."""
    partial = f"{target}.partial"
    last_number(python(_QUANTIZE.format(kind=kind, source=os.fsencode(source), target=os.fsencode(partial))))
    os.replace(partial, target)


def files(case, have, folder):
    """({side: path of the model it loads}, notes on sides without one) for a case of a model.

    Made in `folder` before anything is measured. Raises Skip where there is nothing for us to load.
    """
    name, gguf = case.options["model"], case.options.get("gguf")
    path = find_checkpoint(name, folder)
    paths, notes = {"ours": path, "transformers": path}, []
    if "llama.cpp" in have or gguf:
        try:
            paths["llama.cpp"] = make_gguf(name, path, folder, gguf)
        except (OSError, RuntimeError) as error:
            notes.append(f"llama.cpp: its file cannot be written: {error}")
    if gguf and not case.options["quantize"]:
        if "llama.cpp" not in paths:
            raise Skip(f"there is no {gguf} file: {notes[0]}")
        paths["ours"] = paths["llama.cpp"]
    return {side: paths[side] for side in ("ours", *have) if side in paths}, notes


def prompts_of(case):
    """Random token ids, the same on every side: a list per sequence; 0 to 2 are special tokens."""
    vocabulary, count = MODELS[case.options["model"]].vocabulary, case.options.get("sequences", 1)
    return np.random.default_rng(1).integers(3, vocabulary, (count, case.options["prompt"])).tolist()


# Each side is SIDE(path, dtype, room): `room` tokens of a sequence. `start(prompts, steps)` runs the prompts up to the
# first new token of each, `steps(count)` adds `count` tokens to each and returns them as [count, sequences], and
# `logits(prompts)` are those of the first prompt's last token.


class Ours:
    """Our model through its public interface."""

    def __init__(self, path, dtype, room, device="cpu", quantize=None):
        from .. import models

        self.model = models.from_pretrained(path, device=device, quantize=quantize)

    def start(self, prompts, steps):
        options = {"max_new_tokens": steps + 1, "temperature": 0.0, "ignore_eos": True}
        self.sequences = len(prompts)
        self.generation = self.model.generate(prompts if self.sequences > 1 else prompts[0], **options)
        self._next()

    def _next(self):
        return [next(self.generation).token_id for _ in range(self.sequences)]

    def steps(self, count):
        return [self._next() for _ in range(count)]

    def logits(self, prompts):
        return self.model(prompts[:1])[0, -1].to("float32").cpu().numpy()


class Transformers:
    """A causal language model of transformers with SDPA and its cache."""

    def __init__(self, path, dtype, room, device="cpu"):
        import torch
        import transformers

        transformers.logging.disable_progress_bar()
        self.torch, self.device = torch, device
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            path, dtype=getattr(torch, dtype), attn_implementation="sdpa"
        )
        self.model.eval().to(device)

    def _forward(self, tokens, cache):
        with self.torch.inference_mode():
            out = self.model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
        self.cache, self.last = out.past_key_values, out.logits[:, -1]

    def start(self, prompts, steps):
        self._forward(self.torch.tensor(prompts, device=self.device), None)
        self.first = self.last.argmax(-1).tolist()  # which waits for a GPU

    def steps(self, count):
        out = []
        for _ in range(count):
            self._forward(self.last.argmax(-1, keepdim=True), self.cache)
            out.append(self.last.argmax(-1).tolist())
        return out

    def logits(self, prompts):
        self.start(prompts[:1], 0)
        return self.last[0].float().cpu().numpy()


class LlamaCpp:
    """llama.cpp through llama-cpp-python, on a GGUF file of the same weights; one sequence."""

    def __init__(self, path, dtype, room):
        import llama_cpp

        threads = int(os.environ["OMP_NUM_THREADS"])
        self.model = llama_cpp.Llama(
            path, n_ctx=room, n_batch=512, n_threads=threads, n_threads_batch=threads, verbose=False
        )

    def _logits(self):
        return np.ctypeslib.as_array(self.model._ctx.get_logits(), shape=(self.model.n_vocab(),))

    def start(self, prompts, steps):
        self.model.reset()
        self.model.eval(prompts[0])

    def steps(self, count):
        out = []
        for _ in range(count):
            self.model.eval([int(self._logits().argmax())])
            out.append([int(self._logits().argmax())])
        return out

    def logits(self, prompts):
        self.start(prompts, 0)
        return self._logits().copy()


SIDES = {"ours": Ours, "transformers": Transformers, "llama.cpp": LlamaCpp}
_loaded: dict = {}  # the model of this process: its cases share it


def _arguments(side, case, path):
    """What a side is made from."""
    more = {"quantize": case.options["quantize"]} if side == "ours" and case.options.get("quantize") else {}
    if case.device != "cpu":
        more["device"] = case.device
    return {"path": path, "dtype": case.dtype, "room": case.options["room"], **more}


def _model(side, case, path):
    arguments = _arguments(side, case, path)
    key = tuple(arguments.items())
    if key not in _loaded:
        _loaded.clear()  # one at a time: they are large
        _loaded[key] = SIDES[side](**arguments)
    return _loaded[key]


class Prefill:
    """Seconds from a prompt to its first new token, with the model loaded and warm."""

    def __init__(self, model, case):
        self.model, self.prompts = model, prompts_of(case)

    def measure(self, repetitions):
        """Seconds of one prompt."""
        start = time.perf_counter()
        for _ in range(repetitions):
            self.model.start(self.prompts, 1)
        return (time.perf_counter() - start) / repetitions

    def result(self):
        """Logits of the last token."""
        return self.model.logits(self.prompts)


class Decode:
    """Seconds of `steps` tokens of every sequence after the prompts, whose own time does not count."""

    def __init__(self, model, case):
        self.model, self.prompts, self.count = model, prompts_of(case), case.options["steps"]

    def measure(self, repetitions):
        """Seconds of all steps."""
        seconds = 0.0
        for _ in range(repetitions):
            self.model.start(self.prompts, self.count)
            start = time.perf_counter()
            self.tokens = self.model.steps(self.count)
            seconds += time.perf_counter() - start
        return seconds / repetitions

    def result(self):
        """The tokens."""
        return np.asarray(self.tokens)


def peak_bytes():
    """The most memory that this process has had resident."""
    try:
        # of this program alone, while ru_maxrss begins with the parent's at the fork
        status = Path("/proc/self/status").read_text()
        return 1024 * int(status.split("VmHWM:")[1].split()[0])
    except OSError:
        import resource

        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def last_number(command, environment=None):
    """The number that a new process prints last."""
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:]
        raise RuntimeError(": ".join([f"the new process ended with status {done.returncode}", *last]))
    return float(done.stdout.split()[-1])


class Memory:
    """Peak resident bytes of a new process that loads the model and generates with it."""

    def __init__(self, side, case, path):
        self._command = python_with_ours(
            f"from infinicore.perf import generation as g; "
            f"m = g.SIDES[{side!r}](**{_arguments(side, case, path)!r}); steps = {case.options['steps']}; "
            f"m.start({prompts_of(case)}, steps); m.steps(steps); print(g.peak_bytes())"
        )
        last_number(self._command)  # fills the kernel cache: compiling takes memory too

    def measure(self, repetitions):
        """Bytes."""
        return last_number(self._command)

    def result(self):
        """None: there is nothing to compare."""
        return None


_FIRST_TOKEN = {
    "ours": (  # as `infinicore generate` loads it
        "import infinicore.models as m; model = m.from_pretrained({path!r}, mmap=True); "
        "next(model.generate({prompt}, max_new_tokens=1, temperature=0.0))"
    ),
    "transformers": (
        "import torch, transformers as m; "
        "model = m.AutoModelForCausalLM.from_pretrained({path!r}, dtype=torch.{dtype}, attn_implementation='sdpa'); "
        "torch.set_grad_enabled(False); model(torch.tensor([{prompt}]), logits_to_keep=1).logits.argmax()"
    ),
    "llama.cpp": (
        "import llama_cpp; m = llama_cpp.Llama({path!r}, n_ctx={length}, n_batch=512, n_threads={threads}, "
        "n_threads_batch={threads}, verbose=False); m.eval({prompt})"
    ),
}


class FirstToken:
    """Seconds from a new process to the first token: imports, loading, the prompt.

    A cold start finds no kernel compiled: an empty cache folder for ours, which no peer has.
    """

    def __init__(self, side, case, path):
        statement = _FIRST_TOKEN[side].format(
            path=path,
            dtype=case.dtype,
            prompt=prompts_of(case)[0],
            length=case.options["room"],
            threads=os.environ["OMP_NUM_THREADS"],
        )
        code = f"import time; t = time.perf_counter(); {statement}; print('\\n', time.perf_counter() - t)"
        self._command, self._cold = python(code, find_ours=side == "ours"), case.options.get("cold", False)
        if not self._cold:
            self.measure(1)  # fills the kernel cache and the page cache

    def measure(self, repetitions):
        """Seconds in a new process."""
        with tempfile.TemporaryDirectory() as empty:
            return last_number(self._command, {**os.environ, "INFINICORE_CACHE_DIR": empty} if self._cold else None)

    def result(self):
        """None: there is nothing to compare."""
        return None


def prepare(side, case, path):
    """The case, ready to be measured on `side` with the model at `path`."""
    if case.op in ("memory", "first_token"):
        return {"memory": Memory, "first_token": FirstToken}[case.op](side, case, path)
    return {"prefill": Prefill, "decode": Decode}[case.op](_model(side, case, path), case)
