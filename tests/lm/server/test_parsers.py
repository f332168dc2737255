"""Tool calls and thoughts are found wherever the text is cut."""

import json
import random

import pytest

from infinicore.lm.server import reasoning, tools
from infinicore.lm.server.calls import Arguments, Call
from infinicore.lm.server.tools import Demanded, Hermes, Llama3, Mistral

A, B = '{"name": "f", "arguments": {"x": 1}}', '{"name": "g", "arguments": {"s": "a } </tool_call"}}'
F, G = ("f", '{"x": 1}'), ("g", '{"s": "a } </tool_call"}')
L = '{"name": "f", "parameters": {"x": 1}}'

TOOLS = [
    (Hermes, f"<tool_call>\n{A}\n</tool_call>", [F]),
    (Hermes, f"Sure.\n<tool_call>{A}</tool_call>\n<tool_call>{B}</tool_call>\n", ["Sure.\n", F, G]),
    (Hermes, f"<tool_call>{A}", [F]),  # no closing tag at the end
    (Hermes, "<tool_call>{bad}</tool_call> and <b>", ["<tool_call>{bad}</tool_call> and <b>"]),
    (Hermes, "a < b, <tool", ["a < b, <tool"]),
    (Hermes, f"<tool_call>no <tool_call>{A}</tool_call>\n and so", ["<tool_call>no ", F, "\n and so"]),
    (Hermes, f"<tool_call>[{A}, {A}]</tool_call>", [F, F]),
    (Hermes, f"<tool_call>{A[:-1]}</tool_call> b", [F, " b"]),  # without the last brace
    (Hermes, f"<tool_call>{A[:-2]}</tool_call>b", [("f", '{"x": 1'), "b"]),  # without two
    (Hermes, f"<tool_call>{A[:-4]}", [("f", '{"x":')]),  # cut off in its arguments
    (Hermes, '<tool_call>{"arguments": {"x": 1}, "name": "f"}</tool_call>', [F]),
    (Hermes, r'<tool_call>{"id": [1, {}], "name": "f", "arguments": "{\"x\": 1}"}</tool_call>', [F]),
    (Hermes, '<tool_call>{"name": "f", "id": -1.5e3}</tool_call>', [("f", "{}")]),
    (
        Hermes,
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        ['<tool_call>{"name": 3, "arguments": {}}</tool_call>'],
    ),
    (
        Hermes,
        r'<tool_call>{"name": "f", "arguments": {"a\\": "\"}\\", "b": [{}]}, "id": 1}</tool_call>',
        [("f", r'{"a\\": "\"}\\", "b": [{}]}')],
    ),
    (Hermes, "<tool_call>[1]</tool_call>", ["<tool_call>[1]</tool_call>"]),
    (Llama3, L, [F]),
    (Llama3, f"<|python_tag|>{L}; {L}<|eom_id|>", [F, F]),
    (Llama3, f"  {L}", [F]),
    (Llama3, '{"x": 1}', ['{"x": 1}']),
    (Llama3, '{"name": "f", "param', ['{"name": "f", "param']),
    (Llama3, f"It is {L}", [f"It is {L}"]),
    (Llama3, "", []),
    (Llama3, f"[{L}, {L}]<|eot_id|>", [F, F]),
    (Llama3, "[Note] 1", ["[Note] 1"]),
    (Llama3, L[:-5], [("f", '{"x"')]),
    (Mistral, f"[TOOL_CALLS][{A}, {B}]", [F, G]),
    (Mistral, f"Now. [TOOL_CALLS] [{A}]</s>", ["Now. ", F]),
    (Mistral, '[TOOL_CALLS]f{"x": 1}[TOOL_CALLS]g[ARGS]{"s": "a } </tool_call"}', [F, G]),
    (Mistral, "[TOOL] no [TOOL_CALL", ["[TOOL] no [TOOL_CALL"]),
    (Mistral, "[TOOL_CALLS] no", ["[TOOL_CALLS] no"]),
    (Mistral, '[TOOL_CALLS] f[CALL_ID]a1[ARGS] {"x": 1}</s>', [F]),
    (Mistral, f"[TOOL_CALLS][{A}, 5]", [F, ", 5]"]),
    (Demanded, f"[{A}]", [F]),
    (Demanded, '[{"name": "f", "argu', ['[{"name": "f", "argu']),
    (Demanded, '[{"name": "f", "arguments": {"x"', [("f", '{"x"')]),
]


def joined(parts):
    """Parts with neighbouring texts as one, and calls as (name, arguments)."""
    result = []
    for part in parts:
        if isinstance(part, Call):
            result.append((part.name, ""))
        elif isinstance(part, Arguments):
            result[-1] = result[-1][0], result[-1][1] + part.text
        elif isinstance(part, str) and result and isinstance(result[-1], str):
            result[-1] += part
        elif part != "":
            result.append(part)
    return result


@pytest.mark.parametrize("kind, text, wanted", TOOLS)
@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_tools(kind, text, wanted, size):
    parser = kind()
    parts = [part for at in range(0, len(text), size) for part in parser.push(text[at : at + size])]
    assert joined(parts + parser.flush()) == wanted


@pytest.mark.parametrize("kind, before", [(Hermes, "<tool_call>"), (Llama3, ""), (Mistral, "[TOOL_CALLS]["),
                                          (Demanded, "[")])  # fmt: skip
def test_arguments_come_as_they_are_written(kind, before):
    parser = kind()
    assert parser.push(before + '{"name": "f", "arguments": ') == []
    assert parser.push('{"x": "a') == [Call("f"), Arguments('{"x": "a')]
    assert parser.push(" \\") == [Arguments(" \\")] and parser.push('"}') == [Arguments('"}')]
    assert parser.push('"}, ') == [Arguments('"}')] and parser.push('"id": 1}') == parser.flush() == []
    parser = Mistral()
    assert parser.push('[TOOL_CALLS]f{"x"') == [Call("f"), Arguments('{"x"')]


def test_random_calls_survive_any_cut():
    draw = random.Random(2)
    for _ in range(200):
        value = {"s": "".join(draw.choices('{}[]"\\<>/ é\n', k=draw.randrange(12))), "l": [{"d": draw.random()}, None]}
        text = "<tool_call>" + json.dumps({"name": "f", "arguments": value}, ensure_ascii=draw.random() < 0.5)
        text += draw.choice(["", "</tool_call>"])
        parser, parts = Hermes(), []
        while text:
            size = draw.randint(1, 9)
            parts += parser.push(text[:size])
            text = text[size:]
        ((name, arguments),) = joined(parts + parser.flush())
        assert name == "f" and json.loads(arguments) == value


def test_text_is_not_held_back():
    parser = Hermes()
    assert parser.push("Hello <b>") == ["Hello <b>"] and parser.push(" <to") == [" "] and parser.push("p>") == ["<top>"]


Q, D = reasoning.PARSERS["qwen3"], reasoning.PARSERS["deepseek_r1"]
THOUGHTS = [
    (Q, "", "<think>\nI see.\n</think>\n\nYes <think>", ("I see.", "Yes <think>")),
    (Q, "", "No thoughts </think> here", ("", "No thoughts </think> here")),
    (Q, "user<think>\n", "I see.\n\n</think>\nYes", ("I see.", "Yes")),
    (Q, "<think>\n\n</think>\n\n", "Yes", ("", "Yes")),
    (D, "", "I see</think>Yes", ("I see", "Yes")),
    (D, "", "<think>I see</think>Yes", ("I see", "Yes")),
    (D, "", "cut o </thi", ("cut o </thi", "")),
    (Q, "", "<thi", ("", "<thi")),
    (Q, "", "", ("", "")),
]


@pytest.mark.parametrize("row, prompt, text, wanted", THOUGHTS)
@pytest.mark.parametrize("size", [1, 4, 1000])
def test_thoughts(row, prompt, text, wanted, size):
    splitter = reasoning.Splitter(row, prompt)
    pairs = [splitter.push(text[at : at + size]) for at in range(0, len(text), size)] + [splitter.flush()]
    assert tuple("".join(part) for part in zip(*pairs)) == wanted


def test_choice_of_parsers():
    assert tools.choose("auto", "... <tool_call> ...") is Hermes and tools.choose("auto", None) is None
    assert tools.choose("auto", "[TOOL_CALLS]") is Mistral and tools.choose("auto", "<|python_tag|>") is Llama3
    assert reasoning.choose("auto", "x</think>") is Q and reasoning.choose("none", "</think>") is None
    for choose in (tools.choose, reasoning.choose):
        with pytest.raises(ValueError, match="must be auto, none"):
            choose("nonsense", None)


def test_demanded_calls_are_a_schema():
    parameters = {"type": "object", "properties": {"p": {"$ref": "#/$defs/P"}}, "$defs": {"P": {"type": "integer"}}}
    given = [{"type": "function", "function": {"name": name, "parameters": parameters}} for name in ("f", "g")]
    spec = tools.constraint(given, "required", True)
    assert spec["type"] == "json_schema" and json.dumps(spec["value"]).count('"const"') == 2
    assert tools.constraint(given, "g", True)["value"]["maxItems"] == 1
    llguidance = pytest.importorskip("llguidance")
    text = json.dumps(spec["value"])
    message = llguidance.LLMatcher.validate_grammar(llguidance.LLMatcher.grammar_from_json_schema(text))
    assert not message, message
