"""Chat templates: messages to the text that a model was trained on, by jinja2 in a sandbox, as transformers does."""

import datetime
import functools
import json
from pathlib import Path

from ..io.json import read_json


def load_template(folder, tokenizer_config):
    """The chat template of a checkpoint folder, or None: chat_template.jinja, else tokenizer_config.json's."""
    folder = Path(folder)
    for name in ("chat_template.jinja", "chat_template.json"):
        path = folder / name
        if path.is_file():
            if name.endswith(".json"):
                return read_json(path, "chat template").get("chat_template")
            return path.read_text(encoding="utf-8")
    template = tokenizer_config.get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {row.get("name"): row.get("template") for row in template if isinstance(row, dict)}
        template = named.get("default") or next(iter(named.values()), None)
    return template if isinstance(template, str) else None


@functools.cache
def _compile(template):
    import jinja2
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(jinja2.ext.Extension):
        """`{% generation %}` marks what the assistant wrote, for training; here it only passes the text on."""

        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.Scope(body, lineno=line)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment.from_string(template)


def render(template, messages, *, special=None, add_generation_prompt=True, **variables):
    """The text for a list of messages (dicts with `role` and `content`).

    `special` maps `bos_token` and the like to their texts. Raises ValueError with the template's own words if it
    refuses the messages, and for a template that is wrong.
    """
    import jinja2

    for message in messages:
        if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
            raise ValueError(f"`messages` must be dicts with `role` and `content`, got {message!r}")
    try:
        return _compile(template).render(
            messages=[dict(message) for message in messages],
            tools=None,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **(special or {}),
            **variables,
        )
    except jinja2.exceptions.TemplateError as error:
        raise ValueError(f"the chat template refuses these messages: {error}") from None
    except (TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"the chat template fails: {error}") from None


def concatenate(messages):
    """Plain text for a model without a chat template: one message per line, then an open line for the answer."""
    return "\n".join(message["content"] for message in messages) + "\n"
