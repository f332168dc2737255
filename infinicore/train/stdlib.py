"""The embedded model's recipe: a small LLaMA on the source of the Python standard library, present on every machine."""

import sysconfig
from pathlib import Path

# What is no prose and no code: tables of characters, generated data, the help's texts in one string.
_LEFT_OUT = ("test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "encodings", "pydoc_data")
_TABLES = ("_sysconfigdata", "sre_constants", "_pydatetime", "pgen", "html/entities.py", "stringprep.py", "turtledemo")
_EVERY = 25  # of which one file is kept for validation
_LARGEST = 400_000  # bytes

# Splits code sensibly: a word with the space before it, runs of punctuation, line ends with the indentation after them.
PATTERN = r"""[^\r\n\p{L}\p{N}]?[\p{L}_]+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|[\r\n]+[ \t]*|[ \t]+(?=\S)|\s+"""
VOCABULARY = 2048

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 192,
    "intermediate_size": 480,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "initializer_range": 0.02,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
SETTINGS = {
    "sequence_length": 512,
    "stride": 64,
    "batch_size": 8,
    "steps": 4800,
    "amp": "bfloat16",
    "lr": 4e-3,
    "min_lr": 1e-4,
    "warmup": 100,
    "schedule": "cosine",
    "weight_decay": 0.7,  # seven passes over the same text: 0.1 ends 0.1 higher, 2.0 as well
    "betas": (0.9, 0.95),
    "clip": 1.0,
    "seed": 1,
}


def files():
    """(training files, validation files) of this Python's standard library, sorted."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found = []
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if any(part in _LEFT_OUT for part in relative.parts) or any(name in str(relative) for name in _TABLES):
            continue
        if 200 < path.stat().st_size < _LARGEST:
            found.append(path)
    if not found:
        raise FileNotFoundError(
            f"there are no Python sources in {root}: this Python comes without its standard library"
        )
    return [p for i, p in enumerate(found) if i % _EVERY], found[::_EVERY]


def prepare(folder):
    """Write tokenizer/, train.tokens and validation.tokens of the standard library into a folder.

    Returns (tokenizer folder, training file, validation file); what is there already is kept.
    """
    from ..data import tokenize, train_tokenizer

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    training, validation = files()
    tokenizer = folder / "tokenizer"
    if not (tokenizer / "tokenizer.json").is_file():
        train_tokenizer(training, VOCABULARY, tokenizer, pattern=PATTERN)
    for name, sources in (("train.tokens", training), ("validation.tokens", validation)):
        if not (folder / name).is_file():
            tokenize(sources, tokenizer, folder / name)
    return tokenizer, folder / "train.tokens", folder / "validation.tokens"
