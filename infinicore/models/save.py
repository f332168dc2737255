"""`save_pretrained`: a model as a Hugging Face folder, which `transformers` and llama.cpp's converter read."""

import json
import os
from pathlib import Path

import infinicore
from infinicore import nn

from ..autograd import no_grad
from ..io import save_file
from .registry import architecture_for


@no_grad()
def save_pretrained(model, folder, *, dtype=None):
    """Write config.json, model.safetensors and generation_config.json of a model into `folder`.

    `dtype` converts the weights (default: that of the model). Files are written under temporary names and renamed; what
    else lies in the folder (a tokenizer, say) stays. Raises NotImplementedError for quantised models, ValueError for
    one without the config.json that it came from (a GGUF file).
    """
    folder = Path(folder)
    if getattr(model, "source_config", None) is None:
        raise ValueError("`model` has no config.json to write: load or make it by from_pretrained or from_config")
    if model.tensor_group is not None or any(getattr(p, "sharded", False) for p in model.parameters()):
        raise NotImplementedError(
            "`model` is divided among ranks: save `infinicore.distributed.whole_state_dict` of it"
        )
    names = architecture_for(model.config).names
    for path, module in model.named_modules():
        if isinstance(module, nn.Linear) and type(module) is not nn.Linear:
            raise ValueError(
                f"`model` has an adapter at {path!r}, which config.json cannot describe: save a merged model "
                "(train.lora.merge_and_unload), or the adapters (train.lora.save)"
            )
    state = model.state_dict()
    wanted = model.dtype if dtype is None else infinicore.dtype(dtype)
    tied = model.lm_head.weight is not None and model.lm_head.weight.data_ptr() == state[names.EMBEDDING].data_ptr()
    tensors = {}
    for name, tensor in state.items():
        if name == names.HEAD and tied:
            continue
        if name.endswith(getattr(names, "TRANSPOSED", ())):
            tensor = tensor.T
        tensors[name] = tensor.detach().to(wanted).contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    config = {**model.source_config, "tie_word_embeddings": tied, "dtype": wanted.name}
    config.setdefault("architectures", [_architecture(model)])
    config.setdefault("model_type", model.config.model_type)
    config.pop("torch_dtype", None)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    _write_json(folder / "config.json", config)
    if model.generation_config:
        _write_json(folder / "generation_config.json", model.generation_config)


def _architecture(model):
    from .registry import ARCHITECTURES

    return next(name for name, found in ARCHITECTURES.items() if found.model_type == model.config.model_type)


def _write_json(path, value):
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(value, indent=2) + "\n")
    os.replace(temporary, path)
