"""A GPT-2 on characters, with the Trainer: `python examples/train_gpt2.py [TEXT [STEPS]]` (default: some Python code).

`infinicore train --preset shakespeare-char --data TEXT --out DIR` does this too, and saves what it has learned.
"""

import argparse
import sys
from pathlib import Path

import infinicore as ic
from infinicore import optim
from infinicore.data import DataLoader, character_datasets
from infinicore.models import from_config
from infinicore.optim.lr_scheduler import WarmupCosineLR
from infinicore.train import Trainer

text = Path(sys.argv[1] if len(sys.argv) > 1 else argparse.__file__)
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 300

ic.manual_seed(0)
train, validation, tokenizer = character_datasets(text, sequence_length=64)
model = from_config(
    {
        "model_type": "gpt2",
        "vocab_size": len(tokenizer),
        "n_layer": 4,
        "n_head": 4,
        "n_embd": 64,
        "n_positions": 64,
    }
)
optimizer = optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.99), weight_decay=0.1)
trainer = Trainer(
    model,
    optimizer,
    DataLoader(train, batch_size=12, shuffle=True),
    steps=steps,
    scheduler=WarmupCosineLR(optimizer, warmup_steps=steps // 10, total_steps=steps, min_lr=3e-4),
    clip=1.0,
)
rows = trainer.fit()
print(f"loss {rows[-1]['loss']:.2f}, from {rows[0]['loss']:.2f}")

model.eval()
prompt = tokenizer.encode("def ")
generation = model.generate(prompt, max_new_tokens=50, temperature=0.8, seed=0)
generation.finish()
print(tokenizer.decode(prompt + generation.completion.token_ids))
