"""Pipeline-parallel training beside one process: losses, norms and parameters, for every schedule.

In float64 within 1e-9 (see tensor_parallel.py), in float32 within 1e-5.
"""

import data_parallel_models
import infinicore.distributed as dist
import numpy as np
from infinicore.distributed import stages
from refusals import refused

import infinicore as ic
from infinicore import nn, optim
from infinicore.models import from_config

group = dist.init()
R, N = group.rank, group.size
GPT2 = {**data_parallel_models.GPT2, "n_layer": 3}
QWEN = {
    "model_type": "qwen3", "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 16, "rope_theta": 10000.0, "tie_word_embeddings": False,
}  # fmt: skip


def close(a, b, what, atol):
    np.testing.assert_allclose(a, b, rtol=0, atol=atol, err_msg=f"{what}, rank {R}")


def language(config, mesh, micro, name="1f1b", chunks=1, accumulate=1, dtype="float64", steps=4):
    ic.manual_seed(0)
    reference = from_config(config, dtype=dtype)
    ic.manual_seed(0 if mesh.tp.size > 1 else R)
    own = from_config(config, dtype=dtype)
    if mesh.tp.size > 1:
        dist.parallelize(own, mesh)
    pipeline = dist.Pipeline(own, mesh, micro, name, chunks)
    assert sum(p.numel() for p in pipeline.parameters()) < sum(p.numel() for p in reference.parameters())
    adams = [optim.AdamW(m.parameters(), lr=1e-2, eps=1e-4) for m in (reference, pipeline)]
    rng, rows, atol = np.random.default_rng(0), 5, 1e-9 if dtype == "float64" else 1e-5
    what = f"{config['model_type']}, {mesh}, {micro} micro-batches, {name}, {chunks} chunks, accumulation {accumulate}"
    for step in range(steps):
        total = expected = 0.0
        for part in range(accumulate):
            ids = rng.integers(0, 97, (mesh.dp.size * rows, 9)).astype(np.int64)
            labels = ids[:, 1:].copy()
            if mesh.dp.size == 1:  # else the mean of ranks is not that of labels
                labels[1, 3:] = labels[2] = -100
            inputs, labels = ic.from_numpy(ids[:, :-1].copy()), ic.from_numpy(labels)
            loss = reference.loss(inputs, labels)
            (loss / accumulate).backward()
            expected += loss.item() / accumulate
            mine = slice(mesh.dp.rank * rows, (mesh.dp.rank + 1) * rows)
            if part + 1 < accumulate:
                with pipeline.no_sync():
                    loss = pipeline.step(inputs[mine], labels[mine])
            else:
                loss = pipeline.step(inputs[mine], labels[mine])
            total += dist.all_reduce(loss.reshape(1).clone(), "avg").item() / accumulate
        for p in pipeline.parameters():
            p.grad.copy_(p.grad / accumulate)
        close(total, expected, f"{what}, step {step}", atol)
        norms = [nn.utils.clip_grad_norm_(reference.parameters(), 0.5), dist.clip_grad_norm_(own, mesh, 0.5)]
        close(norms[1].item(), norms[0].item(), f"{what}, step {step}: norm", 100 * atol)
        for adam in adams:
            adam.step()
            adam.zero_grad()
    whole = dist.whole_state_dict(own, mesh)
    for key, x in reference.state_dict().items():
        close(whole[key].numpy(), x.detach().numpy(), f"{what}: {key}", atol)
    with ic.no_grad():
        inputs, labels = inputs[:rows], labels[:rows]
        close(pipeline.step(inputs, labels).item(), reference.loss(inputs, labels).item(), f"{what}: loss alone", atol)
    assert pipeline.report.kept == 0
    pipeline.step(inputs, labels)
    assert pipeline.report.kept == pipeline.expected.peak[mesh.pp.rank], (pipeline.report, pipeline.expected)
    try:
        nn.utils.clip_grad_norm_(own.parameters(), 0.5)
    except ValueError as error:
        assert "divided among ranks" in str(error)
    else:
        raise AssertionError("the norm of a stage was taken for that of all")


def sequential(mesh):
    """A user's own model, whose activations have other shapes at every boundary and in every batch."""
    ic.manual_seed(0)
    layers = [nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 4), nn.Tanh(), nn.Linear(4, 7), nn.Linear(7, 1)]
    reference = nn.Sequential(*layers)
    ic.manual_seed(0)
    own = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 4), nn.Tanh(), nn.Linear(4, 7), nn.Linear(7, 1))
    x, y = ic.randn(8, 6), ic.randn(8, 1)
    pipeline = dist.Pipeline(own, mesh, 3, loss=nn.functional.mse_loss, example=(x, y))
    sgds = [optim.SGD(m.parameters(), lr=0.1) for m in (reference, pipeline)]
    for rows in (8, 7, 3, 8):
        loss = nn.functional.mse_loss(reference(x[:rows]), y[:rows])
        loss.backward()
        close(pipeline.step(x[:rows], y[:rows]).item(), loss.item(), f"{rows} rows", 1e-6)
        for sgd in sgds:
            sgd.step()
            sgd.zero_grad()
    for key, value in dist.whole_state_dict(own, mesh).items():
        close(value.numpy(), reference.state_dict()[key].numpy(), key, 1e-6)
    refused(ValueError, "too few for 3 micro-batches", pipeline.step, x[:2], y[:2])
    refused(ValueError, "as many pieces", dist.Pipeline, nn.Sequential(nn.Linear(2, 2)), mesh, 1, loss=sum)
    refused(ValueError, "`loss` is needed", dist.Pipeline, nn.Sequential(*layers), mesh, 1)
    refused(ValueError, "'interleaved' or 'gpipe'", dist.Pipeline, nn.Sequential(*layers), mesh, 1, chunks=2, loss=sum)


def cut_alike(mesh):
    """Ranks measure different costs, and yet pipelines side by side have the same stages."""
    measure, stages._measure = stages._measure, lambda *_: [1.0 + (i + 1) ** R % 7 for i in range(5)]
    ids = ic.from_numpy(np.zeros((4, 8), np.int64))
    parts = dist.Pipeline(from_config(GPT2), mesh, 2, example=(ids, ids)).parts
    stages._measure = measure
    assert all(other == parts for other in dist.all_gather_object(parts)), parts


line = dist.Mesh(pp=-1)
for micro in (1, 4, 5):
    language(GPT2, line, micro, "gpipe")
    language(GPT2, line, micro)
language(QWEN, line, 4, accumulate=3)
language(QWEN, line, 5, "interleaved" if N == 2 else "1f1b", chunks=2 if N == 2 else 1)
language(GPT2, line, 4, dtype="float32", steps=10)
sequential(line)
if N == 4:
    cut_alike(dist.Mesh(pp=2, dp=2))
    language(QWEN, dist.Mesh(pp=2, tp=2), 4, "interleaved", 2)
print("done", flush=True)
