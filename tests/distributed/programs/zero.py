"""ZeRO beside one process that has every rank's rows: losses, norms and parameters within 1e-5; memory by formula."""

import gc

import infinicore.distributed as dist
import numpy as np
from data_parallel_models import GPT2, LLAMA, ROWS, batches, pair

import infinicore as ic
from infinicore import nn, optim
from infinicore.core import memory as pool
from infinicore.models import from_config

group = dist.init()
R, N = group.rank, group.size


def language(config, stage, accumulate):
    ic.manual_seed(0)
    reference = from_config(config)
    ic.manual_seed(R)
    model = dist.ZeroDataParallel(from_config(config), stage=stage, bucket_mb=0.02)
    assert len(model.reducer.buckets) > 2
    adams = [optim.AdamW(m.parameters(), lr=1e-2, eps=1e-4) for m in (reference, model)]
    every = batches(10 * accumulate, N)
    for step in range(10):
        total = expected = 0.0
        for micro, ids in enumerate(every[step * accumulate : (step + 1) * accumulate]):
            loss = reference.loss(*pair(ids))
            (loss / accumulate).backward()
            expected += loss.item() / accumulate
            with model.no_sync() if micro < accumulate - 1 else ic.enable_grad():
                loss = model.loss(*pair(ids[R * ROWS : (R + 1) * ROWS]))
                (loss / accumulate).backward()
            total += dist.all_reduce(loss.detach().reshape(1).clone(), "avg").item() / accumulate
        norms = [nn.utils.clip_grad_norm_(reference.parameters(), 0.5).item(), model.clip_grad_norm_(0.5).item()]
        np.testing.assert_allclose(
            [total, norms[1]],
            [expected, norms[0]],
            rtol=0,
            atol=1e-5,
            err_msg=f"{config['model_type']}, stage {stage}, accumulation {accumulate}, step {step}",
        )
        for adam in adams:
            adam.step()
            adam.zero_grad()
    for (name, p), q in zip(model.gather().named_parameters(), reference.parameters()):
        np.testing.assert_allclose(p.detach().numpy(), q.detach().numpy(), rtol=0, atol=1e-5, err_msg=name)


def memory():
    """P bytes of parameters, K = 2 P of Adam: 2 P + K / N and P + (P + K) / N beside a bucket or four."""
    for stage in (1, 2):
        gc.collect()  # models end with their cycles
        before = pool.used_bytes()[0]
        own = nn.Sequential(*[nn.Linear(512, 512, bias=False) for _ in range(24)])
        P = 24 * 512 * 512 * 4
        model = dist.ZeroDataParallel(own, stage=stage, bucket_mb=1)
        adam = optim.AdamW(model.parameters())
        for micro in range(4):
            if micro == 2:
                pool.used_bytes(reset_peak=True)
            with model.no_sync() if micro == 2 else ic.enable_grad():
                model(ic.ones(2, 512)).sum().backward()
            if micro == 2 and stage == 1:
                whole = pool.used_bytes()[0] - before
            if micro != 2:
                adam.step()
                adam.zero_grad()
        if stage == 2:
            whole = pool.used_bytes(reset_peak=True)[1] - before
        formula = 2 * P + 2 * P / N if stage == 1 else P + 3 * P / N
        assert abs(whole / formula - 1) < 0.1 + (4 * (1 << 20) / formula) * (stage == 2), (stage, whole / formula)
        del own, model, adam


for config in (GPT2, LLAMA):
    for stage in (1, 2):
        for accumulate in (1, 3):
            language(config, stage, accumulate)
memory()
try:
    optim.Adafactor(dist.ZeroDataParallel(nn.Linear(4, 4)).parameters())
except ValueError as error:
    assert "whole ones" in str(error)
else:
    raise AssertionError("an optimizer that needs whole parameters took shards")
print(f"rank {R} of {N}: done")
