"""`LLM`: a model with an engine around it, for lists of prompts, under the names that vLLM and InfiniLM have."""

import dataclasses
import itertools

from ..models import LanguageModel, from_pretrained
from . import beams, chat, divided
from .conversation import encode
from .engine import Engine, SamplingParams
from .speculation import load_proposer
from .tokenizer import load_config

# What InfiniLM calls otherwise, what can only be 1 here, and what chooses between things of which there is one.
_OTHERWISE = {"model_path": "model", "max_batch_size": "max_num_seqs", "max_cache_len": "max_model_len"}
_RANKS = ("tensor_parallel_size", "pipeline_parallel_size")
_ONE = ("moe_ep_size",)
_NOTHING = ("cache_type", "enable_graph", "attn_backend", "weight_load_mode", "pre_transpose", "use_mla",
            "use_legacy_moe", "moe_ep_backend", "master_addr", "master_port", "pipeline_parallel_stage")  # fmt: skip
DEFAULTS = ("temperature", "top_k", "top_p", "max_tokens")  # of requests without parameters


def renamed(options):
    """Options with ours in place of InfiniLM's names; NotImplementedError for what can be one thing only."""
    options = {_OTHERWISE.get(name, name): value for name, value in options.items() if name not in _NOTHING}
    draft, count = options.pop("draft_model_path", None), options.pop("num_draft_tokens", 4)
    if draft is not None:
        options["speculative_config"] = {"model": draft, "num_speculative_tokens": count}
    if options.pop("skip_load", False):
        raise NotImplementedError("`skip_load` must be False: a model without its weights writes nothing")
    for name in _ONE:
        if options.pop(name, 1) != 1:
            raise NotImplementedError(f"`{name}` must be 1: the engine runs in one process")
    return options


class LLM:
    """Writes answers to many prompts at once: `generate` and `chat` return when all are done.

    `model` is a model, or what `from_pretrained` loads: the path of a folder or of a GGUF file, or None for the small
    model that comes with the package, with its `dtype` and `quantize`. `temperature`, `top_k`, `top_p` and `max_tokens`
    are the defaults of requests without parameters, else those of generation_config.json count. `speculative_config`
    says who guesses tokens (see `speculation.load_proposer`). Other options are those of
    `infinicore.lm.engine.Engine`, or InfiniLM's: `model_path`, `max_batch_size`, `max_cache_len`, `draft_model_path`,
    `num_draft_tokens`; the model goes to `device`, `moe_ep_size` is 1. `tensor_parallel_size` and
    `pipeline_parallel_size` are those of a job of as many ranks (`infinicore run -n N script.py`): the first one has
    the `LLM`, the others compute their part in this call until the first one ends, and end then. `cache_type` ("paged"
    in any case), `enable_graph` (always), `attn_backend`, `weight_load_mode`, `pre_transpose`, and what InfiniLM has
    for mixtures of experts and for other machines, change nothing.
    """

    def __init__(
        self, model=None, *, tokenizer=None, dtype=None, quantize=None, device=None, speculative_config=None, **options
    ):
        options = renamed(options)
        model, speculative_config = options.pop("model", model), options.pop("speculative_config", speculative_config)
        given = {name: options.pop(name) for name in DEFAULTS if options.get(name) is not None}
        sizes = {name: options.pop(name) for name in _RANKS if name in options}
        if isinstance(model, LanguageModel):
            if any(size != 1 for size in sizes.values()):
                raise ValueError("`model` is loaded already: give its path, to divide it among ranks")
            self.model = model if device is None else model.to(device)
        else:
            loading = dict(dtype=dtype, device=device, quantize=quantize)
            self.model = divided.load(model, loader=from_pretrained, **loading, **sizes)
        if speculative_config is not None:
            options["proposer"] = load_proposer(speculative_config, self.model.device)
        self.engine = Engine(self.model, tokenizer, **options)
        self.default_params = self.engine.default_params(**given)
        self._template = None
        if self.model.path is not None:
            self._template = chat.load_template(self.model.path, load_config(self.model.path))
        self._numbers = itertools.count()

    @property
    def tokenizer(self):
        return self.engine.tokenizer

    def generate(
        self, prompts=None, sampling_params=None, *, messages=None, use_tqdm=True, priority=0, lora_request=None
    ):
        """A list of `RequestOutput`, one for each prompt, in their order; of `messages` in place of prompts, `chat`'s.

        `prompts` is a text, or a list of texts and of lists of token ids (or dicts with "prompt" or
        "prompt_token_ids"); `sampling_params` one `SamplingParams` for all, a list with one for each, or None;
        `priority` and `lora_request` (the name of one of the engine's `adapters`) likewise. `use_tqdm` shows a progress
        bar in a terminal, where the package tqdm is installed. Raises ValueError or TypeError for what cannot be done,
        before anything is computed.
        """
        if (prompts is None) == (messages is None):
            raise ValueError("`prompts` or `messages` is what to write on from: give one of them")
        if messages is not None:
            return self.chat(messages, sampling_params, use_tqdm=use_tqdm, lora_request=lora_request)
        prompts = [_prompt(one) for one in ([prompts] if isinstance(prompts, (str, dict)) else prompts)]
        chosen = _each("sampling_params", sampling_params, len(prompts), (list, tuple))
        urgent = _each("priority", priority, len(prompts), (list, tuple))
        named = _each("lora_request", lora_request, len(prompts), (list, tuple))
        ids = []
        try:
            for prompt, params, rank, adapter in zip(prompts, chosen, urgent, named):
                params = self.default_params if params is None else params
                if isinstance(params, SamplingParams):
                    params = dataclasses.replace(params, output_kind="final_only")
                ids.append(next(self._numbers))
                self.engine.add_request(ids[-1], prompt, params, priority=rank, adapter=adapter)
            return self._finish(ids, use_tqdm)
        finally:  # of an interrupt, or of a prompt that was refused
            for one in ids:
                self.engine.abort_request(one)
            while any(map(self.engine.is_unfinished, ids)):
                self.engine.step()

    def chat(self, messages, sampling_params=None, *, use_tqdm=True, lora_request=None, **variables):
        """The same for conversations: `messages` is a list of dicts with `role` and `content`, or a list of such lists.

        They are written as the checkpoint's chat template says, with `variables` such as `enable_thinking`.
        """
        if self.tokenizer is None:
            raise ValueError("`chat` needs a tokenizer, and the checkpoint has none")
        conversations = [messages] if messages and isinstance(messages[0], dict) else messages
        prompts = [encode(self.tokenizer, self._template, one, **variables) for one in conversations]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm, lora_request=lora_request)

    def beam_search(self, prompts, params, *, use_tqdm=False, lora_request=None):
        """The most likely texts after each prompt: a list of `beams.BeamSearchOutput`, as vLLM's.

        `prompts` and `lora_request` are those of `generate`, `params` a `BeamSearchParams` for all of them.
        """
        if not isinstance(params, beams.BeamSearchParams):
            raise TypeError(f"`params` must be a BeamSearchParams, got {type(params).__name__}")
        engine = self.engine
        prompts = [_prompt(one) for one in ([prompts] if isinstance(prompts, (str, dict)) else prompts)]
        named = _each("lora_request", lora_request, len(prompts), (list, tuple))
        ends = engine.eos_token_ids, engine.max_model_len
        searches = [beams.BeamSearch(engine.token_ids(prompt), params, *ends) for prompt in prompts]
        round_, bar = params.round(self.model.config.vocab_size), _bar(len(prompts)) if use_tqdm else None
        while going := [place for place, search in enumerate(searches) if search.live]:
            texts = [(text, named[place]) for place in going for text in searches[place].texts]
            ids, adapters = map(list, zip(*texts))
            outputs = iter(self.generate(ids, round_, use_tqdm=False, lora_request=adapters))
            for place in going:
                search = searches[place]
                search.grow([next(outputs).outputs[0].logprobs[0] for _ in search.texts])
                if bar is not None:
                    bar.update(not search.live)
        if bar is not None:
            bar.close()
        return [beams.BeamSearchOutput(search.sequences(self.tokenizer)) for search in searches]

    def embed(self, prompts):
        """Embeddings float32 [prompts, hidden size] of texts or lists of token ids; see `Engine.embed`."""
        return self.engine.embed([prompts] if isinstance(prompts, str) else prompts)

    def close(self):
        """Nothing: the engine lives in this process, and ends with the `LLM`. InfiniLM's scripts call it."""

    def _finish(self, ids, use_tqdm):
        """Run the engine until these requests are done."""
        found, bar = {}, _bar(len(ids)) if use_tqdm else None
        while len(found) < len(ids):
            for output in self.engine.step():
                if output.finished:
                    found[output.request_id] = output
                    if bar is not None:
                        bar.update()
        if bar is not None:
            bar.close()
        return [found[one] for one in ids]


def _prompt(prompt):
    """A text or token ids; vLLM writes them as dicts, too."""
    if isinstance(prompt, dict):
        for name in ("prompt_token_ids", "prompt"):
            if prompt.get(name) is not None:
                return prompt[name]
        raise ValueError(f"`prompts` must have a `prompt` or `prompt_token_ids` in each dict, got {list(prompt)}")
    if not isinstance(prompt, (str, list, tuple)) and not hasattr(prompt, "tolist"):
        raise TypeError(f"`prompts` must be a text or a list of texts and lists of token ids, got {prompt!r} in it")
    return prompt


def _each(name, given, count, several):
    """One value for each of `count` prompts."""
    if not isinstance(given, several):
        return [given] * count
    if len(given) != count:
        raise ValueError(f"`{name}` has {len(given)} entries, but `prompts` has {count}")
    return given


def _bar(total):
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return None
    return tqdm(total=total, desc="requests", disable=None)
