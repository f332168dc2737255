"""`infinicore plan` beside real runs on two and four ranks: within 20 %, on a machine with nothing else to do."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from infinicore.distributed import launch

from infinicore import plan
from infinicore.plan import figures

PROGRAM = Path(__file__).parents[1] / "distributed" / "programs" / "planned.py"
CONFIG = {
    "model_type": "gpt2", "n_layer": 8, "n_embd": 512, "n_head": 8, "n_positions": 256, "vocab_size": 8192,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
}  # fmt: skip
JOBS = (
    {"mesh": {"dp": 2}},
    {"mesh": {"dp": 2}, "zero": 2},
    {"mesh": {"tp": 2}},
    {"mesh": {"pp": 2}, "micro_batches": 4},
    {"mesh": {"dp": 4}},
    {"mesh": {"dp": 2, "pp": 2}, "micro_batches": 2},
)


@pytest.fixture(scope="module")
def measured(request):
    """This machine's figures, of this hour."""
    try:
        launch.mpiexec()
    except ImportError as missing:
        pytest.skip(str(missing))
    return figures.load(anew=not os.environ.get("KEPT_FIGURES"))


@pytest.mark.long
@pytest.mark.parametrize("what", JOBS, ids=str)
def test_a_plan_is_within_20_percent(measured, what, root, tmp_path):
    job = plan.Job(batch=8, sequence=128, **what)
    expected = plan.estimate(plan.Network.of(CONFIG), job, measured)
    asked, answer = tmp_path / "asked.json", tmp_path / "answer.json"
    asked.write_text(json.dumps({"batch": 8, "sequence": 128, "micro_batches": 1, "zero": 0, "steps": 10} | what
                                | {"config": CONFIG}))  # fmt: skip
    line, environment = launch.command(job.ranks, None, str(PROGRAM), [str(asked), str(answer)])
    environment |= {"PYTHONPATH": str(root), "INFINICORE_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run(line, env=environment, check=True, capture_output=True, timeout=100)
    found = json.loads(answer.read_text())
    row = f"{what}: {expected.seconds:.3f} s, {found['seconds']:.3f} in a real run; "
    row += f"{expected.total / 1e6:.0f} MB, {found['bytes'] / 1e6:.0f} in a real run"
    print(row, {k: round(v / 1e6) for k, v in expected.memory.items()}, expected.communication)
    assert abs(expected.seconds / found["seconds"] - 1) < 0.2, row
    assert abs(expected.total / found["bytes"] - 1) < 0.2, row
