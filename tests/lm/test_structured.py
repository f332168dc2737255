"""Structured output: masks against brute force, random answers that follow their constraint, and what is refused."""

import json
import pickle
import random
import re
import subprocess
import sys

import numpy as np
import pytest

from infinicore.lm import Tokenizer
from infinicore.lm.structured import Constraint

pytest.importorskip("llguidance")
tokenizers = pytest.importorskip("tokenizers")

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "bé", 3]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
LARK = 'start: greeting ("," greeting)*\ngreeting: "hello" | /[0-9]{2,3}/'
GBNF = 'root ::= greeting ("," greeting)*\ngreeting ::= "hello" | [0-9] [0-9] [0-9]?'
GREETINGS = re.compile(r"(hello|[0-9]{2,3})(,(hello|[0-9]{2,3}))*")
CHOICES = ["yes", "yesterday", "no\n", 'say "é" \\ \U0001f642', "  no"]


def byte_level(folder):
    """A byte-level tokenizer with 258 + 40 tokens."""
    pre = tokenizers.pre_tokenizers
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = pre.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=298, initial_alphabet=pre.ByteLevel.alphabet(), special_tokens=["<s>", "</s>"], show_progress=False
    )
    backend.train_from_iterator([json.dumps({"name": "hello yes no", "age": 12}), *CHOICES] * 3, trainer)
    backend.save(str(folder / "tokenizer.json"))
    return Tokenizer(folder / "tokenizer.json", {"eos_token": "</s>"})


@pytest.fixture(scope="module", params=["byte-level", "pieces"])
def tokenizer(request, tmp_path_factory):
    if request.param == "byte-level":
        return byte_level(tmp_path_factory.mktemp("structured"))
    folder = request.getfixturevalue("stories")
    return Tokenizer(folder / "tokenizer.json", {"eos_token": "</s>"})


def spelled(tokenizer):
    """{id: bytes} of every token that spells something, from the table itself."""
    table = json.loads(tokenizer.to_json())["model"]["vocab"]
    alphabet = {c: bytes([b]) for b, c in _byte_alphabet().items()}
    found = {}
    for text, index in table.items():
        if text in ("<s>", "</s>", "<unk>"):
            continue
        if "▁" in table:
            byte = re.fullmatch(r"<0x([0-9A-F]{2})>", text)
            found[index] = bytes([int(byte[1], 16)]) if byte else text.replace("▁", " ").encode()
        else:
            found[index] = b"".join(alphabet[c] for c in text)
    return found


def _byte_alphabet():
    """GPT-2's characters for bytes."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {byte: chr(byte) for byte in shown} | {byte: chr(256 + i) for i, byte in enumerate(hidden)}


def cut(tokenizer, text, spelling):
    """The ids of a text that stands after another, where pieces have no space before them."""
    if "▁" not in tokenizer.to_json():
        return tokenizer.encode(text, add_special_tokens=False)
    ids = tokenizer.encode("\n" + text, add_special_tokens=False)
    return ids[[spelling[i] for i in ids].index(b"\n") + 1 :]


def allowed(matcher, size):
    row = np.full(-(-size // 32), 0xDEADBEEF, np.uint32)
    matcher.fill_mask(row)
    return set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist())


def write(matcher, size, stop, seed, spelling, limit=400):
    """A random answer as bytes: whatever the masks allow, with the end preferred now and then."""
    draw, text = random.Random(seed), b""
    for _ in range(limit):
        if matcher.finished:
            return text
        tokens = sorted(allowed(matcher, size))
        token = stop if stop in tokens and draw.random() < 0.3 else draw.choice(tokens)
        assert matcher.accept(token)
        text += spelling.get(token, b"")
    return None


@pytest.mark.parametrize("size", [0, 5, 64])
def test_masks_of_choices_are_those_of_brute_force(tokenizer, size):
    """Every token of every state, also where the logits have more columns than the tokenizer has tokens."""
    spelling, stop = spelled(tokenizer), tokenizer.eos_token_id
    size += len(tokenizer)
    choices = [choice.encode() for choice in CHOICES]
    constraint = Constraint("choice", CHOICES)
    for seed in range(6):
        matcher, text, draw = constraint.matcher(tokenizer, size, (stop, 10**6)), b"", random.Random(seed)
        while not matcher.finished:
            wanted = {i for i, word in spelling.items() if any(c.startswith(text + word) for c in choices)}
            wanted |= {stop} if text in choices else set()
            found = allowed(matcher, size)
            # What has to come is cut as the tokenizer would cut it, which is how the model knows it.
            assert found == wanted or (len(found) == 1 and found < wanted), text
            token = draw.choice(sorted(found))
            refused = next(i for i in range(size) if i not in found)
            assert not matcher.accept(refused)  # and nothing has changed:
            assert matcher.accept(token), text
            text += spelling.get(token, b"")
        assert text in choices
    for choice in CHOICES:
        matcher = constraint.matcher(tokenizer, size, (stop,))
        ids = cut(tokenizer, choice, spelling)
        assert b"".join(map(spelling.get, ids)).decode() == choice
        assert all(map(matcher.accept, ids)) and stop in allowed(matcher, size), choice


def conforms(text):
    value = json.loads(text)
    assert value.keys() <= {"name", "age", "tags"} and {"name", "age"} <= value.keys()
    assert isinstance(value["name"], str) and len(value["name"]) <= 8
    assert type(value["age"]) is int and 0 <= value["age"] <= 150
    assert len(value.get("tags", ())) <= 3 and all(tag in ("a", "bé", 3) for tag in value.get("tags", ()))


FOLLOWED = {
    "json_schema": (SCHEMA, conforms),
    "json_object": (None, lambda text: dict(json.loads(text))),
    "regex": (r"[a-c]{2,4}([0-9]+|é)", lambda text: re.fullmatch(r"[a-c]{2,4}([0-9]+|é)", text)[0]),
    "lark": (LARK, lambda text: GREETINGS.fullmatch(text)[0]),
    "gbnf": (GBNF, lambda text: GREETINGS.fullmatch(text)[0]),
}


@pytest.mark.parametrize("kind", FOLLOWED)
def test_random_answers_follow_their_constraint(tokenizer, kind):
    value, check = FOLLOWED[kind]
    spec = {"type": "grammar" if kind in ("lark", "gbnf") else kind, "value": value}
    constraint = pickle.loads(pickle.dumps(Constraint.from_spec(spec)))
    spelling, size, complete = spelled(tokenizer), len(tokenizer), 0
    for seed in range(12):
        text = write(
            constraint.matcher(tokenizer, size, (tokenizer.eos_token_id,)), size, tokenizer.eos_token_id, seed, spelling
        )
        if text is not None:
            check(text.decode())
            complete += 1
    assert complete >= 3


def test_a_text_that_conforms_can_be_written(tokenizer):
    """As the tokenizer itself cuts it, though any other way is allowed as well."""
    text = '{"name": "no\\n", "age": 12,\n  "tags": ["a", 3]}'
    ids = cut(tokenizer, text, spelled(tokenizer))
    matcher = Constraint("json_schema", json.dumps(SCHEMA)).matcher(
        tokenizer, len(tokenizer), (tokenizer.eos_token_id,)
    )
    for token in ids:
        assert not matcher.finished and token in allowed(matcher, len(tokenizer)) and matcher.accept(token)
    assert (
        matcher.finished
        and not matcher.accept(ids[-1])
        and allowed(matcher, len(tokenizer)) == {tokenizer.eos_token_id}
    )


def test_any_token_can_end_an_answer(tokenizer):
    """Stop tokens are those of the request, which may be ordinary ones; the end-of-text token is not one by itself."""
    size = len(tokenizer)
    x = next(i for i, word in spelled(tokenizer).items() if word == b"x")
    matcher = Constraint("regex", "(ab)*").matcher(tokenizer, size, (x,))
    assert x in allowed(matcher, size) and tokenizer.eos_token_id not in allowed(matcher, size)
    assert not matcher.finished and matcher.accept(x) and matcher.finished and not matcher.accept(x)
    endless = Constraint("regex", "(ab)*").matcher(tokenizer, size)
    assert x not in allowed(endless, size) and not endless.accept(x)


def test_the_engine_follows_constraints(stories):
    """Several at once, greedily and drawn, beside an answer without one; each is what it is alone."""
    import infinicore
    from infinicore.lm.engine import Engine, SamplingParams

    model = infinicore.models.from_pretrained(stories)
    constraints = [
        Constraint("json_schema", SCHEMA),
        Constraint("choice", CHOICES),
        Constraint("regex", "[a-z ]+ cat"),
        None,
    ]
    params = [
        SamplingParams(temperature=temperature, seed=1, max_tokens=90, structured_outputs=constraint)
        for constraint in constraints
        for temperature in (0.0, 1.0)
    ]

    def answers(chosen):
        engine = Engine(model, max_num_seqs=8, num_blocks=64, max_model_len=256)
        for index, one in enumerate(chosen):
            engine.add_request(str(index), "Once upon a time", one)
        found = {}
        while engine.has_unfinished_requests():
            found |= {int(out.request_id): out.outputs[0] for out in engine.step() if out.finished}
        return [found[index] for index in range(len(chosen))]

    together = answers(params)
    for one, answer in zip(params[2:6], together[2:6]):
        assert answer.finish_reason == "stop" or one.structured_outputs.type == "regex"
        [alone] = answers([one])
        assert (alone.text, alone.finish_reason) == (answer.text, answer.finish_reason)
    for answer in together[:2]:
        if answer.finish_reason == "stop":
            conforms(answer.text)
        else:
            assert re.match(r'\{\s*"name"\s*:\s*"', answer.text)
    assert together[2].text in CHOICES and together[3].text in CHOICES
    assert all(re.fullmatch("[a-z ]+( cat)?", answer.text) for answer in together[4:6])
    engine = Engine(model, num_blocks=64, max_model_len=256)
    with pytest.raises(ValueError, match="cannot be followed"):
        engine.add_request("0", "x", SamplingParams(structured_outputs=Constraint("regex", r"[^\s\S]")))


REFUSED = [
    ("xml", "x", "`type` of a constraint must be one of"),
    ([], "x", "`type` of a constraint must be one of"),
    ("json_object", {}, "has no `value`"),
    ("json_schema", "{", "must be a JSON schema.*Expecting"),
    ("json_schema", None, "JSON schema.*got null"),
    ("json_schema", {"type": "text"}, "Invalid type"),
    ("json_schema", {"minimum": float("nan")}, "must be a JSON schema.*JSON compliant"),
    ("json_schema", {"type": "integer", "minimum": 5, "maximum": 3}, r"minimum \(5\) is greater"),
    ("json_schema", {"allOf": [{"type": "string"}, {"type": "integer"}]}, "Unsatisfiable"),
    ("json_schema", {"type": "array", "uniqueItems": True}, "uniqueItems"),
    ("json_schema", {"$ref": "http://example.com/schema"}, "not present"),
    ("json_schema", {"enum": ["x" * 70000]}, "at most 65536"),
    ("regex", "(", "unclosed group"),
    ("regex", "(?=a)", "look-around"),
    ("regex", r"[^\s\S]", "cannot"),
    ("regex", 5, "must be a text"),
    ("regex", "\ud800", "surrogate"),
    ("choice", [], "list of strings"),
    ("choice", "yes", "list of strings"),
    ("grammar", "start: x", "unknown name"),
    ("grammar", 'foo: "a"', "no start rule"),
    ("grammar", "root ::= x", "Rule 'x' not found"),
    ("grammar", "start: start", "cannot"),
    ("grammar", "root ::= " + "(" * 5000, "cannot be followed"),
]


@pytest.mark.parametrize("kind,value,message", REFUSED)
def test_what_cannot_be_followed_is_one_sentence(tmp_path_factory, kind, value, message):
    with pytest.raises((ValueError, TypeError), match=message) as error:
        Constraint(kind, value).matcher(byte_level(tmp_path_factory.mktemp("refused")), 298)
    assert "\n" not in str(error.value) and len(str(error.value)) < 500


def test_a_spec_is_a_type_and_a_value():
    for spec in ({}, {"type": "regex", "value": "a", "more": 1}, "regex"):
        with pytest.raises(ValueError, match="`type` and `value`"):
            Constraint.from_spec(spec)


_DEEP = """
import sys
sys.path.insert(0, sys.argv[1])
from infinicore.lm.structured import Constraint
deep = {"type": "string"}
for _ in range(5000):
    deep = {"type": "array", "items": deep}
rules = 3000
for kind, value in (
    ("json_schema", deep),
    ("json_schema", '{"items":' * 3000 + "{}" + "}" * 3000),
    ("json_schema", {"$ref": "#/$defs/0", "$defs": {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(1500)}}),
    ("grammar", "start: r0\\n" + "".join(f"r{i}: r{i + 1}\\n" for i in range(rules)) + f'r{rules}: "a"'),
    ("grammar", "start: A0\\n" + "".join(f"A{i}: A{i + 1}\\n" for i in range(rules)) + f'A{rules}: "a"'),
    ("grammar", "start: " + "(" * 9000 + '"a"' + ")" * 9000),
    ("regex", "(" * 9000 + "a" + ")" * 9000),
):
    try:
        Constraint(kind, value)
        print("followed")
    except ValueError as error:
        print("refused")
"""


def test_depth_does_not_end_the_process(root):
    """References that overflow a stack of 8 MB, let alone the 128 KB of here."""
    run = f"import threading; threading.stack_size(1 << 17); t = threading.Thread(target=exec, args=({_DEEP!r}, {{}}))"
    done = subprocess.run(
        [sys.executable, "-c", f"{run}; t.start(); t.join()", str(root)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    answers = done.stdout.split()
    assert answers[:2] == ["refused"] * 2 and answers[5:] == ["refused"] * 2 and len(answers) == 7
