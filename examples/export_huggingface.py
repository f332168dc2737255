"""A model made here, written as a Hugging Face folder: `python examples/export_huggingface.py [FOLDER]`.

`transformers.AutoModelForCausalLM.from_pretrained(FOLDER)` reads it too, with the same logits.
"""

import sys
import tempfile
from pathlib import Path

import infinicore as ic
from infinicore.data import CharTokenizer
from infinicore.models import from_config, from_pretrained, save_pretrained

ic.manual_seed(0)
tokenizer = CharTokenizer("abcdefghijklmnopqrstuvwxyz ,.")
model = from_config(  # as in config.json
    {
        "model_type": "llama",
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
    }
).eval()

folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
save_pretrained(model, folder)
tokenizer.save(folder)
print("wrote", sorted(path.name for path in folder.iterdir()))

ids = [tokenizer.encode("hello, world.")]
logits = model(ids)
print("read back equal:", bool((from_pretrained(folder)(ids) == logits).all()))
generation = from_pretrained(folder).generate("hello", max_new_tokens=5, seed=0)
print("it writes", repr("".join(token.text for token in generation)), "(it has learned nothing yet)")
