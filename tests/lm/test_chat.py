"""Chat templates render as in transformers, in a sandbox."""

import json

import pytest

from infinicore.lm import chat

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi <there> & 日本"},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "Bye"},
]
CHATML = """{% for message in messages %}
    {% if loop.first and message['role'] != 'system' %}
        {{- '<|im_start|>system\\nDefault<|im_end|>\\n' }}
    {% endif %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{%- endif %}
"""
TEMPLATES = [
    CHATML,
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content | trim }}{{ eos_token }}\n{% endfor %}",
    "{% for m in messages %}{{ m | tojson }}{% if loop.index > 2 %}{% break %}{% endif %}\n{% endfor %}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
    "{% generation %}{{ ns.n }}{{ m.content }}{% endgeneration %}{% endfor %}",
    "{{ messages[0]['content'] }}{% if tools %}tools{% endif %}{{ strftime_now('%Y')[:2] }}",
]


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("prompt", [True, False])
def test_equals_transformers(template, prompt):
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    theirs = utils.render_jinja_template([MESSAGES], chat_template=template, add_generation_prompt=prompt, **special)
    ours = chat.render(template, MESSAGES, special=special, add_generation_prompt=prompt)
    assert ours == theirs[0][0]


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('only users') }}",
        "{% if %}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ undefined_thing.attribute }}",
        "{{ 1 / 'x' }}",
        "{{ 1 / 0 }}",
        "{% for i in range(10**12) %}{% endfor %}",
    ],
)
def test_refusals_are_one_sentence(template):
    with pytest.raises(ValueError, match="chat template"):
        chat.render(template, MESSAGES)


def test_messages_are_checked():
    with pytest.raises(ValueError, match="messages"):
        chat.render("{{ messages }}", [{"role": "user"}])


def test_template_is_found(tmp_path):
    assert chat.load_template(tmp_path, {}) is None
    assert chat.load_template(tmp_path, {"chat_template": "a"}) == "a"
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    assert chat.load_template(tmp_path, {"chat_template": named}) == "d"
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "j"}))
    assert chat.load_template(tmp_path, {"chat_template": "a"}) == "j"
    (tmp_path / "chat_template.jinja").write_text("f")
    assert chat.load_template(tmp_path, {"chat_template": "a"}) == "f"


def test_without_a_template():
    assert chat.concatenate(MESSAGES[1:3]) == "Hi <there> & 日本\nHello.\n"
