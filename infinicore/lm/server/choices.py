"""Parts that several routes write: usage, log probabilities, ids, the wishes that all of them have in common."""

import time
import uuid

from .errors import APIError


def new_id(prefix, given=None):
    """A fresh id, or one that a client has `given`."""
    return f"{prefix}-{given or uuid.uuid4().hex}"


def now():
    return int(time.time())


class Usage:
    """Counts tokens of the prompts and answers of a request. `total(places)`."""

    def __init__(self, prompt_tokens):
        self.prompt, self.completion, self.cached = prompt_tokens, 0, 0

    def add(self, output):
        """Count an output: what it says is new, and all of it where it is the only one."""
        self.completion += sum(len(answer.token_ids) for answer in output.outputs)
        self.cached += output.num_cached_tokens

    def body(self):
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }


def _text(model, token_id, row):
    told = row.decoded_token
    return model.token_text(token_id) if told is None else told


def _entry(model, token_id, row):
    text = _text(model, token_id, row)
    return {"token": text, "logprob": max(row.logprob, -9999.0), "bytes": list(text.encode("utf-8", "replace"))}


def chat_logprobs(model, answer, top):
    """The `logprobs` object of a chat choice, with the `top` most likely tokens at each place."""
    content = []
    for token_id, rows in zip(answer.token_ids, answer.logprobs or ()):
        entry = _entry(model, token_id, rows[token_id])
        best = sorted(rows.items(), key=lambda item: -item[1].logprob)[:top]
        content.append(entry | {"top_logprobs": [_entry(model, i, row) for i, row in best]})
    return {"content": content, "refusal": None}


def text_logprobs(model, token_ids, rows, top, offset=0):
    """The `logprobs` object of a completion's choice; `offset` is where its text begins. A row may be None."""
    tokens, values, best, offsets = [], [], [], []
    for token_id, row in zip(token_ids, rows):
        text = model.token_text(token_id) if row is None else _text(model, token_id, row[token_id])
        tokens.append(text)
        offsets.append(offset)
        offset += len(text)
        values.append(None if row is None else max(row[token_id].logprob, -9999.0))
        ranked = None if row is None else sorted(row.items(), key=lambda item: -item[1].logprob)[: max(top, 1)]
        best.append(ranked and {_text(model, i, one): max(one.logprob, -9999.0) for i, one in ranked if top})
    return {"tokens": tokens, "token_logprobs": values, "top_logprobs": best, "text_offset": offsets}


def prompt_logprobs(model, output):
    """vLLM's field of that name: for each token of the prompt, ids to what is known of them."""
    if output.prompt_logprobs is None:
        return None
    return [
        row
        and {
            str(i): {"logprob": p.logprob, "rank": p.rank, "decoded_token": _text(model, i, p)} for i, p in row.items()
        }
        for row in output.prompt_logprobs
    ]


def check_stream_options(request):
    if request.stream_options is not None and not request.stream:
        raise APIError(400, "`stream_options` is for streams: set `stream`, or leave it out", param="stream_options")
    if request.stream and request.prompt_logprobs is not None:
        raise APIError(400, "`prompt_logprobs` cannot be streamed: leave one of the two out", param="prompt_logprobs")
