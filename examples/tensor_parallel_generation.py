"""Text from a model that several ranks divide: `mpiexec -n 2 python examples/tensor_parallel_generation.py [MODEL]`.

Every rank reads its part of the weights and computes its part of each layer; the first one schedules, chooses tokens
and prints. `infinicore run -n 2 examples/tensor_parallel_generation.py` does the same, and binds the ranks to CPUs.
"""

import sys

from infinicore.distributed import launched

from infinicore.lm import LLM, SamplingParams

path = sys.argv[1] if len(sys.argv) > 1 else None  # None: the small model that comes with the package
llm = LLM(path, tensor_parallel_size=launched())  # the other ranks stay in here until this one ends

prompts = ["def add(", "class Stack:"]
for output in llm.generate(prompts, SamplingParams(temperature=0, max_tokens=24), use_tqdm=False):
    print(f"{output.prompt}{output.outputs[0].text}\n")

counts = sum(parameter.numel() for parameter in llm.model.parameters())
print(f"numbers of parameters on rank 0 of {launched()}: {counts}")
