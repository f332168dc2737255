"""The Trainer on a mesh: `training.py meshes|resume|alone|late|full [FOLDER or SECONDS]`; see `test_training.py`."""

import resource
import sys
import time

import infinicore.distributed as dist
import numpy as np
from data_parallel_models import GPT2, LLAMA

import infinicore as ic
from infinicore import optim
from infinicore.data import DataLoader, TensorDataset
from infinicore.models import from_config
from infinicore.optim.lr_scheduler import WarmupCosineLR
from infinicore.train import Trainer, lora

STEPS = 6
LLAMA = LLAMA | {"num_key_value_heads": 2}  # fewer heads than ranks are refused


def data(count, seed):
    """Sequences, of which some targets do not count."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 97, (count, 17))
    targets = np.where(rng.random((count, 16)) < 0.3, -100, ids[:, 1:])
    return TensorDataset(ic.from_numpy(ids[:, :-1].copy()), ic.from_numpy(targets))


def trainer(config=GPT2, mesh=None, batch=8, rows=44, steps=STEPS, parallel=(), eps=1e-4, rank=0, **options):
    """A Trainer on a mesh (None: of this process alone), the same on all ranks."""
    ic.manual_seed(3)
    model = from_config(config)
    if rank:
        lora.inject(model, rank, 8)
    if mesh is not None:
        model = dist.ParallelModel(model, mesh, **dict(parallel))
    wanted = [p for p in model.parameters() if p.requires_grad]
    adam = optim.AdamW(wanted, lr=1e-2, eps=eps)  # eps: else rounding of gradients near 0 is enlarged
    return Trainer(
        model,
        adam,
        DataLoader(data(rows, 0), batch, shuffle=True),
        steps=steps,
        eval_data=DataLoader(data(7, 1), 3),
        eval_every=3,
        scheduler=WarmupCosineLR(adam, 2, steps),
        clip=0.5,
        log_every=1,
        progress=False,
        **options,
    )


def state(run):
    """All parameters, whole."""
    return {name: x.numpy().copy() for name, x in run.model.state_dict().items()}


def compare(what, run, alone, rows):
    for mine, one in zip(rows, alone.record.rows, strict=True):
        for key in mine.keys() - {"tokens_per_s", "mfu"}:
            assert abs(mine[key] - one[key]) <= 1e-5, (what, key, mine, one)
    whole = state(run)
    for name, x in state(alone).items():
        np.testing.assert_allclose(whole[name], x, atol=1e-5, err_msg=f"{what}: {name}")


def meshes(group):
    two = [
        (GPT2, {"dp": 2}, {}, {"accumulate": 3, "batch": 5}),
        (LLAMA, {"dp": 2}, {"zero": 1}, {"accumulate": 3}),
        (GPT2, {"dp": 2}, {"zero": 2}, {"batch": 5}),
        (LLAMA, {"dp": 2}, {"zero": 3}, {"accumulate": 3}),
        (GPT2, {"cp": 2}, {}, {"accumulate": 3}),
        (LLAMA, {"tp": 2}, {}, {"accumulate": 3}),
        (GPT2, {"tp": 2}, {"sequence_parallel": True}, {}),
        (GPT2, {"pp": 2}, {"micro_batches": 4}, {"accumulate": 3}),
        (GPT2, {"tp": 2}, {"sequence_parallel": True}, {"rank": 2}),
        (LLAMA, {"sp": 2}, {}, {"accumulate": 3}),
        (LLAMA, {"tp": 2}, {}, {"rank": 2}),
        (LLAMA, {"dp": 2}, {"zero": 2}, {"rank": 2}),
        (GPT2, {"pp": 2}, {"micro_batches": 2}, {"rank": 2}),
        (LLAMA, {"pp": 2}, {"micro_batches": 2, "schedule": "gpipe"}, {}),
    ]
    four = [
        (GPT2, {"dp": 2, "tp": 2}, {"zero": 1, "sequence_parallel": True}, {}),
        (LLAMA, {"dp": 2, "pp": 2}, {"micro_batches": 2, "zero": 2}, {"accumulate": 3}),
        (GPT2, {"dp": 2, "tp": 2}, {"zero": 3}, {"batch": 5}),
        (GPT2, {"dp": 2, "pp": 2}, {"micro_batches": 2, "zero": 3}, {"accumulate": 3, "batch": 7, "rows": 49}),
        (LLAMA, {"dp": 2, "pp": 2}, {"micro_batches": 2, "zero": 3}, {"rank": 2}),
        (LLAMA, {"dp": 2, "cp": 2}, {"zero": 1}, {"batch": 5}),
        (GPT2, {"tp": 2, "pp": 2}, {"micro_batches": 4}, {"batch": 7, "rows": 49}),
    ]
    alone = {}  # by model and options: one run of one process stands beside several meshes
    for config, sizes, parallel, options in two if group.size == 2 else four:
        key = str((config, options))
        if key not in alone:
            alone[key] = trainer(config, **options)
            alone[key].fit()
        run = trainer(config, dist.Mesh(**sizes), parallel=parallel, **options)
        compare((sizes, parallel, options), run, alone[key], run.fit())
        if "pp" not in sizes and not parallel.get("zero"):
            assert run._replay is not None and run._recordable(), "steps of small models are recorded"
    if group.size == 2:
        # float16: the scale begins so high that steps are left out, on all ranks alike
        run = trainer(GPT2, dist.Mesh(tp=2), amp="float16", steps=8)
        rows = run.fit()
        scales = dist.all_gather_object(run.scaler.get_scale())
        assert np.isfinite(rows[-1]["eval_loss"]) and len(set(scales)) == 1, scales


def resume(group, folder):
    """Saved on 2 x 2, or 2: the same mesh goes on bit for bit, with dropout; others with the same losses."""
    drops = GPT2 | {"resid_pdrop": 0.1, "attn_pdrop": 0.1}
    sizes = {"dp": 2, "tp": 2} if group.size == 4 else {"dp": 2}
    whole = trainer(drops, dist.Mesh(**sizes), accumulate=2)
    whole.fit()
    seeds = dist.all_gather_object(str(ic.get_rng_state()))
    assert len(set(seeds)) == 2, "replicas draw their own dropout, and the ranks of `tp` the same"
    begun = trainer(drops, dist.Mesh(**sizes), accumulate=2, folder=f"{folder}/drops", save_every=2)
    begun.callbacks = (lambda run, row: setattr(run, "stopped", run.step == 4),)
    begun.fit()
    ic.manual_seed(99)
    rest = trainer(drops, dist.Mesh(**sizes), accumulate=2, folder=f"{folder}/drops")
    rest.fit()
    for name, x in state(whole).items():
        assert np.array_equal(state(rest)[name], x), name
    alone = trainer(GPT2)
    alone.fit()
    begun = trainer(GPT2, dist.Mesh(**sizes), folder=f"{folder}/plain", steps=STEPS)
    begun.callbacks = (lambda run, row: setattr(run, "stopped", run.step == 3),)
    begun.fit()
    others = [({"dp": 4}, {}), ({"dp": 2, "pp": 2}, {}), ({"dp": 2, "pp": 2}, {"micro_batches": 2, "zero": 3})]
    for other, parallel in others if group.size == 4 else [({"tp": 2}, {}), ({"pp": 2}, {})]:
        rest = trainer(GPT2, dist.Mesh(**other), parallel=parallel)
        rest.load(f"{folder}/plain")
        rows = rest.fit()
        alone.record.rows = alone.record.rows[-len(rows) :]
        assert rows[0]["step"] == 4
        compare(other, rest, alone, rows)
    if group.rank == 0:
        np.savez(f"{folder}/end.npz", **state(alone))


def alone(_, folder):
    """In one process: the same end, and checkpoints that a mesh can read again."""
    run = trainer(GPT2, folder=f"{folder}/plain", save_every=1)
    assert run.fit()[0]["step"] == 1 and run.step == STEPS
    end = np.load(f"{folder}/end.npz")
    for name, x in state(run).items():
        np.testing.assert_allclose(x, end[name], atol=1e-5, err_msg=name)


def late(group, seconds):
    """A rank that is late: the others sleep, and all is well."""

    def wait(run, row):
        if row["step"] == 2 and group.rank == 1:
            time.sleep(seconds)

    trainer(GPT2, dist.Mesh(dp=-1)).fit()  # compiles what nobody has compiled, which may take longer than the steps
    before, began = time.process_time(), time.perf_counter()
    run = trainer(GPT2, dist.Mesh(dp=-1), callbacks=(wait,))
    rows = run.fit()
    used, passed = time.process_time() - before, time.perf_counter() - began
    assert rows[-1]["step"] == STEPS and passed > seconds
    print("processor", used, "of", passed)


def full(group, folder):
    """A disk that is full for one rank: all raise, and the checkpoint before stays."""
    run = trainer(GPT2, dist.Mesh(dp=-1), folder=folder, save_every=2, keep=2)

    def fill(run, row):
        if row["step"] == 4 and group.rank == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))

    run.callbacks = (fill,)
    try:
        run.fit()
    except OSError as error:
        print(f"rank {group.rank}: {error}")
    else:
        raise AssertionError("nothing was full")


group = dist.init()
action, *rest = sys.argv[1:]
{"meshes": meshes, "resume": resume, "alone": alone, "late": late, "full": full}[action](
    group, *(float(word) if action == "late" else word for word in rest)
)
print("done", flush=True)
