"""A conversation with a model: messages, the chat template, and a cache that keeps what was said."""

from . import chat
from .generation import generate, make_engine
from .tokenizer import load_config, tokenizer_of

_BLOCK = 32  # tokens: what earlier turns have in whole blocks is found again


def encode(tokenizer, template, messages, **variables):
    """The token ids of messages, as a chat template writes them, ready for the assistant's answer.

    Without a template (None), they are written one after another; `variables` are for the template.
    """
    if template is None:
        return tokenizer.encode(chat.concatenate(messages))
    special = {key: tokenizer.special_text(key) or "" for key in chat.SPECIAL}
    return tokenizer.encode(chat.render(template, messages, special=special, **variables), add_special_tokens=False)


class Conversation:
    """`say(text)` returns the answer as a `Generation`; `keep(generation)` notes it as the assistant's turn.

    `system` is an optional first message, `context` how many tokens the conversation may grow to; the other options are
    those of `infinicore.lm.generate` (the cache is paged in any case). Turns that are already in the cache are not
    computed again; an answer that is under way ends when another one begins.
    `template` is the checkpoint's chat template; without one (None), messages are written one after another.
    """

    def __init__(
        self, model, *, system=None, context=4096, cache="static", decode_threads=None, kv_cache_dtype=None, **options
    ):
        self.model, self.options = model, options
        self.tokenizer = tokenizer_of(model)
        if self.tokenizer is None:
            raise ValueError(f"a conversation needs a tokenizer, and {model.path} has no tokenizer")
        self.template = chat.load_template(model.path, load_config(model.path))
        self._system = [] if system is None else [{"role": "system", "content": system}]
        self.context = min(context, model.config.context)
        self._engine = make_engine(
            model, 1, self.context, cache=cache, decode_threads=decode_threads, kv_cache_dtype=kv_cache_dtype,
            block_size=_BLOCK, enable_prefix_caching=True,
        )  # fmt: skip
        self._answer = None
        self.reset()

    def reset(self):
        """Forget everything but the system message."""
        self.messages = list(self._system)

    def prompt_ids(self):
        """The token ids of the conversation so far, ready for the assistant's answer."""
        return encode(self.tokenizer, self.template, self.messages)

    def say(self, text):
        """Add the user's message and begin the answer. ValueError if the conversation has grown too long."""
        self.messages.append({"role": "user", "content": text})
        try:
            ids = self.prompt_ids()
            if len(ids) >= self.context:
                raise ValueError(
                    f"the conversation has {len(ids)} tokens and the context {self.context}; start over with reset"
                )
            if self._answer is not None:
                self._answer.close()
            self._answer = generate(self.model, ids, engine=self._engine, **self.options)
            return self._answer
        except BaseException:
            self.messages.pop()
            raise

    def keep(self, generation):
        """Note what the assistant said."""
        self.messages.append({"role": "assistant", "content": generation.completion.text})
