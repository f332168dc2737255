"""Parameters and routes that users of vLLM and llama.cpp know."""

import json

import pytest

from infinicore.lm import chat

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def turns(*texts):
    return [{"role": role, "content": text} for role, text in zip(("user", "assistant") * len(texts), texts)]


def events(reply):
    lines = [line[6:] for line in reply.text.split("\n") if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_an_answer_goes_on_from_the_last_message():
    def write(messages):
        return chat.render(CHATML, messages, add_generation_prompt=False)

    assert chat.render_open(write, turns("a", "e")).endswith("<|im_start|>assistant\ne")  # not the e of <|im_end|>
    assert chat.render_open(write, turns("a", "so ")).endswith("assistant\nso ")
    with pytest.raises(ValueError, match="`continue_final_message` needs a last message"):
        chat.render_open(write, turns("a", " "))
    with pytest.raises(ValueError, match="does not show the last message"):
        chat.render_open(lambda messages: "", turns("a", "b"))


def test_continue_final_message(server):
    body = {"messages": turns("x", "say one two"), "continue_final_message": True}
    choice = server.post("/v1/chat/completions", body).json()["choices"][0]
    assert choice["message"]["content"].strip() == "one two"
    choice = server.post("/v1/chat/completions", body | {"echo": True}).json()["choices"][0]
    assert choice["message"]["content"].startswith("say one two") and choice["message"]["content"].endswith("one two")
    told = server.post("/apply-template", body).json()
    assert told["prompt"] == "|x|say one two"
    wrong = server.post("/v1/chat/completions", body | {"add_generation_prompt": True}).json()["error"]
    assert wrong["param"] == "continue_final_message" and "`add_generation_prompt`" in wrong["message"]


def test_truncated_prompts_ids_and_names(server):
    ids = server.post("/tokenize", {"prompt": "one two three", "add_special_tokens": False}).json()["tokens"]
    asked = {"prompt": ids, "return_token_ids": True, "request_id": "mine", "max_tokens": 100}
    reply = server.post("/v1/completions", asked | {"truncate_prompt_tokens": 2}).json()
    (choice,) = reply["choices"]
    assert reply["id"] == "cmpl-mine" and reply["usage"]["prompt_tokens"] == 2
    assert choice["prompt_token_ids"] == ids[-2:] and len(choice["token_ids"]) == reply["usage"]["completion_tokens"]
    long = {"prompt": [5] * 3000, "max_tokens": 1}
    assert server.post("/v1/completions", long).status_code == 400
    assert server.post("/v1/completions", long | {"truncate_prompt_tokens": -1}).status_code == 200
    for wrong, words in ((0, "leaves no prompt"), (-2, "greater than or equal to -1"), ("2", "integer")):
        error = server.post("/v1/completions", asked | {"truncate_prompt_tokens": wrong}).json()["error"]
        assert error["param"] == "truncate_prompt_tokens" and words in error["message"]
    error = server.post("/v1/completions", asked | {"request_id": "a\nb"}).json()["error"]
    assert error["param"] == "request_id"
    chunks = events(server.chat("say one two", stream=True, return_token_ids=True))
    streamed = [token for chunk in chunks for token in chunk["choices"][0].get("token_ids", ())]
    whole = server.chat("say one two", return_token_ids=True).json()
    assert streamed == whole["choices"][0]["token_ids"]
    assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]


def test_thoughts_of_earlier_answers_in_either_name(server):
    for name in ("reasoning", "reasoning_content"):
        messages = [*turns("x"), {"role": "assistant", "content": "y", name: "z"}, *turns("say yes")]
        reply = server.post("/v1/chat/completions", {"messages": messages})
        assert reply.json()["choices"][0]["message"]["content"].strip() == "yes"


def test_slots(server):
    rows = server.client.get("/slots").json()
    assert [row["id"] for row in rows] == list(range(4)) and not any(row["is_processing"] for row in rows)
    body = {"messages": turns("slow 60 one two three four five six seven"), "stream": True, "n": 4, "temperature": 1.0}
    with server.client.stream("POST", "/v1/chat/completions", json=body) as reply:
        lines = reply.iter_lines()
        next(line for line in lines if '"content":"' in line and '"content":""' not in line)
        rows = server.client.get("/slots").json()
        assert all(row["is_processing"] and row["next_token"]["n_decoded"] > 0 for row in rows)
        assert rows[0]["params"]["temperature"] == 1.0 and rows[0]["n_ctx"] == 2000
        busy = server.client.get("/slots?fail_on_no_slot=1")
        assert busy.status_code == 503 and busy.json()["error"]["code"] == "no_slot"


def test_llama_cpp_clients(server):
    """What its own clients send along is accepted where it changes nothing."""
    along = {"repeat_last_n": 64, "repeat_penalty": 1.0, "dry_multiplier": 0.0, "dry_base": 1.75, "xtc_threshold": 0.1}
    reply = server.post("/completion", {"prompt": "|say one two", "n_predict": 20} | along)
    assert reply.json()["content"].strip() == "one two"
    error = server.post("/completion", {"prompt": "a", "repeat_last_n": 64, "repeat_penalty": 1.1}).json()["error"]
    assert error["param"] == "repeat_last_n"
    nothing = server.post("/completion", {"prompt": "|say one two", "n_predict": 0, "n_probs": 1}).json()
    assert (nothing["content"], nothing["tokens_predicted"], nothing["stop_type"]) == ("", 0, "limit")
    assert nothing["completion_probabilities"] == []


def test_metrics_of_the_phases(server):
    server.chat("say one two three")
    text = server.client.get("/metrics").text
    for name in ("prefill_time_seconds", "decode_time_seconds", "inference_time_seconds", "params_n"):
        assert f'vllm:request_{name}_count{{model_name="tiny"}}' in text


def test_gaps_are_filled_by_models_that_know_how(server, serving, stories, tmp_path):
    gap = {"input_prefix": "one", "input_suffix": "two", "prompt": "three", "n_predict": 100}
    refused = server.post("/infill", gap)
    assert refused.status_code == 501 and "cannot fill gaps" in refused.json()["error"]["message"]
    names = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<|file_sep|>"]
    tokenizer = json.loads((stories / "tokenizer.json").read_text())
    same = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer["added_tokens"] += [{"id": 512 + i, "content": name} | same for i, name in enumerate(names)]
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    (tmp_path / "tokenizer_config.json").write_text((stories / "tokenizer_config.json").read_text())
    other = serving(path=tmp_path)

    try:
        ids = {word: other.post("/tokenize", {"content": word}).json()["tokens"] for word in ("one", "two", "three")}
        wanted = [1, 512, *ids["one"], 513, *ids["two"], 514, *ids["three"]]
        reply = other.post("/infill", gap).json()
        assert reply["tokens_evaluated"] == len(wanted)
        # The fake engine writes the text of its prompt again.
        assert reply["content"].replace(" ", "") == "onetwothree"
        files = [{"filename": "a.py", "text": "four"}]
        told = other.post("/infill", gap | {"input_extra": files}).json()
        assert told["content"].replace(" ", "").replace("\n", "") == "a.pyfourfilenameonetwothree"
        long = other.post("/infill", gap | {"input_prefix": "a b " * 3000}).json()["error"]
        assert (long["param"], long["code"]) == ("input_prefix", "context_length_exceeded")
    finally:
        other.stop()


def test_routes_of_other_servers(server):
    for path, words in (
        ("/v1/rerank", "none is trained to rank"),
        ("/v1/messages", "Anthropic"),
        ("/v1/load_lora_adapter", "--lora"),
        ("/v1/files/abc", "nothing is stored"),
    ):
        told = server.post(path, {})
        assert told.status_code == 404 and words in told.json()["error"]["message"]
    assert server.post("/v1/nothing", {}).json()["error"]["message"] == "there is no route /v1/nothing"
    refused = server.post("/v1/models", {})
    assert refused.status_code == 405 and refused.headers["allow"] == "GET"
    assert server.client.get("/load").json() == {"server_load": 0}
    assert server.client.get("/tokenizer_info").json() == server.model.tokenizer.config
