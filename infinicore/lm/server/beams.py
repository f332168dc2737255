"""`use_beam_search` of chats and completions: rounds of short requests to the engine, in place of one long one."""

import time

from ..beams import BeamSearch, BeamSearchParams
from ..engine.metrics import RequestMetrics
from ..engine.outputs import RequestOutput
from .errors import APIError

_SAMPLING = {"n", "temperature", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens"}


def check(request, constraint=None):
    """Refuse what a beam search cannot do, and its own parameter without it. `constraint` is that of the answer."""
    if not request.use_beam_search:
        if request.length_penalty is not None:
            message = "`length_penalty` ranks the texts of a beam search: set `use_beam_search`, or leave it out"
            raise APIError(400, message, param="length_penalty")
        return
    if request.stream:
        message = "`use_beam_search` cannot be streamed: which texts are the best is known at the end"
        raise APIError(400, message, param="stream")
    others = request.sampling().keys() - _SAMPLING
    if getattr(request, "best_of", None) is not None:
        others.add("best_of")
    for name in sorted(others):
        message = f"`{name}` cannot be used with `use_beam_search`, which takes the likeliest texts: leave one out"
        raise APIError(400, message, param=name)
    if (constraint or request.constraint()) is not None:
        message = "`use_beam_search` and a format of the answer exclude each other: leave one out"
        raise APIError(400, message, param="use_beam_search")


class Beams:
    """The outputs of a beam search from each of some prompts: an async iterator of (place, `RequestOutput`).

    `name` is the prompts' parameter, `most` the tokens of an answer (None: to the end of the context), `logprobs` how
    many of the likeliest tokens an answer tells at each place (None: none).
    """

    def __init__(self, model, request, prompts, most, *, name, logprobs):
        self._model, self._request, self._logprobs = model, request, logprobs
        for ids in prompts:
            model.check_room(len(ids), most, name)
        given = {key: value for key, value in request.sampling().items() if key in _SAMPLING - {"n"}}
        penalty = 1.0 if request.length_penalty is None else request.length_penalty
        params = BeamSearchParams(beam_width=request.n or 1, max_tokens=most, length_penalty=penalty, **given)
        ends = model.engine.info["eos_token_ids"], model.context
        self._searches = [BeamSearch(ids, params, *ends) for ids in prompts]
        self._round = params.round(model.engine.info["vocab_size"])
        self._arrival, self._stream, self._outputs = time.monotonic(), None, self._run()
        self._submit()  # now, so that a full queue is told before the answer begins

    def __aiter__(self):
        return self._outputs

    def __anext__(self):
        return anext(self._outputs)

    def close(self):
        """End what is not finished."""
        self._stream.close()

    def _submit(self):
        """Ask for the next tokens of all texts that go on."""
        self._going = [place for place, search in enumerate(self._searches) if search.live]
        texts = [(text, self._round) for place in self._going for text in self._searches[place].texts]
        self._stream = self._model.submit(self._request, texts, since=self._arrival)

    async def _run(self):
        while True:
            found = {place: output async for place, output in self._stream}
            given_up = next((one for one in found.values() if one.outputs[0].finish_reason == "abort"), None)
            if given_up is not None:
                yield self._going[0], given_up
                return
            rows = iter([found[number].outputs[0].logprobs[0] for number in range(len(found))])
            for place in self._going:
                search = self._searches[place]
                search.grow([next(rows) for _ in search.texts])
                if not search.live:
                    yield place, self._output(search)
            if not any(search.live for search in self._searches):
                return
            self._submit()

    def _output(self, search):
        answers = search.answers(self._model.tokenizer, self._logprobs)
        metrics = RequestMetrics(self._arrival, finished_time=time.monotonic())
        return RequestOutput("beams", None, search.prompt_ids, answers, True, metrics=metrics)
