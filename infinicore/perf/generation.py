"""The sides of the suite `generate`: ours, transformers and llama.cpp on the same checkpoint, greedily.

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
from . import checkpoint, suites
from .process import python, python_with_ours
from .suites import Skip

MODELS = {model.name: model for model in (suites.STORIES, suites.TINYLLAMA)}
_GGUF = "{}.gguf"


def find_checkpoint(name, folder):
    """The path of the checkpoint `name`: a trained one from the test data, or random weights made in `folder`.

    Raises Skip where the test data is absent.
    """
    model = MODELS[name]
    if model is suites.STORIES:
        given = config.get("INFINICORE_TEST_DATA")
        roots = [Path(given)] if given else [Path.cwd() / "../shared", Path(__file__).parents[2] / "../shared"]
        for root in roots:
            if (root / "models" / name / "config.json").exists():
                return str((root / "models" / name).resolve())
        raise Skip(f"there is no models/{name} in `INFINICORE_TEST_DATA`")
    return str(checkpoint.write_random(model, Path(folder, name)))


def make_gguf(name, path, folder):
    """The checkpoint at `path` as a GGUF file in `folder`; written once."""
    gguf = Path(folder, _GGUF.format(name))
    if not gguf.exists():
        checkpoint.write_gguf(path, gguf)
    return str(gguf)


def prompt_of(case):
    """Random token ids, the same on every side; 0 to 2 are special tokens."""
    vocabulary = MODELS[case.options["model"]].vocabulary
    return np.random.default_rng(1).integers(3, vocabulary, case.options["prompt"]).tolist()


class Ours:
    """Our model through its public interface."""

    def __init__(self, path, gguf, dtype, length):
        from .. import models

        self.model, self.length = models.from_pretrained(path), length

    def start(self, tokens):
        """Run the prompt up to the first new token."""
        options = {"max_new_tokens": self.length - len(tokens), "temperature": 0.0, "ignore_eos": True}
        self.generation = self.model.generate(tokens, **options)
        return next(self.generation).token_id

    def steps(self, count):
        """`count` more tokens."""
        return [next(self.generation).token_id for _ in range(count)]

    def logits(self, tokens):
        """The last token's logits."""
        return self.model([tokens])[0, -1].to("float32").numpy()


class Transformers:
    """LlamaForCausalLM of transformers with SDPA and its cache."""

    def __init__(self, path, gguf, dtype, length):
        import torch
        import transformers

        transformers.logging.disable_progress_bar()
        self.torch = torch
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            path, dtype=getattr(torch, dtype), attn_implementation="sdpa"
        ).eval()

    def _forward(self, tokens, cache):
        with self.torch.inference_mode():
            out = self.model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
        self.cache, self.last = out.past_key_values, out.logits[0, -1]

    def start(self, tokens):
        self._forward(self.torch.tensor([tokens]), None)
        return int(self.last.argmax())

    def steps(self, count):
        out = []
        for _ in range(count):
            self._forward(self.last.argmax().view(1, 1), self.cache)
            out.append(int(self.last.argmax()))
        return out

    def logits(self, tokens):
        self.start(tokens)
        return self.last.float().numpy()


class LlamaCpp:
    """llama.cpp through llama-cpp-python, on a GGUF file of the same weights."""

    def __init__(self, path, gguf, dtype, length):
        import llama_cpp

        threads = int(os.environ["OMP_NUM_THREADS"])
        self.model = llama_cpp.Llama(
            gguf, n_ctx=length, n_batch=512, n_threads=threads, n_threads_batch=threads, verbose=False
        )

    def _logits(self):
        return np.ctypeslib.as_array(self.model._ctx.get_logits(), shape=(self.model.n_vocab(),))

    def start(self, tokens):
        self.model.reset()
        self.model.eval(tokens)
        return int(self._logits().argmax())

    def steps(self, count):
        out = []
        for _ in range(count):
            self.model.eval([int(self._logits().argmax())])
            out.append(int(self._logits().argmax()))
        return out

    def logits(self, tokens):
        self.start(tokens)
        return self._logits().copy()


SIDES = {"ours": Ours, "transformers": Transformers, "llama.cpp": LlamaCpp}
_loaded: dict = {}  # the model of this process, by path: its cases share it


def _model(side, case, files):
    path = files["checkpoint"]
    if path not in _loaded:
        length = case.options["prompt"] + case.options["steps"] + 1
        _loaded[path] = SIDES[side](path, files["gguf"], case.dtype, length)
    return _loaded[path]


class Prefill:
    """Seconds from a prompt to its first new token, with the model loaded and warm."""

    def __init__(self, model, case):
        self.model, self.prompt = model, prompt_of(case)

    def measure(self, repetitions):
        """Seconds of one prompt."""
        start = time.perf_counter()
        for _ in range(repetitions):
            self.model.start(self.prompt)
        return (time.perf_counter() - start) / repetitions

    def result(self):
        """Logits of the last token."""
        return self.model.logits(self.prompt)


class Decode:
    """Seconds of `steps` tokens after a prompt, whose own time does not count."""

    def __init__(self, model, case):
        self.model, self.prompt, self.count = model, prompt_of(case), case.options["steps"]
        self.compared = case.dtype == "float32"  # rounding in bfloat16 changes the choice between near ties

    def measure(self, repetitions):
        """Seconds of all steps."""
        seconds = 0.0
        for _ in range(repetitions):
            self.model.start(self.prompt)
            start = time.perf_counter()
            self.tokens = self.model.steps(self.count)
            seconds += time.perf_counter() - start
        return seconds / repetitions

    def result(self):
        """The tokens, where they must agree."""
        return np.asarray(self.tokens) if self.compared else None


def peak_bytes():
    """The most memory that this process has had resident."""
    try:
        # of this program alone, while ru_maxrss begins with the parent's at the fork
        status = Path("/proc/self/status").read_text()
        return 1024 * int(status.split("VmHWM:")[1].split()[0])
    except OSError:
        import resource

        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _run(command, environment=None):
    """The number that a new process prints last."""
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:]
        raise RuntimeError(": ".join([f"the new process ended with status {done.returncode}", *last]))
    return float(done.stdout.split()[-1])


class Memory:
    """Peak resident bytes of a new process that loads the model and generates with it."""

    def __init__(self, side, case, files):
        length = case.options["prompt"] + case.options["steps"] + 1
        self._command = python_with_ours(
            f"from infinicore.perf import generation as g; "
            f"m = g.SIDES[{side!r}]({files['checkpoint']!r}, {files['gguf']!r}, {case.dtype!r}, {length}); "
            f"m.start({prompt_of(case)}); m.steps({case.options['steps']}); print(g.peak_bytes())"
        )
        _run(self._command)  # fills the kernel cache: compiling takes memory too

    def measure(self, repetitions):
        """Bytes."""
        return _run(self._command)

    def result(self):
        """None: there is nothing to compare."""
        return None


_FIRST_TOKEN = {
    "ours": (
        "import infinicore.models as m; model = m.from_pretrained({path!r}); "
        "next(model.generate({prompt}, max_new_tokens=1, temperature=0.0))"
    ),
    "transformers": (
        "import torch, transformers as m; "
        "model = m.AutoModelForCausalLM.from_pretrained({path!r}, dtype=torch.{dtype}, attn_implementation='sdpa'); "
        "torch.set_grad_enabled(False); model(torch.tensor([{prompt}]), logits_to_keep=1).logits.argmax()"
    ),
    "llama.cpp": (
        "import llama_cpp; m = llama_cpp.Llama({gguf!r}, n_ctx={length}, n_batch=512, n_threads={threads}, "
        "n_threads_batch={threads}, verbose=False); m.eval({prompt})"
    ),
}


class FirstToken:
    """Seconds from a new process to the first token: imports, loading, the prompt.

    A cold start finds no kernel compiled: an empty cache folder for ours, which no peer has.
    """

    def __init__(self, side, case, files):
        statement = _FIRST_TOKEN[side].format(
            path=files["checkpoint"],
            gguf=files["gguf"],
            dtype=case.dtype,
            prompt=prompt_of(case),
            length=case.options["prompt"] + case.options["steps"],
            threads=os.environ["OMP_NUM_THREADS"],
        )
        code = f"import time; t = time.perf_counter(); {statement}; print('\\n', time.perf_counter() - t)"
        self._command, self._cold = python(code, find_ours=side == "ours"), case.options.get("cold", False)
        if not self._cold:
            self.measure(1)  # fills the kernel cache and the page cache

    def measure(self, repetitions):
        """Seconds in a new process."""
        with tempfile.TemporaryDirectory() as empty:
            return _run(self._command, {**os.environ, "INFINICORE_CACHE_DIR": empty} if self._cold else None)

    def result(self):
        """None: there is nothing to compare."""
        return None


def prepare(side, case, files):
    """The case, ready to be measured on `side`; `files` has the paths `checkpoint` and `gguf`."""
    if case.op in ("memory", "first_token"):
        return {"memory": Memory, "first_token": FirstToken}[case.op](side, case, files)
    return {"prefill": Prefill, "decode": Decode}[case.op](_model(side, case, files), case)
