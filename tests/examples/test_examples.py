"""Every example runs."""

import importlib.util
import re
import subprocess
import sys

import pytest

from infinicore import cuda

EXPECTED = {
    "hello_tensor.py": ["[ 6.  8. 10.]", "infinicore.bfloat16"],
    "record_graph.py": ["same result: True"],
    "own_numba_code.py": ["sums to one: True"],
    "custom_function.py": ["agrees with finite differences: True", "= [-1.0, -0.3799, 0.0, 0.9354]"],
    "export_huggingface.py": ["'config.json', 'model.safetensors', 'tokenizer.json'", "read back equal: True"],
    "resume.py": ["status -9", "'step-00000030'", "bit for bit the same: True"],
}
if cuda.is_available():
    EXPECTED["own_cuda_kernel.py"] = ["like softmax: True", "doubled: [2.0, 4.0, 6.0]"]
else:
    EXPECTED["own_cuda_kernel.py"] = ["no GPU: `device` 'cuda' needs"]
# Those that take settings, with small ones: see below.
OTHERS = (
    "generate_text.py", "digits_mlp.py", "digits_cnn.py", "train_gpt2.py", "train_llama.py", "lora.py",
    "combined_parallel.py",
    "context_parallel.py",
    "data_parallel.py",
    "fully_sharded.py",
    "pipeline.py",
    "tensor_parallel.py",
    "tensor_parallel_generation.py",
)  # fmt: skip
TEXT = "".join(f"def square_{i}(x):\n    return x * {i}  # and {i % 7} more\n\n\n" for i in range(200))


def run(root, name, *arguments):
    command = [sys.executable, str(root / "examples" / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root / "tests")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_has_a_test(root):
    assert {path.name for path in (root / "examples").glob("*.py")} == {*EXPECTED, *OTHERS}


def test_the_list_names_every_example_once(root):
    listed = re.findall(r"^\| `(\w+\.py)`", (root / "examples" / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted([*EXPECTED, *OTHERS])


@pytest.mark.parametrize("name", EXPECTED)
def test_example(name, root):
    output = run(root, name)
    assert all(text in output for text in EXPECTED[name]), output


def test_generate_text(root, stories):
    assert len(run(root, "generate_text.py", str(stories), "Once upon a time")) > 100


@pytest.mark.parametrize("name, epochs, least", [("digits_mlp.py", 3, 80), ("digits_cnn.py", 2, 70)])
def test_digits(root, name, epochs, least):
    pytest.importorskip("sklearn")
    (accuracy,) = re.findall(r"accuracy ([\d.]+)%", run(root, name, str(epochs)))
    assert float(accuracy) > least


def test_digits_say_what_they_need(root, tmp_path):
    (tmp_path / "sklearn.py").write_text("raise ImportError")
    begin = "import runpy, sys; sys.path.insert(0, sys.argv[2]); runpy.run_path(sys.argv[1])"
    command = [sys.executable, "-c", begin, str(root / "examples" / "digits_mlp.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr == "the digits come with scikit-learn: pip install scikit-learn\n"


def test_train_gpt2(root, tmp_path):
    (tmp_path / "text").write_text(TEXT)
    output = run(root, "train_gpt2.py", str(tmp_path / "text"), "30")
    last, first = map(float, re.search(r"loss ([\d.]+), from ([\d.]+)", output).groups())
    assert last < first - 0.5 and len(output.partition("\ndef ")[2]) > 20


def test_train_llama(root, tmp_path):
    (tmp_path / "text").write_text(TEXT)
    losses = list(map(float, re.findall(r"loss ([\d.]+)", run(root, "train_llama.py", str(tmp_path / "text"), "30"))))
    assert len(losses) == 5 and losses[-1] < losses[0] - 1


def test_data_parallel(root, tmp_path):
    """Alone, and on two ranks by the line that its first line shows."""
    (tmp_path / "text").write_text(TEXT)
    alone = run(root, "data_parallel.py", str(tmp_path / "text"), "20")
    losses = list(map(float, re.findall(r"loss ([\d.]+) on 1", alone)))
    assert losses[-1] < losses[0] - 0.3 and "on all ranks: True" in alone
    if importlib.util.find_spec("mpi4py") is None:
        return
    program = str(root / "examples" / "data_parallel.py")
    command = [sys.executable, "-m", "infinicore", "run", "-n", "2", program, str(tmp_path / "text"), "20"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=120)
    assert done.returncode == 0, done.stderr
    losses = list(map(float, re.findall(r"loss ([\d.]+) on 2", done.stdout)))
    assert losses[-1] < losses[0] - 0.3 and "on all ranks: True" in done.stdout


def on_two_ranks(root, tmp_path, name):
    """(what 20 steps on a text print, the losses)."""
    pytest.importorskip("mpi4py")
    (tmp_path / "text").write_text(TEXT)
    program = str(root / "examples" / name)
    command = [sys.executable, "-m", "infinicore", "run", "-n", "2", program, str(tmp_path / "text"), "20"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout, list(map(float, re.findall(r"loss ([\d.]+) on 2", done.stdout)))


def test_fully_sharded(root, tmp_path):
    """On two ranks by the line that the page shows; each has half of the parameters."""
    output, losses = on_two_ranks(root, tmp_path, "fully_sharded.py")
    first, second, whole = map(int, re.search(r"\[(\d+), (\d+)\].* (\d+)$", output.strip()).groups())
    assert losses[-1] < losses[0] - 0.3 and first + second == whole and max(first, second) < 0.51 * whole


def test_pipeline(root, tmp_path):
    """On two ranks by the line that the page shows; the loss falls, and what waits is told beside theory."""
    output, losses = on_two_ranks(root, tmp_path, "pipeline.py")
    assert losses[-1] < losses[0] - 0.3 and "by theory 20 %" in output


def test_tensor_parallel(root, tmp_path):
    """On two ranks by the line that the page shows; each has about half of the parameters."""
    output, losses = on_two_ranks(root, tmp_path, "tensor_parallel.py")
    assert losses[-1] < losses[0] - 0.3
    first, second, whole = map(int, re.search(r"\[(\d+), (\d+)\].* (\d+)$", output.strip()).groups())
    assert max(first, second) < 0.6 * whole


def test_combined_parallel(root, tmp_path):
    """On four ranks by the line that the page shows: begun on one mesh, and gone on with on another."""
    pytest.importorskip("mpi4py")
    (tmp_path / "text").write_text(TEXT)
    program, losses = str(root / "examples" / "combined_parallel.py"), []
    for mesh, steps in (("dp=2,tp=2", "20"), ("tp=2,pp=2", "30")):
        command = [sys.executable, "-m", "infinicore", "run", "-n", "4", program, mesh, str(tmp_path / "text"), steps]
        done = subprocess.run([*command, str(tmp_path / "run")], capture_output=True, text=True, cwd=root, timeout=200)
        assert done.returncode == 0, done.stderr
        losses += map(float, re.findall(r"loss ([\d.]+) on Mesh", done.stdout))
    assert len(losses) == 3 and losses[2] < losses[1] < losses[0] - 0.2, losses


def test_context_parallel(root, tmp_path):
    """One process and two ranks, by the line that the page shows: the same losses, half of the tokens each."""
    pytest.importorskip("mpi4py")
    (tmp_path / "text").write_text(TEXT)
    program, found = str(root / "examples" / "context_parallel.py"), []
    for start in ([], ["-m", "infinicore", "run", "-n", "2"]):
        command = [sys.executable, *start, program, str(tmp_path / "text"), "10"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=120)
        assert done.returncode == 0, done.stderr
        found.append(list(map(float, re.findall(r"loss ([\d.]+) on", done.stdout))))
    assert found[0] == pytest.approx(found[1], abs=2e-5) and found[1][-1] < found[1][0] - 0.3
    assert done.stdout.strip().endswith("of 512 tokens of a sequence, the ranks have [256, 256]")


def test_tensor_parallel_generation(root):
    """The same text as in one process, from about half of the parameters."""
    pytest.importorskip("mpi4py")
    program = str(root / "examples" / "tensor_parallel_generation.py")
    found = []
    for start in ([], ["-m", "infinicore", "run", "-n", "2"]):
        done = subprocess.run([sys.executable, *start, program], capture_output=True, text=True, cwd=root, timeout=120)
        assert done.returncode == 0, done.stderr
        found.append(re.fullmatch(r"(.*)numbers of parameters .*: (\d+)\n", done.stdout, re.DOTALL).groups())
    (text, whole), (divided, part) = found
    assert text == divided and int(part) < 0.6 * int(whole)


def test_lora(root, stories, tmp_path):
    (tmp_path / "text").write_text(TEXT)
    output = run(root, "lora.py", str(stories), str(tmp_path / "text"), "20")
    losses = list(map(float, re.findall(r"loss ([\d.]+)", output)))
    assert losses[-1] < losses[0] and "18,400 of 260,032 parameters" in output
    assert float(re.search(r"differ by (\S+)", output)[1]) < 1e-3
