"""The bodies of requests. What a class does not name is refused with its name: no parameter is ignored in silence.

`NoEffect` lists what clients send along and nothing here depends on; docs/serving.md has the list.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Text = str
TokenIds = Annotated[list[Annotated[int, Field(ge=0, lt=1 << 31)]], Field(min_length=1)]
Count = Annotated[int, Field(ge=0, lt=1 << 31)]
Answers = Annotated[int, Field(ge=1, le=128)]
Truncated = Annotated[
    int, Field(ge=-1, lt=1 << 31)
]  # to so many last tokens of a prompt; -1: to what the context takes
RequestId = Annotated[str, Field(pattern=r"^[\x21-\x7e]{1,128}$")]  # it stands in logs and in a header
Prompt = Text | TokenIds | Annotated[list[Text | TokenIds], Field(min_length=1)]


class Body(BaseModel):
    """A JSON object whose values have the types they should have, not some that could be turned into them."""

    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())


class Part(Body):
    """A piece of a message; only texts can be read here, and what is no text is refused where it is read."""

    model_config = ConfigDict(extra="allow")

    type: str
    text: str | None = None
    refusal: str | None = None
    annotations: list | None = None
    logprobs: list | None = None


class FunctionCall(Body):
    name: str
    arguments: str = "{}"


class ToolCall(Body):
    function: FunctionCall
    id: str | None = None
    type: Literal["function"] = "function"
    index: int | None = None


class Message(Body):
    """One turn. `tool_calls` and `tool_call_id` as in OpenAI's API; `reasoning_content` of earlier answers (`reasoning`
    in newer clients of vLLM) is passed on to the template.
    """

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    annotations: list | None = None
    audio: None = None
    function_call: None = None


class StreamOptions(Body):
    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False


class JSONSchema(Body):
    name: str = "answer"
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Body):
    """OpenAI's, or llama.cpp's: `schema` beside the type."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JSONSchema | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")


class StructuredOutputs(Body):
    """vLLM's: one of these says what the answer must look like."""

    json_: dict[str, Any] | str | None = Field(None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class NoEffect(Body):
    """Accepted, and without effect."""

    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None


class Sampling(NoEffect):
    """What `SamplingParams` has under the same names; their ranges are checked there."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    n: Answers | None = None
    stop: str | Annotated[list[str], Field(max_length=128)] | None = None
    stop_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    min_tokens: Count | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    allowed_token_ids: Annotated[list[int], Field(min_length=1)] | None = None


SAMPLING = tuple(name for name in Sampling.model_fields if name not in NoEffect.model_fields)


class Generation(Sampling):
    """What chat and completions have in common."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    truncate_prompt_tokens: Truncated | None = None
    request_id: RequestId | None = None
    return_token_ids: bool = False
    use_beam_search: bool = False
    length_penalty: float | None = None
    priority: Annotated[int, Field(ge=-(1 << 31), lt=1 << 31)] = 0
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None

    def sampling(self):
        """What is given of `SAMPLING`."""
        return {name: getattr(self, name) for name in SAMPLING if getattr(self, name) is not None}

    @property
    def include_usage(self):
        return self.stream_options is not None and self.stream_options.include_usage

    def constraint(self):
        """The structured output as a spec, `{"type": ..., "value": ...}`, or None; ValueError for more than one."""
        so, format_ = self.structured_outputs or StructuredOutputs(), self.response_format
        found = {
            "guided_json": ("json_schema", self.guided_json),
            "guided_regex": ("regex", self.guided_regex),
            "guided_choice": ("choice", self.guided_choice),
            "guided_grammar": ("grammar", self.guided_grammar),
            "structured_outputs.json": ("json_schema", so.json_),
            "structured_outputs.regex": ("regex", so.regex),
            "structured_outputs.choice": ("choice", so.choice),
            "structured_outputs.grammar": ("grammar", so.grammar),
        }
        found = {name: {"type": kind, "value": value} for name, (kind, value) in found.items() if value is not None}
        if so.json_object:
            found["structured_outputs.json_object"] = {"type": "json_object", "value": None}
        if format_ is not None and format_.type != "text":
            found["response_format"] = _format_spec(format_)
        if len(found) > 1:
            raise ValueError(f"`{'`, `'.join(found)}` each say what the answer must look like: give one of them")
        return next(iter(found.values()), None)


def _format_spec(given):
    """The spec of a `ResponseFormat` that is not just text."""
    inner = given.json_schema
    schema = given.schema_ if inner is None else inner.schema_
    if inner is not None and given.schema_ is not None:
        raise ValueError("`response_format` has `schema` and `json_schema`: give one of them")
    if schema is not None:
        return {"type": "json_schema", "value": schema}
    if given.type == "json_schema":
        raise ValueError("`response_format` of type json_schema needs `json_schema` with a `schema`")
    return {"type": "json_object", "value": None}


class CompletionRequest(Generation):
    """/v1/completions"""

    prompt: Prompt
    best_of: Answers | None = None
    echo: bool = False
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    suffix: str | None = None
    add_special_tokens: bool = True


class Function(Body):
    name: Annotated[str, Field(pattern=r"^[\w.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Body):
    type: Literal["function"]
    function: Function


class ChosenFunction(Body):
    name: str


class ToolChoice(Body):
    type: Literal["function"]
    function: ChosenFunction


class Templated(Body):
    """What becomes a prompt by the chat template."""

    messages: Annotated[list[Message], Field(min_length=1)]
    tools: list[Tool] | None = None
    documents: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None  # None: yes, unless the last message goes on
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None


class ChatCompletionRequest(Generation, Templated):
    """/v1/chat/completions"""

    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool = False
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool = True
    include_reasoning: bool = True
    modalities: list[Literal["text"]] | None = None


class ApplyTemplateRequest(Templated):
    """/apply-template"""

    model: str | None = None


class EmbeddingRequest(NoEffect):
    """/v1/embeddings"""

    input: Prompt
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    truncate_prompt_tokens: Truncated | None = None


class TokenizeRequest(Body):
    """/tokenize, with vLLM's names (`prompt` or `messages`) or llama.cpp's (`content`)."""

    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    tools: list[Tool] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    add_special_tokens: bool | None = None
    add_special: bool | None = None
    parse_special: Literal[True] = True
    return_token_strs: bool = False
    with_pieces: bool = False


class DetokenizeRequest(Body):
    """/detokenize"""

    tokens: list[Annotated[int, Field(ge=0, lt=1 << 31)]]
    model: str | None = None


class LlamaCompletionRequest(Body):
    """llama.cpp's /completion"""

    model: str | None = None
    prompt: Text | TokenIds
    n_predict: Annotated[int, Field(ge=-2, lt=1 << 31)] = -1
    stream: bool = False
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: list[str] | None = None
    ignore_eos: bool | None = None
    logit_bias: list[Annotated[list[int | float], Field(min_length=2, max_length=2)]] | None = None
    json_schema: dict[str, Any] | None = None
    grammar: str | None = None
    n_probs: Annotated[int, Field(ge=0, le=20)] = 0
    return_tokens: bool = False
    # What its clients send along: values that change nothing here.
    cache_prompt: bool = True
    id_slot: int = -1
    n_keep: int = 0  # a prompt is never cut
    n_discard: int = 0
    repeat_last_n: int = -1  # with a penalty, it must be the whole text
    min_keep: Literal[0] = 0
    mirostat: Literal[0] = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    dry_multiplier: Annotated[float, Field(ge=0, le=0)] = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: list[str] | None = None
    xtc_probability: Annotated[float, Field(ge=0, le=0)] = 0.0
    xtc_threshold: float = 0.1
    dynatemp_range: Annotated[float, Field(ge=0, le=0)] = 0.0
    dynatemp_exponent: float = 1.0
    t_max_predict_ms: Literal[0] = 0


class InfillRequest(LlamaCompletionRequest):
    """llama.cpp's /infill: `prompt` is how the answer begins."""

    class File(Body):
        filename: str = "tmp"
        text: str

    prompt: Text = ""
    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: list[File] = []


class ResponseText(Body):
    """The format of a response's text: as `response_format`, without the inner object."""

    class Format(Body):
        type: Literal["text", "json_object", "json_schema"] = "text"
        name: str | None = None
        schema_: dict[str, Any] | None = Field(None, alias="schema")
        description: str | None = None
        strict: bool | None = None

    format: Format | None = None


class ResponseMessage(Body):
    """A message among a response's `input`."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[Part]
    type: Literal["message"] = "message"
    id: str | None = None
    status: str | None = None


class ResponseRequest(NoEffect):
    """/v1/responses, for texts"""

    input: str | Annotated[list[ResponseMessage], Field(min_length=1)]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    text: ResponseText | None = None
    truncation: Literal["disabled"] | None = None
    include: list[str] | None = Field(None, max_length=0)
