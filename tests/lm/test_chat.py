"""Chat templates render as in transformers, in a sandbox."""

import json

import pytest

from infinicore.lm import chat, sandbox

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
        "{% for i in [1] %}" * 40 + "{% endfor %}" * 40,
        "{{ " + "(" * 2000 + "1" + ")" * 2000 + " }}",
        "{% include 'other' %}",
    ],
)
def test_refusals_are_one_sentence(template):
    with pytest.raises(ValueError, match="chat template"):
        chat.render(template, MESSAGES)


GROWING = (
    "{{% set ns = namespace(x={start}) %}}{{% for i in range(60) %}}{{% set ns.x = {step} %}}{{% endfor %}}"
    "{{{{ ns.x }}}}"
)
ENDLESS = {
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "tests of loops": "{% for i in range(99999) %}{% for j in range(99999) if false %}{% endfor %}{% endfor %}",
    "loops over texts": "{% for c in 'a' * 10**6 %}{% for d in 'a' * 10**6 %}{% endfor %}{% endfor %}",
    "text in a loop": "{% for i in range(99999) %}" + "text " * 10_000 + "{% endfor %}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "recursive loops": "{% for x in 'abc' recursive %}{% if loop.depth < 60 %}{{ loop('abc') }}{% endif %}{% endfor %}",
    "power": "{{ 10 ** (10**10) }}",
    "products": GROWING.format(start="3", step="ns.x * ns.x"),
    "repeated text": "{{ 'a' * 10**10 }}",
    "repeated list": "{{ (10**10 * [0]) | length }}",
    "sums of texts": GROWING.format(start="'a'", step="ns.x + ns.x"),
    "texts side by side": GROWING.format(start="'a'", step="ns.x ~ ns.x"),
    "one text many times": "{% set x = 'a' * 10**6 %}{{ x" + " ~ x" * 9999 + " }}",
    "blocks": "{% set ns = namespace(x='a') %}{% for i in range(60) %}"
    "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}{% endfor %}",
    "nested lists": GROWING.format(start="[]", step="[ns.x, ns.x]"),
    "nested dicts": GROWING.format(start="[]", step="dict(a=ns.x, b=ns.x)"),
    "lists of lists": GROWING.format(start="[[]]", step="[ns.x] * 9"),
    "sum of lists": "{{ ([[1]] * 10**6) | sum(start=[]) | length }}",
    "replace": GROWING.format(start="'aa'", step="ns.x.replace('a', ns.x)"),
    "replace filter": GROWING.format(start="'aa'", step="ns.x | replace(new=ns.x, old='a')"),
    "join": GROWING.format(start="'aa'", step="ns.x.join(ns.x)"),
    "join filter": GROWING.format(start="'aa'", step="ns.x | join(ns.x)"),
    "translate": GROWING.format(start="'aa'", step="ns.x.translate({97: ns.x})"),
    "formatted": GROWING.format(start="'aa'", step="'%s%s' % (ns.x, ns.x)"),
    "formatted by name": GROWING.format(start="'aa'", step="'{0}{0}'.format(ns.x)"),
    "width": "{{ '%1000000000d' % 1 }}",
    "width with a name": "{{ '%(a)1000000000d' % {'a': 1} }}",
    "width as an argument": "{{ '%*d' % (10**9, 1) }}",
    "width of a filter": "{{ '%1000000000d' | format(1) }}",
    "width of a method": "{{ '{:1000000000}'.format(1) }}",
    "width inside of a width": "{{ '{:{}}'.format(1, 10**9) }}",
    "width by a map": "{{ '{x:>1000000000}'.format_map({'x': 1}) }}",
    "center": "{{ 'a' | center(10**10) }}",
    "center method": "{{ 'a'.center(10**10) }}",
    "center constant": "{{ 'a' | center(10000000000) }}",
    "center of many": "{{ range(99999) | map('center', 99999) | join }}",
    "indent": "{{ ('a\n' * 10**4) | indent(10**4) }}",
    "tabs": "{{ ('\t' * 10**4).expandtabs(10**4) }}",
    "zeros": "{{ '1'.zfill(10**10) }}",
    "bytes": "{{ (1).to_bytes(10**10, 'big') }}",
    "batch": "{{ [1] | batch(10**10, 0) | list }}",
    "json": "{{ [[1]] | tojson(indent=10**10) }}",
    "rounding": "{{ 1 | round(10**10, 'ceil') }}",
}


@pytest.mark.parametrize("name", ENDLESS)
def test_what_never_ends_or_fills_memory_is_cut_off(name, monkeypatch):
    if name != "loops":
        monkeypatch.setattr(sandbox, "_UNITS", 1 << 23)  # the same, sooner
    with pytest.raises(ValueError, match="the chat template is cut off: ") as raised:
        chat.render(ENDLESS[name], MESSAGES)
    assert "\n" not in str(raised.value)


def test_recursion_ends():
    for template in ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{% block a %}{{ self.a() }}{% endblock %}"):
        with pytest.raises(ValueError, match=r"the chat template fails: .*recursion"):
            chat.render(template, MESSAGES)
    template = "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}"
    assert "Namespace" in chat.render(template, MESSAGES)


def test_long_conversations_render():
    """Templates look at all messages for each of them, and some collect the text on the way."""
    count, text = 500, "All work and no play makes Jack a dull boy.\n" * 20
    messages = [{"role": ("user", "assistant")[i % 2], "content": f"{i}. {text}"} for i in range(count)]
    template = """{% set ns = namespace(text='') %}{% for m in messages %}
{% if m == (messages | selectattr('role', 'equalto', m.role) | list)[-1] %}last {% endif %}
{% set ns.text = ns.text + m.role + ': ' + m.content | trim ~ eos_token %}{% endfor %}{{ ns.text }}"""
    expected = "".join(f"{m['role']}: {m['content'].strip()}</s>" for m in messages)
    rendered = chat.render(template, messages, special={"eos_token": "</s>"})
    assert rendered.replace("last ", "") == expected and rendered.count("last ") == 2
    whole = [{"role": "user", "content": "ä" * 10_000_000}]
    assert len(chat.render(CHATML, whole)) > 10_000_000


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
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": {"x": 1}}))
    assert chat.load_template(tmp_path, {"chat_template": "a"}) is None
    (tmp_path / "chat_template.jinja").write_text("f")
    assert chat.load_template(tmp_path, {"chat_template": "a"}) == "f"


def test_without_a_template():
    assert chat.concatenate(MESSAGES[1:3]) == "Hi <there> & 日本\nHello.\n"
