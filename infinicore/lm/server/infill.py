"""llama.cpp's /infill: what belongs between two pieces of code, by models that were trained to fill gaps."""

from .errors import APIError

# What such models call the tokens before the text in front of the gap, before that behind it, and before the answer.
_GAPS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
)
_FILE = "<|file_sep|>"
_ENDS = ("<|fim_pad|>", "<|repo_name|>", _FILE, "<|cursor|>")  # a model that writes one has come to the end


def prompt_of(model, request):
    """(token ids of the prompt, ids that end the answer) of an `InfillRequest`."""
    known = model.tokenizer.vocabulary()
    names = next((names for names in _GAPS if known.keys() >= set(names)), None)
    if names is None:
        message = f"this model cannot fill gaps: its vocabulary has no tokens for them, such as {', '.join(_GAPS[0])}"
        raise APIError(501, message, code="not_supported")
    if request.input_extra and _FILE not in known:
        message = f"`input_extra` needs a token between files, {_FILE}, and this model has none: leave it out"
        raise APIError(400, message, param="input_extra")

    def ids(text):
        return model.tokenizer.encode(text, add_special_tokens=False) if text else []

    found = model.tokenizer.encode("", add_special_tokens=True)  # what any prompt begins with
    for file in request.input_extra:
        found += [known[_FILE], *ids(file.filename + "\n"), *ids(file.text)]
    if request.input_extra:
        found += [known[_FILE], *ids("filename\n")]
    before, behind, gap = (known[name] for name in names)
    found += [before, *ids(request.input_prefix), behind, *ids(request.input_suffix), gap, *ids(request.prompt)]
    return found, [known[name] for name in _ENDS if name in known]
