"""Generate text with a Hugging Face checkpoint, token by token, and say how fast."""

import sys

import infinicore

folder, prompt = sys.argv[1], sys.argv[2]
model = infinicore.models.from_pretrained(folder)
generation = model.generate(prompt, max_new_tokens=60, temperature=0)
for token in generation:
    print(token, end="", flush=True)
print(f"\n{generation.figures()['decode_tokens_per_s']:.0f} tokens/s", file=sys.stderr)
