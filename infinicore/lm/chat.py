"""Chat templates: messages to the text that a model was trained on, by jinja2 in a sandbox, as transformers does."""

import functools
from pathlib import Path

from ..io.json import read_json

SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")  # of a tokenizer, which templates know by these names


def load_template(folder, tokenizer_config):
    """The chat template of a checkpoint folder, or None: chat_template.jinja, else tokenizer_config.json's."""
    folder = Path(folder)
    if (folder / "chat_template.jinja").is_file():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    path = folder / "chat_template.json"
    template = (read_json(path, "chat template") if path.is_file() else tokenizer_config).get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {row.get("name"): row.get("template") for row in template if isinstance(row, dict)}
        template = named.get("default") or next(iter(named.values()), None)
    return template if isinstance(template, str) else None


@functools.cache
def _compile(template):
    from . import sandbox

    return sandbox.Environment().from_string(template)


def render(template, messages, *, special=None, add_generation_prompt=True, tools=None, documents=None, **variables):
    """The text for a list of messages (dicts with `role` and `content`).

    `tools` are functions that the model may call, as OpenAI's API describes them; `variables` the template's own.
    `special` maps `bos_token` and the like to their texts. Raises ValueError with the template's own words if it
    refuses the messages, and for a template that is wrong, that never ends or that fills memory.
    """
    from . import sandbox

    for message in messages:
        if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
            raise ValueError(f"`messages` must be dicts with `role` and `content`, got {message!r}")
    messages = [dict(message) for message in messages]
    try:
        with sandbox.Allowance(messages):
            return _compile(template).render(
                messages=messages,
                tools=tools,
                documents=documents,
                add_generation_prompt=add_generation_prompt,
                **(special or {}),
                **variables,
            )
    except sandbox.TooMuch as error:
        raise ValueError(f"the chat template is cut off: {error}") from None
    except sandbox.TemplateError as error:
        raise ValueError(f"the chat template refuses these messages: {error}") from None
    except Exception as error:  # a template is a program, and may fail like any other
        raise ValueError(f"the chat template fails: {str(error)[:500] or type(error).__name__}") from None


_MARK = "\ue000goes on here\ue000"


def render_open(write, messages):
    """`write(messages)`, the text of a conversation, cut off where the content of the last message ends.

    ValueError where nothing can go on from it: it is empty, or the template does not show it.
    """
    last = messages[-1]
    if not last["content"].strip():
        raise ValueError("`continue_final_message` needs a last message with a text to go on from, and it is empty")
    before, mark, _ = write([*messages[:-1], {**last, "content": last["content"] + _MARK}]).rpartition(_MARK)
    if not mark:
        raise ValueError("`continue_final_message` cannot be: the chat template does not show the last message")
    return before


def concatenate(messages):
    """Plain text for a model without a chat template: one message per line, then an open line for the answer."""
    return "\n".join(message["content"] for message in messages) + "\n"
