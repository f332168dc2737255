"""Routes of OpenAI, vLLM and llama.cpp's server that are not here: a sentence why, in place of a bare 404."""

_REASONS = {
    "the models here write texts, and none is trained to rank them; /v1/embeddings has vectors to compare": (
        "/rerank", "/v1/rerank", "/v2/rerank", "/reranking", "/v1/reranking", "/score", "/v1/score", "/classify",
        "/pooling",
    ),
    "it is Anthropic's API, which is not spoken here; /v1/chat/completions is OpenAI's": (
        "/v1/messages", "/v1/messages/count_tokens",
    ),
    "adapters are given when the server starts, by --lora, and chosen by `model`": (
        "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/lora-adapters",
    ),
    "only texts can be read and written here": (
        "/v1/audio/transcriptions", "/v1/audio/translations", "/v1/audio/speech", "/v1/images/generations",
        "/v1/images/edits", "/v1/moderations", "/v1/realtime",
    ),
    "nothing is stored here; send what a request needs along with it": (
        "/v1/files", "/v1/batches", "/v1/assistants", "/v1/threads", "/v1/vector_stores", "/v1/fine_tuning/jobs",
        "/v1/conversations",
    ),
    "/v1/embeddings is the route for embeddings": ("/embedding",),
}  # fmt: skip
_BY_PATH = {path: reason for reason, paths in _REASONS.items() for path in paths}


def reason(path):
    """Why there is no such route, of one that clients of other servers know, or below one; else None."""
    parts = path.rstrip("/").split("/")
    above = ("/".join(parts[:count]) for count in range(len(parts), 1, -1))
    return next((_BY_PATH[one] for one in above if one in _BY_PATH), None)
