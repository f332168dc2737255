"""Fine-tuning with LoRA, then merging: `python examples/lora.py DIR TEXT [STEPS]` with a checkpoint and a text file."""

import sys
import tempfile
from pathlib import Path

import infinicore as ic
from infinicore import optim
from infinicore.data import TokenDataset, tokenize
from infinicore.models import from_pretrained
from infinicore.train import lora

folder, text = Path(sys.argv[1]), Path(sys.argv[2])
steps = int(sys.argv[3]) if len(sys.argv) > 3 else 100

ic.manual_seed(0)
model = from_pretrained(folder, dtype="float32").train()
total = sum(p.numel() for p in model.parameters())
lora.inject(model, rank=8, alpha=16, target_modules=["q_proj", "v_proj", "down_proj"])
trained = lora.parameters(model)
print(f"{sum(p.numel() for p in trained):,} of {total:,} parameters are trained")

with tempfile.TemporaryDirectory() as work:
    data = TokenDataset(tokenize(text, folder, f"{work}/text.tokens"), sequence_length=64)
    optimizer = optim.AdamW(trained, lr=2e-3)
    for step in range(steps):
        loss = model.loss(*data.random_batch(4))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % max(1, steps // 5) == 0 or step == steps - 1:
            print(f"step {step}: loss {loss.item():.3f}")
    lora.save(model, f"{work}/adapter")  # PEFT's format: a few kilobytes beside the frozen checkpoint
    print("saved", sorted(path.name for path in Path(work, "adapter").iterdir()))

with ic.no_grad():
    model.eval()
    ids = data[0][0][None]
    adapted = model(ids)
    merged = lora.merge_and_unload(model)(ids)
print("merged into the weights, the logits differ by", f"{(merged - adapted).abs().max().item():.0e}")
