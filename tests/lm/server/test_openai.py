"""The official client against the server."""

import json

import pytest

openai = pytest.importorskip("openai")

TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}},
}
CALL = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=20)


def user(text):
    return [{"role": "user", "content": text}]


def test_chat(client):
    reply = client.chat.completions.create(model="tiny", messages=user("say Once upon a time"))
    choice = reply.choices[0]
    assert choice.message.content.strip() == "Once upon a time" and choice.finish_reason == "stop"
    assert reply.usage.completion_tokens > 3 and reply.usage.total_tokens > reply.usage.completion_tokens
    assert reply.object == "chat.completion" and reply.id.startswith("chatcmpl-") and reply.model == "tiny"


def test_stream(client):
    options = {"include_usage": True}
    chunks = list(
        client.chat.completions.create(
            model="tiny", messages=user("say Once, é 中 😀"), stream=True, stream_options=options
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant" and chunks[-1].usage.completion_tokens > 3
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text.strip() == "Once, é 中 😀" and chunks[-2].choices[0].finish_reason == "stop"
    assert all("�" not in (chunk.choices[0].delta.content or "") for chunk in chunks[:-1])


def test_null_is_not_given_and_any_seed_is_one(client):
    for options in ({"stop": None, "logit_bias": None, "n": None}, {"seed": -(1 << 63)}, {"seed": -1}):
        nothing = {"priority": None, "parallel_tool_calls": None, "functions": None}
        options = options | {"extra_body": nothing}
        reply = client.chat.completions.create(model="tiny", messages=user("say x y"), **options)
        assert reply.choices[0].message.content.strip() == "x y"


def test_stop_length_and_many(client):
    reply = client.chat.completions.create(model="tiny", messages=user("say one two three"), stop=["two"], n=2)
    assert [c.message.content.strip() for c in reply.choices] == ["one", "one"]
    reply = client.chat.completions.create(model="tiny", messages=user("say one two three"), max_completion_tokens=2)
    assert reply.choices[0].finish_reason == "length" and reply.usage.completion_tokens == 2


def test_logprobs(client):
    reply = client.chat.completions.create(model="tiny", messages=user("say Once upon"), logprobs=True, top_logprobs=2)
    rows = reply.choices[0].logprobs.content
    assert len(rows) == reply.usage.completion_tokens and rows[-1].logprob == -0.5
    assert [one.logprob for one in rows[-1].top_logprobs] == [-0.5, -1.5]
    chunks = client.chat.completions.create(model="tiny", messages=user("say Once upon"), logprobs=True, stream=True)
    rows = [row for c in chunks if c.choices[0].logprobs for row in c.choices[0].logprobs.content]
    assert len(rows) == reply.usage.completion_tokens
    reply = client.completions.create(model="tiny", prompt="say Once upon", logprobs=1, echo=True, max_tokens=5)
    rows = reply.choices[0].logprobs
    assert rows.token_logprobs[0] is None and rows.token_logprobs[1] == -0.25 and rows.token_logprobs[-1] == -0.5
    assert len(rows.tokens) == len(rows.text_offset) == reply.usage.total_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_tools(client, stream):
    options = dict(model="tiny", messages=user(f"slow 2 Hm. {CALL} {CALL}"), tools=[TOOL], stream=stream)
    reply = client.chat.completions.create(**options)
    if stream:
        chunks = list(reply)
        deltas = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        reason = chunks[-1].choices[0].finish_reason
        calls = [delta for delta in deltas if delta.id]
        assert [call.index for call in calls] == [0, 1] and len(deltas) > 6  # arguments come in pieces
        for delta in deltas:
            if not delta.id:
                calls[delta.index].function.arguments += delta.function.arguments
    else:
        message, reason = reply.choices[0].message, reply.choices[0].finish_reason
        calls, text = message.tool_calls, message.content
    assert reason == "tool_calls" and text.strip() == "Hm."
    assert [(c.function.name, json.loads(c.function.arguments)) for c in calls] == [("f", {"x": 1})] * 2
    assert len({call.id for call in calls}) == 2
    # The answer goes back as it came, with the result of the call.
    if not stream:
        turns = [
            *options["messages"],
            message.model_dump(),
            {"role": "tool", "tool_call_id": calls[0].id, "content": "say 7"},
        ]
        reply = client.chat.completions.create(model="tiny", messages=turns, tools=[TOOL])
        assert reply.choices[0].message.content.strip() == "7"


def test_tool_choice(client):
    """The fake engine knows no constraints, so it is asked for what a constraint would have made of it."""
    text = 'say [{"name": "f", "arguments": {"x": 2}}]'
    for choice in ("required", {"type": "function", "function": {"name": "f"}}):
        reply = client.chat.completions.create(model="tiny", messages=user(text), tools=[TOOL], tool_choice=choice)
        assert reply.choices[0].message.tool_calls[0].function.arguments == '{"x": 2}'
        assert reply.choices[0].message.content is None and reply.choices[0].finish_reason == "tool_calls"
    reply = client.chat.completions.create(model="tiny", messages=user(f"say {CALL}"), tools=[TOOL], tool_choice="none")
    assert reply.choices[0].message.content.strip() == CALL


def test_reasoning(client):
    text = "say <think>Hm.</think>Yes"
    message = client.chat.completions.create(model="tiny", messages=user(text)).choices[0].message
    assert message.reasoning_content == "Hm." and message.content == "Yes"
    deltas = [
        c.choices[0].delta for c in client.chat.completions.create(model="tiny", messages=user(text), stream=True)
    ]
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == "Hm."
    assert "".join(delta.content or "" for delta in deltas) == "Yes"


def test_completions(client):
    reply = client.completions.create(model="tiny", prompt=["say one", "say two"], n=2, max_tokens=20)
    assert [(c.index, c.text.strip()) for c in reply.choices] == [(0, "one"), (1, "one"), (2, "two"), (3, "two")]
    chunks = list(client.completions.create(model="tiny", prompt="say one two", echo=True, stream=True))
    assert "".join(c.choices[0].text for c in chunks) == "say one twoone two"  # the fake engine drops the space
    reply = client.completions.create(model="tiny", prompt="say one", echo=True, max_tokens=0)
    assert reply.choices[0].text == "say one" and reply.usage.completion_tokens == 0


def test_responses(client):
    reply = client.responses.create(model="tiny", input="say Once upon", instructions="Be brief.")
    assert reply.output_text.strip() == "Once upon" and reply.status == "completed" and reply.usage.output_tokens > 1
    turns = [{"role": "user", "content": [{"type": "input_text", "text": "say Once upon a time"}]}]
    events = list(client.responses.create(model="tiny", input=turns, stream=True, max_output_tokens=3))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created" and events[-1].type == "response.incomplete"
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == events[-1].response.output_text and text.strip().startswith("On")


def test_embeddings(client):
    for form in ({}, {"encoding_format": "float"}):
        reply = client.embeddings.create(model="tiny", input=["a", "b c"], **form)
        assert len(reply.data) == 2 and reply.data[0].embedding[1:] == [1.0, 0.0]
    assert reply.usage.prompt_tokens == sum(row.embedding[0] for row in reply.data)


def test_models_and_errors(client):
    assert [row.id for row in client.models.list()] == ["tiny"] and client.models.retrieve("tiny").id == "tiny"
    cases = [
        (openai.NotFoundError, dict(model="large", messages=user("x")), "model_not_found"),
        (openai.BadRequestError, dict(model="tiny", messages=user("x"), temperature=-1), None),
        (
            openai.BadRequestError,
            dict(model="tiny", messages=user("x"), extra_body={"nonsense": 1}),
            "unknown_parameter",
        ),
        (openai.BadRequestError, dict(model="tiny", messages=user("x"), max_tokens=10**6), "context_length_exceeded"),
        (openai.BadRequestError, dict(model="tiny", messages=user("refuse")), None),
    ]
    for kind, options, code in cases:
        with pytest.raises(kind) as caught:
            client.chat.completions.create(**options)
        assert caught.value.code == code and caught.value.message
