"""A LLaMA on byte-level BPE tokens in bfloat16, as a plain loop: `python examples/train_llama.py [TEXT [STEPS]]`."""

import argparse
import sys
import tempfile
from pathlib import Path

import infinicore as ic
from infinicore import nn, optim
from infinicore.data import TokenDataset, tokenize, train_tokenizer
from infinicore.models import from_config, from_pretrained, save_pretrained

text = Path(sys.argv[1] if len(sys.argv) > 1 else argparse.__file__)
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 200

ic.manual_seed(0)
with tempfile.TemporaryDirectory() as folder:
    tokenizer = train_tokenizer(text, 512, folder)
    data = TokenDataset(tokenize(text, tokenizer, f"{folder}/text.tokens"), sequence_length=64)
    model = from_config(
        {
            "model_type": "llama",
            "vocab_size": 512,
            "hidden_size": 64,
            "intermediate_size": 192,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 128,
            "tie_word_embeddings": True,
        }
    )
    optimizer = optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        inputs, targets = data.random_batch(8)
        with ic.autocast("cpu", dtype=ic.bfloat16):  # products in bfloat16, weights and sums in float32
            loss = model.loss(inputs, targets)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % max(1, steps // 5) == 0:
            print(f"step {step}: loss {loss.item():.2f}")

    save_pretrained(model, folder, dtype="bfloat16")  # beside the tokenizer: a folder that others read too
    generation = from_pretrained(folder).generate("    def ", max_new_tokens=30, temperature=0.7, seed=0)
    print("    def " + "".join(token.text for token in generation))
