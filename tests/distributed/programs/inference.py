"""Divided models beside whole ones: `inference.py DEVICE CASES`, a JSON list of [path, options, axes, exact].

`exact`: logits are those of one process bit for bit; else, texts are. "close": neither. With `windows` behind it, the
second device stands for GPUs that reach one another (`devices.give_windows`).
"""

import gc
import json
import sys

import infinicore.distributed as dist
import numpy as np
from devices import NAME, device, give_windows
from refusals import refused

import infinicore as ic
from infinicore.lm.engine import Engine, SamplingParams
from infinicore.lm.engine.ngram import NgramProposer
from infinicore.models import from_pretrained

world = dist.init()
if "windows" in sys.argv:
    give_windows(world.rank)
RECORDS = {"cpu": True, "host2": "windows" in sys.argv, "cuda": ic.cuda.device_count() >= world.size}
GREEDY = {"temperature": 0.0, "max_new_tokens": 24, "ignore_eos": True}


def held(model):
    """Bytes of the weights of this rank, without what stays in a mapped file."""
    packed = [m.quantized.nbytes for m in model.modules() if hasattr(m, "out_features") and m.quantized is not None]
    return sum(p.nbytes for p in model.parameters()) + sum(packed)


def written(model, prompts, proposer=None, **params):
    """Token ids of the answers of an engine; `proposer`: steps check guesses, which graphs hold, too."""
    engine = Engine(model, max_num_seqs=3, max_num_batched_tokens=16, block_size=4, num_blocks=64, proposer=proposer)
    params = SamplingParams(ignore_eos=True, detokenize=False, **params)
    for number, prompt in enumerate(prompts):
        engine.add_request(number, prompt, params)
    found = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                found[output.request_id] = [answer.token_ids for answer in output.outputs]
    return [found[number] for number in range(len(prompts))], engine.stats().draft_tokens


def texts(model, prompts):
    """Token ids of greedy answers by `generate`, alone and as a batch, and by the engine, also with guesses."""
    alone = model.generate(prompts[0], **GREEDY).finish()[0].token_ids
    batch = [one.token_ids for one in model.generate(prompts, cache="paged", kv_cache_dtype="int8", **GREEDY).finish()]
    drawn, _ = written(model, prompts, temperature=0.7, seed=5, max_tokens=8, n=2)
    guessed, guesses = written(model, [alone + prompts[0]], NgramProposer(3, 2, 1), temperature=0.0, max_tokens=12)
    assert guesses
    return alone, batch, drawn, guessed


def check(path, options, axes, exact):
    what = f"{path}, {options}, {axes}"
    mesh = dist.Mesh(**axes)
    model = from_pretrained(path, mesh=mesh, device=device(), **options)
    assert model.device is device() and model.ranks.records == RECORDS[NAME]
    bytes_ = dist.all_gather_object(held(model))
    if world.rank:
        model.ranks.follow()
        return
    whole = from_pretrained(path, device=device(), **options)
    size = model.config.vocab_size
    prompts = [np.random.default_rng(n).integers(3, size, 5 + 14 * n).tolist() for n in range(3)]
    ids = prompts[1]
    got, wanted = (one([ids]).cpu().to("float32").numpy() for one in (model, whole))
    error = 0 if exact is True else (0.02 if exact == "close" else 1e-5) * abs(wanted).max()
    np.testing.assert_allclose(got, wanted, rtol=0, atol=error, err_msg=what)
    mine, theirs = texts(model, prompts), texts(whole, prompts)
    assert exact == "close" or mine == theirs, (what, mine, theirs)
    every = held(whole)
    if "tp" in axes:  # stages of so small models hardly divide a tied table
        assert max(bytes_) < 0.85 * every and sum(bytes_) < 1.5 * every, (what, bytes_, every)
    model.ranks.stop()


for path, options, axes, exact in json.loads(sys.argv[2]):
    check(path, options, axes, exact)
    gc.collect()
if world.size == 2:
    refused(ValueError, "`mesh` has sp 2, which divides sequences in training", from_pretrained, mesh=dist.Mesh(sp=2))
print(f"rank {world.rank}: done")
