"""Many requests at once: each step runs chunks of prompts together with the next tokens of what is being written."""

import dataclasses
import itertools
import time
import weakref

import numpy as np

import infinicore

from ... import config
from ...autograd import no_grad
from ...interop.tokenizers import check_text
from ...io.json import token_ids as ids_in
from ..batch import Batch, check_ids
from ..step import build, indices
from ..tokenizer import tokenizer_of
from . import memory
from .adapters import folders_of
from .blocks import BlockManager
from .draws import Draws
from .guesses import next_length, taken, to_host
from .hooks import ByText
from .metrics import EngineStats
from .pace import Pace, tokens_at_once
from .params import SamplingParams, resolve
from .request import Request
from .runner import Runner, all_logits
from .sampler import Sampler
from .scheduler import Scheduler
from .sequence import Sequence
from .writer import Writer


class Engine:
    """Runs requests over one model, in the thread that calls `step`.

    `tokenizer` (None: the model's) reads and writes texts. `max_num_seqs` answers are written at once, and a step
    computes at most `max_num_batched_tokens` tokens (None: 512, on a GPU 4096); beside what is being written, prompts
    get as many as make a step `max_step_stretch` times as long (see `pace.Pace`). The cache has blocks of `block_size`
    tokens: `num_blocks`, or as many as fit into `kv_cache_memory` bytes of a rank (None: half of the memory that is
    free, and no more than the answers can fill), of `kv_cache_dtype` (None: the model's, or "int8"). With
    `enable_prefix_caching`, what prompts and answers have in common is computed once. `max_model_len` (None: the
    model's context) limits both together.
    `decode_threads` (None: `INFINICORE_DECODE_THREADS`, else all) is for steps without prompts. `proposer` (see
    `hooks.Proposer`) guesses tokens, which are checked several in a step while at most `max_draft_seqs` answers are
    written: the text stays the same, and so do its probabilities. What is new of answers whose `output_kind` is
    "delta" is handed out every `output_interval` seconds for each of them (0: every step), beginnings and ends at once.
    `adapters`, {name: folder}, are LoRA adapters in PEFT's format, of which each request may name one.
    """

    def __init__(
        self, model, tokenizer=None, *, max_num_seqs=64, max_num_batched_tokens=None, block_size=32, num_blocks=None,
        kv_cache_memory=None, kv_cache_dtype=None, enable_prefix_caching=True, max_model_len=None, max_step_stretch=2.0,
        decode_threads=None, proposer=None, max_draft_seqs=4, output_interval=0.0, adapters=None,
    ):  # fmt: skip
        if max_num_batched_tokens is None:
            max_num_batched_tokens = max(tokens_at_once(model.device.backend), max_num_seqs)
        counts = dict(max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens, block_size=block_size)
        threads = config.get("INFINICORE_DECODE_THREADS") if decode_threads is None else decode_threads
        counts |= {} if threads is None else {"decode_threads": threads}
        for name, value in counts.items():
            if type(value) is not int or value < 1:
                raise ValueError(f"`{name}` must be an integer of at least 1, got {value!r}")
        context = model.config.context
        if max_model_len is not None and (type(max_model_len) is not int or not 2 <= max_model_len <= context):
            raise ValueError(
                f"`max_model_len` must be from 2 to the model's context of {context}, got {max_model_len!r}"
            )
        if kv_cache_dtype not in (None, "int8", infinicore.int8):
            raise ValueError(f"`kv_cache_dtype` must be 'int8', or None for the model's, got {kv_cache_dtype!r}")
        if not output_interval >= 0:
            raise ValueError(f"`output_interval` must be a number of seconds of at least 0, got {output_interval!r}")
        if not max_step_stretch > 1:
            raise ValueError(f"`max_step_stretch` must be above 1, got {max_step_stretch!r}")
        self.model, self.tokenizer = model, tokenizer_of(model) if tokenizer is None else tokenizer
        self.max_model_len = context if max_model_len is None else max_model_len
        dtype = model.dtype if kv_cache_dtype is None else infinicore.int8
        if num_blocks is None:
            wanted = max_num_seqs * -(-self.max_model_len // block_size)
            sharing = 1 if model.ranks is None else model.ranks.sharing
            block = memory.block_bytes(model.config, block_size, dtype)
            num_blocks = memory.blocks_of(kv_cache_memory, block, wanted, sharing, model.device.backend)
        rope = getattr(model.config, "rope", None)
        if rope is not None and rope.type == "dynamic":  # what keys are depends on the length of their own text
            enable_prefix_caching = False
        self.blocks = BlockManager(num_blocks, block_size, enable_prefix_caching)
        self.scheduler = Scheduler(self.blocks, max_num_seqs, max_num_batched_tokens)
        self.max_model_len = min(self.max_model_len, num_blocks * block_size)
        history = max_num_seqs, min(self.max_model_len, model.config.vocab_size)
        self._sampler = Sampler(model.device, max(max_num_seqs, max_num_batched_tokens), history)
        self._runner = Runner(
            model, self._sampler, num_blocks=num_blocks, block_size=block_size, max_num_seqs=max_num_seqs,
            max_model_len=self.max_model_len, kv_cache_dtype=dtype,
            decode_threads=threads, adapters=folders_of(adapters),
        )  # fmt: skip
        self._interval, self._handed_out = output_interval, 0.0
        self._pace, self._proposer, self._max_draft_seqs = Pace(max_step_stretch), proposer, max_draft_seqs
        self._most_drafted = getattr(proposer, "num_speculative_tokens", None)
        if proposer is not None:
            self._proposer = proposer if hasattr(proposer, "propose") else ByText(proposer)
            self._proposer.attach(
                model, self.tokenizer, num_seqs=max_draft_seqs, max_model_len=self.max_model_len,
                block_size=block_size, num_blocks=num_blocks, decode_threads=threads,
            )  # fmt: skip
        self._requests, self._aborted, self._deadlines, self._arrivals = {}, {}, {}, 0
        self._touched, self._max_tokens = {}, max_num_batched_tokens  # requests with something new
        self._stats = EngineStats(num_blocks=num_blocks, block_size=block_size)
        self._eos_ids = ids_in("generation_config.json", model.generation_config, "eos_token_id")
        self._eos_ids = tuple(self._eos_ids or model.config.eos_token_ids)

    @property
    def nbytes(self):
        """Bytes of keys, values, and of what recorded steps compute."""
        return self._runner.nbytes

    def let_go_of_model(self):
        """Know the model only as long as somebody else has it."""
        self.model = self._runner.model = weakref.proxy(self.model)

    @property
    def adapters(self):
        """The names of the adapters that requests may name."""
        return tuple(self._runner.adapters.names)

    @property
    def eos_token_ids(self):
        """The tokens that end an answer."""
        return self._eos_ids

    def token_ids(self, prompt):
        """The token ids of a prompt, a text or token ids; ValueError or TypeError for one that cannot be computed."""
        return self._read(prompt)[1]

    # ---- requests ----

    def default_params(self, **given):
        """The `SamplingParams` that the checkpoint's generation_config.json asks for, with those `given`."""
        names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
        base = resolve(self.model.generation_config, {name: given.get(name) for name in names})
        chosen = {name: getattr(base, name) for name in names}
        return SamplingParams(**{**chosen, **{name: value for name, value in given.items() if value is not None}})

    def add_request(self, request_id, prompt, sampling_params=None, *, priority=0, deadline=None, adapter=None):
        """Queue a request: `prompt` is a text or token ids. Smaller `priority` runs first, then whoever came first.

        `deadline` in seconds of `time.monotonic()`: what is not finished then ends with "abort". Without
        `sampling_params`, `default_params()` count. `adapter` is the name of one, or None for the model as it is.
        ValueError or TypeError for what cannot be done, before anything is queued.
        """
        params = self.default_params() if sampling_params is None else sampling_params
        if request_id in self._requests:
            raise ValueError(f"`request_id` {request_id!r} is of a request that is still running: choose another one")
        if type(priority) is not int:
            raise TypeError(f"`priority` must be an integer, got {priority!r}")
        text, ids = self._read(prompt)
        self._check(params)
        number = self._runner.adapters.number_of(adapter)
        request = Request(request_id, text, ids, params, self.tokenizer, time.monotonic())
        longest = len(ids) + params.max_tokens if params.max_tokens is not None else self.max_model_len
        stop_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else frozenset(self._eos_ids))
        bad_words = self._bad_words(params.bad_words)
        for index in range(params.best_of or params.n):
            sequence = Sequence(
                ids, order=(priority, self._arrivals, index), limit=min(longest, self.max_model_len), stop_ids=stop_ids,
                request=request, index=index, adapter=number,
            )  # fmt: skip
            made = params.structured_outputs
            matcher = (
                None if made is None else made.matcher(self.tokenizer, self.model.config.vocab_size, self._eos_ids)
            )
            sequence.draws = Draws(params, index, self.model.config.vocab_size, stop_ids, bad_words, matcher)
            sequence.reuse = params.prompt_logprobs is None or index > 0
            sequence.logprobs = None if params.logprobs is None else []
            sequence.parent = request.sequences[0] if index else None
            if self.tokenizer is not None and params.detokenize and (params.stop or not request.silent):
                sequence.writer = Writer(self.tokenizer, ids, params)
            request.sequences.append(sequence)
        self.scheduler.add(request.sequences[0])  # the others follow when the prompt is computed
        self._arrivals += 1
        self._requests[request_id] = request
        if deadline is not None:
            self._deadlines[request_id] = deadline

    def _read(self, prompt):
        """(text or None, token ids) of a prompt, checked."""
        text = None
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise ValueError("`prompt` must be token ids, because the checkpoint has no tokenizer")
            text, ids = prompt, self.tokenizer.encode(check_text(prompt, "prompt"))
        else:
            ids = np.asarray(prompt).tolist() if len(prompt) else []
            if not all(type(one) is int for one in ids):
                raise TypeError("`prompt` must be a text or a list of token ids")
        if not ids:
            raise ValueError("`prompt` is empty: give at least one token")
        check_ids(ids, self.model.config.vocab_size, "prompt")
        if len(ids) >= self.max_model_len:
            raise ValueError(
                f"`prompt` has {len(ids)} tokens, and prompt and answer at most {self.max_model_len}: shorten it"
            )
        return text, ids

    def _check(self, params):
        """Refuse what the vocabulary or the lack of a tokenizer makes impossible."""
        if not isinstance(params, SamplingParams):
            raise TypeError(f"`sampling_params` must be a SamplingParams, got {type(params).__name__}")
        size = self.model.config.vocab_size
        check_ids(list(params.stop_token_ids), size, "stop_token_ids")
        check_ids(list(params.logit_bias or ()), size, "logit_bias")
        check_ids(list(params.allowed_token_ids or ()), size, "allowed_token_ids")
        for name in ("logprobs", "prompt_logprobs"):
            if (getattr(params, name) or 0) > size:
                raise ValueError(f"`{name}` is {getattr(params, name)}, but the vocabulary has {size} tokens")
        if (params.stop or params.bad_words) and self.tokenizer is None:
            raise ValueError("`stop` and `bad_words` need a tokenizer, and the checkpoint has none")

    def _bad_words(self, words):
        """The token ids of each word, at the beginning of a text and after a space."""
        found = {tuple(self.tokenizer.encode(text, add_special_tokens=False)) for w in words for text in (w, " " + w)}
        return [list(ids) for ids in found if ids]

    def abort_request(self, request_id, reason="aborted"):
        """End a request; its last output comes with the next step. Unknown or finished ones are passed over.

        Other threads may call it, too.
        """
        if request_id in self._requests:
            self._aborted[request_id] = reason

    def is_unfinished(self, request_id):
        """Whether this request is queued or runs."""
        return request_id in self._requests

    def has_unfinished_requests(self):
        """Whether `step` has something to do."""
        return bool(self._requests)

    # ---- steps ----

    def step(self):
        """One forward pass. Returns a list of `RequestOutput`, one for each request that has something new."""
        return [request.output() for request in self.advance()]

    def advance(self):
        """`step`, but returns the requests that have something new to hand out, as they are inside of the engine."""
        began = time.perf_counter()
        touched = self._touched  # kept by a step that fails
        if self._aborted or self._deadlines:
            self._end_early(touched)
        drafted = self._proposer is not None and self._propose()
        batch = self.scheduler.schedule(self._pace.prompt_tokens, drafted)
        if batch.entries:
            try:
                self._run(batch, touched)
            except BaseException:  # an interrupt: what may not have been computed or copied must not count as stored
                self.scheduler.start_over()
                raise
        requests = self._news(touched, began)
        self._stats.steps += 1
        self._stats.step_seconds += time.perf_counter() - began
        return requests

    def _news(self, touched, now):
        """Take from `touched` what is to be handed out now."""
        due, requests, later = now - self._handed_out >= self._interval * len(touched), [], []
        for request in touched.values():
            if not request.left:
                self._close(request)
            elif request.silent:
                continue
            elif request.sent and not due:
                later.append(request)
                continue
            requests.append(request)
        touched.clear()
        if later:
            touched.update((request.id, request) for request in later)
        elif due:
            self._handed_out = now
        return requests

    def _end_early(self, touched):
        """End what was aborted, or is past its deadline."""
        now = time.monotonic()
        for request_id, deadline in self._deadlines.items():
            if now >= deadline:
                self._aborted.setdefault(request_id, "deadline")
        while self._aborted:
            request_id, reason = self._aborted.popitem()
            request = self._requests.get(request_id)
            if request is None:  # it was finished by the step that ran when another thread aborted it
                continue
            touched[request_id] = request
            for sequence in request.sequences:
                if sequence.finish_reason is None:
                    self._finish(sequence, "abort", reason)

    def _run(self, batch, touched):
        """Compute a batch and take what comes of it."""
        began = time.perf_counter()
        logits, wanted, ids, place = self._runner.run(batch)
        logprobs = None
        if ids is None:
            wanted = self._note_prompts(logits, wanted)
            if wanted:
                if place is None:
                    self._sampler.prepare(wanted, logits.shape[0])
                ids, logprobs = self._sampler.choose(logits, place)
        seconds = time.perf_counter() - began
        self._stats.model_seconds += seconds
        self._pace.note(seconds, batch.prompt_tokens, len(batch.entries) > batch.num_prompts)
        now = time.monotonic()
        if batch.prompt_tokens:
            self._note_chunks(batch.entries, wanted, now - seconds)
        for sequence, first, rows in wanted:
            tokens = ids[first : first + rows]
            if rows > 1:
                tokens = self._verified(sequence, tokens, logits[first : first + rows])
            self._take(sequence, tokens, logprobs.get(id(sequence)) if logprobs else None, now)
            request = sequence.request
            if sequence.finish_reason is not None:
                self._finish(sequence, sequence.finish_reason, sequence.stop_reason)
            elif request.silent:
                continue
            touched[request.id] = request

    def _note_chunks(self, entries, wanted, began):
        """Count what has been computed of prompts that go on, and note whose first step this was."""
        writing = {id(sequence) for sequence, *_ in wanted}
        for sequence, count in entries:
            if sequence.request.metrics.first_scheduled_time is None:
                sequence.request.metrics.first_scheduled_time = began
            if id(sequence) not in writing:
                self.scheduler.computed(sequence, count)

    def _verified(self, sequence, tokens, logits):
        """What of a draft and of the tokens that were drawn at its places is to be written."""
        checked, most = len(tokens) - 1, self._most_drafted
        self._stats.draft_tokens += checked
        tokens = taken(sequence, tokens, None if sequence.draft_shares is None else to_host(logits))
        self._stats.accepted_tokens += len(tokens) - 1
        if most is not None:
            sequence.draft_length = next_length(sequence.draft_length or most, checked, len(tokens) - 1, most)
        return tokens

    def _take(self, sequence, tokens, logprobs, now):
        """Add what was chosen after the last known token of an answer, and after what of its draft is right."""
        length = len(sequence.token_ids)
        known = length - sequence.num_computed
        self._write(sequence, tokens, logprobs)
        written = len(sequence.token_ids) - length
        self._stats.generation_tokens += written
        self.scheduler.computed(sequence, known if written < 2 else known + written - 1)  # the last one is not cached
        metrics = sequence.request.metrics
        metrics.last_token_time = now
        if metrics.first_token_time is None:
            self._begun(sequence, now)

    def _note_prompts(self, logits, wanted):
        """Keep the log probabilities of prompts; returns the rows that a token is to be chosen for."""
        if logits is None or not any(map(all_logits, (sequence for sequence, *_ in wanted))):
            return wanted
        chosen = []
        for sequence, first, rows in wanted:
            if all_logits(sequence):
                known = logits[first : first + rows].to("cpu", infinicore.float32).numpy()
                sequence.request.note_prompt(known, sequence.num_computed)
                if rows < sequence.left:
                    continue
                first, rows = first + rows - 1, 1
            chosen.append((sequence, first, rows))
        return chosen

    def _write(self, sequence, tokens, logprobs):
        """Add tokens to an answer, up to one that ends it."""
        draws, writer, token_ids = sequence.draws, sequence.writer, sequence.token_ids
        for i, token in enumerate(tokens):
            if draws.stuck:
                return sequence.finish("abort", "no token may follow here")
            token_ids.append(token)
            if logprobs is not None:
                sequence.sum_logprob += float(logprobs[i, token])
                if sequence.logprobs is not None:
                    params = sequence.request.params
                    sequence.logprobs.append(sequence.request.logprob(logprobs[i], token, params.logprobs))
            if token in sequence.stop_ids:
                named = token in sequence.request.params.stop_token_ids
                if writer is not None and sequence.request.params.include_stop_str_in_output:
                    writer.push(token, stops=False)
                return sequence.finish("stop", token if named else None)
            if draws.follows and not self._follow(sequence, token):
                return None
            if writer is not None:
                stops = draws.params.min_tokens <= len(token_ids) - sequence.num_prompt
                found = writer.push(token, stops=stops)
                if found is not None:
                    return sequence.finish("stop", found)
            if sequence.finish_reason is not None:
                return None
            if len(token_ids) >= sequence.limit:
                return sequence.finish("length")
        return None

    def _follow(self, sequence, token):
        """Tell what depends on the text of a token; False if the constraint refuses it."""
        draws = sequence.draws
        draws.note(token)
        if draws.matcher is not None:
            if not draws.matcher.accept(token):
                sequence.finish("abort", "the constraint refuses a token")
                return False
            if draws.matcher.finished:
                sequence.finish("stop")
        return True

    def _begun(self, sequence, now):
        """The prompt of a request is computed, and its first answer begun: the others may share it."""
        request = sequence.request
        request.metrics.first_token_time = now
        self._stats.prompt_tokens += sequence.num_prompt
        for other in request.sequences[1:]:
            self.scheduler.add(other)

    def _finish(self, sequence, reason, stop_reason=None):
        """End an answer and let go of what it holds."""
        if sequence.queued:
            self.scheduler.remove(sequence)
        request = sequence.request
        params = request.params
        if sequence.writer is None and params.detokenize and self.tokenizer is not None:
            sequence.writer = Writer(self.tokenizer, request.prompt_ids, params)
            own = sequence.token_ids[sequence.num_prompt :]
            if reason == "stop" and own and own[-1] in sequence.stop_ids and not params.include_stop_str_in_output:
                own.pop()
            sequence.writer.push(*own, stops=False)
        ended_by_text = reason == "stop" and isinstance(stop_reason, str)
        if sequence.writer is not None and not ended_by_text:
            found = sequence.writer.finish(stops=sequence.num_new >= params.min_tokens)
            if found is not None and reason != "abort":
                reason, stop_reason = "stop", found
        sequence.finish(reason, stop_reason)
        request.left -= 1

    def _close(self, request):
        """Forget a request that is finished."""
        request.metrics.finished_time = time.monotonic()
        del self._requests[request.id]
        self._deadlines.pop(request.id, None)
        finished = self._stats.requests_finished
        for sequence in request.sequences:
            finished[sequence.finish_reason] = finished.get(sequence.finish_reason, 0) + 1

    def _propose(self):
        """Ask for tokens that may follow, where few answers are being written; whether there are some."""
        running, size = self.scheduler.running, self.model.config.vocab_size
        for sequence in running:
            sequence.draft, sequence.draft_shares = (), None
        if len(running) > self._max_draft_seqs:
            return False

        def possible(token):
            return type(token) is int and 0 <= token < size

        asking = [one for one in running if one.left == 1 and one.num_new and not one.draws.follows]
        for sequence, (proposed, shares) in zip(asking, self._proposer.propose(asking) if asking else ()):
            sequence.draft_shares = shares
            sequence.draft = tuple(itertools.takewhile(possible, proposed[: sequence.draft_length]))
        return any(one.draft for one in asking)

    # ---- figures, embeddings ----

    def stats(self):
        """An `EngineStats` of now; cheap, and safe from other threads."""
        scheduler = self.scheduler
        return dataclasses.replace(
            self._stats,
            num_requests_running=len(scheduler.running),
            num_requests_waiting=len(scheduler.waiting),
            num_blocks_used=self.blocks.num_blocks - self.blocks.num_free,
            num_preemptions=scheduler.num_preemptions,
            prefix_cache_queries=scheduler.num_queries,
            prefix_cache_hits=scheduler.num_hits,
            requests_finished=dict(self._stats.requests_finished),
        )

    @no_grad()
    def embed(self, prompts, adapter=None):
        """Embeddings float32 [prompts, hidden size]: the last hidden state of each prompt's last token, of length 1.

        `prompts` is a list of texts or of lists of token ids, `adapter` the name of one.
        """
        adapters, number = self._runner.adapters, self._runner.adapters.number_of(adapter)
        rows = [self._read(prompt)[1] for prompt in prompts]
        found, most = np.zeros((len(rows), self.model.config.hidden_size), np.float32), self._max_tokens
        first = 0
        while first < len(rows):  # as many at a time as make a step
            stop = first + 1
            while stop < len(rows) and sum(map(len, rows[first : stop + 1])) <= most:
                stop += 1
            batch = Batch(rows[first:stop], None, self.model.config.vocab_size)
            cache = batch.scratch_cache(self.model)
            count = range(stop - first)
            step = build(cache, self.model.rotary, count, batch.rows, rows=count)
            numbers = indices(np.full(step.token_ids.shape[0], number), cache.device) if number else None
            with adapters.used(numbers, step.rows):
                hidden = self.model.states(step)
            found[first:stop] = hidden.to("cpu", infinicore.float32).numpy()
            first = stop
        return found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)
