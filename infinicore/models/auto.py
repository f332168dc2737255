"""`from_pretrained`: a Hugging Face folder to a model that is ready to run."""

from pathlib import Path

from ..device import usable
from ..dtype import dtype as as_dtype
from ..nn import init
from .checkpoint import Checkpoint, read_json
from .registry import CausalLM, configs, family_of, names


def load_config(path):
    """The `DecoderConfig` of a folder's config.json."""
    source = Path(path) / "config.json"
    table = read_json(source, "model config")
    return configs.parse(source, table, family_of(source, table))


def from_pretrained(path, *, dtype=None, device=None, progress=None):
    """Load a Hugging Face folder: config.json, model.safetensors (or shards with an index), generation_config.json.

    `dtype` (default: the one config.json names) is what weights are converted to and computed in. `progress(done,
    total)` is called with the bytes of weights read. Peak memory is the model and a few tens of megabytes.
    Raises FileNotFoundError for a missing folder or file and ValueError, in one sentence with the file's name, for
    anything in it that is damaged, of another shape, missing or left over.
    """
    usable(device)
    path = Path(path)
    if not path.is_dir():
        raise FileNotFoundError(f"there is no folder {path}")
    config = load_config(path)
    wanted = as_dtype(config.dtype if dtype is None else dtype)
    if not wanted.is_floating_point:
        raise TypeError(f"`dtype` must be a floating-point dtype, got {wanted}")
    generation = path / "generation_config.json"
    generation_config = read_json(generation, "generation config") if generation.is_file() else {}
    checkpoint = Checkpoint(path)
    try:
        model = _load(checkpoint, config, wanted, progress)
    finally:
        checkpoint.close()
    model.path, model.generation_config = path, generation_config
    return model.eval()


def _load(checkpoint, config, dtype, progress):
    held = {names.canonical(name): name for name in checkpoint.where}
    tied = config.tie_word_embeddings and _is_tied(checkpoint, held)
    canonical, ignored = names.canonical, (names.HEAD,) if tied else ()
    if tied and names.EMBEDDING not in held:  # saved under the other name of the same tensor

        def canonical(name):
            return names.EMBEDDING if name == names.HEAD else names.canonical(name)

    found = checkpoint.resolve(names.shapes(config, tied), canonical, names.IGNORED_SUFFIXES, ignored)
    with init.skipped():
        model = CausalLM(config, dtype=dtype, tied=tied)
    checkpoint.load(found, model.state_dict(), progress)
    return model


def _is_tied(checkpoint, held):
    """Whether the head is the embedding: its own tensor may be left out, or be an equal copy."""
    if names.HEAD not in held or names.EMBEDDING not in held:
        return True
    head, embedding = (checkpoint.bytes_of(held[name]) for name in (names.HEAD, names.EMBEDDING))
    # A head of its own beside `tie_word_embeddings`: what the checkpoint holds counts, as in transformers.
    return head.size == embedding.size and bool((head == embedding).all())
