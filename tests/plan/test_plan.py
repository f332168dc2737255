"""The arithmetic of `infinicore plan`, beside numbers computed by hand, and its command."""

import json

import pytest
from infinicore.distributed.schedule import schedule, simulate

from infinicore import cli, models, plan
from infinicore.plan.estimate import Wires, _Step

FLAT = [[tokens, width, 50.0, 25.0] for tokens in (64, 1024) for width in (256, 768)]
FIGURES = {
    "cores": 8, "layers": {"float32": {"plain": FLAT, "gated": FLAT}}, "head": {"float32": [r[:3] for r in FLAT]},
    "attention": {"float32": 10.0}, "update": 7.0, "copy": 8.0, "process": 1e8, "local": [5.0, 4.0],
}  # fmt: skip
MACHINE = plan.Figures(**FIGURES)
SMALL = {"model_type": "gpt2", "n_embd": 128, "n_layer": 4, "n_head": 2, "vocab_size": 1000, "n_positions": 64}
NETWORK = plan.Network.of(SMALL)


@pytest.mark.parametrize("config", [SMALL, {**SMALL, "tie_word_embeddings": False}, {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512,
}], ids=["gpt2", "untied", "llama"])  # fmt: skip
def test_parameters_are_those_of_the_model(config):
    model = models.from_config(config)
    assert plan.Network.of(config).parameters == sum(p.numel() for p in model.parameters())


def test_published_sizes():
    sizes = {name: plan.Network.of(config).parameters for name, config in plan.PRESETS.items()}
    assert sizes["gpt2-124m"] == 124_439_808 and sizes["llama-2-7b"] == 6_738_415_616
    assert sizes["llama-2-70b"] == 68_976_648_192 and sizes["llama-3-405b"] == 405_853_388_800


@pytest.mark.parametrize("zero, parts", [(0, (1, 1, 1)), (1, (1, 1, 4)), (2, (1, 4, 4)), (3, (4, 4, 4))])
def test_zero_divides_memory(zero, parts):
    """Arxiv 1910.02054 in float32: 4 + 4 + 8 bytes a parameter, divided among 4 ranks by stage."""
    memory = plan.estimate(NETWORK, plan.Job(mesh={"dp": 4}, batch=4, sequence=64, zero=zero), MACHINE).memory
    values = NETWORK.parameters
    assert memory["weights"] == 4 * values / parts[0]
    assert memory["gradients"] == 4 * values / parts[1]
    assert memory["optimizer"] == 8 * values / parts[2]


def test_memory_of_one_process_by_hand():
    memory = plan.estimate(NETWORK, plan.Job(mesh={}, batch=2, sequence=64), MACHINE).memory
    # a layer keeps 16 values of the width a token (arXiv 2205.05198 without the scores), the end 2
    assert memory["activations"] == (4 * 16 + 2) * 128 * (2 * 64) * 4
    # the table's gradient, and 2 x width + 2 x inner a token
    assert memory["buffers"] == 1000 * 128 * 4 + (2 * 128 + 2 * 512) * (2 * 64) * 4
    less = plan.estimate(NETWORK, plan.Job(mesh={}, batch=2, sequence=64, checkpointing=True), MACHINE).memory
    assert less["activations"] == (4 + 16 + 2) * 128 * (2 * 64) * 4


def test_time_of_one_process_by_hand():
    found = plan.estimate(NETWORK, plan.Job(mesh={}, batch=2, sequence=64, cores=2), MACHINE)
    matrices, attention = 2 * 12 * 128**2 * 128, 2 * 128 * 65 * 128
    layer = matrices / 50e9 + 2 * matrices / 25e9 + 3 * attention / 10e9
    head, table = 6 * 1000 * 128 * 128 / 50e9, 4 * 1000 * 128 * 4 / 8e9
    update = NETWORK.parameters * 28 / 7e9
    assert found.seconds == pytest.approx((4 * layer + head + update) / 2 + table)
    assert found.tokens_per_s == pytest.approx(128 / found.seconds) and found.bubble == 0


def test_all_reduce_by_hand():
    link = plan.Link(rate=10.0, latency=20.0)
    near = Wires(plan.Job(mesh={"dp": 4}, batch=4), MACHINE)
    assert near.all_reduce(4e6, "dp") == pytest.approx((6e6, 5e-6 + 6e6 / 4e9))
    # 2 nodes of 4 ranks, of which 2 sum with the 2 of the other node: each rank sends half of its bytes there, twice
    far = Wires(plan.Job(mesh={"tp": 2, "dp": 4}, nodes=2, link=link, batch=4), MACHINE)
    assert far.together(["tp"]) == (2, 2) and far.together(["dp"]) == (4, 2)
    wait, cable, here = 2 * (20 + 2 * 3) * 1e-6, 2 * 0.5 * 4e6 * 4 / 10e9, 2 * 0.25 * 4e6 / 4e9
    assert far.all_reduce(4e6, "dp") == pytest.approx((6e6, wait + cable + here))
    # neighbours of the pipeline are on other nodes: all ranks of a node send at once
    line = Wires(plan.Job(mesh={"tp": 2, "dp": 2, "pp": 2}, nodes=2, link=link, batch=2), MACHINE)
    assert line.message(1e6, "pp") == pytest.approx(21e-6 + 4e6 / 10e9)


@pytest.mark.parametrize("ranks, micro, chunks, name", [
    (4, 8, 1, "1f1b"), (8, 8, 1, "gpipe"), (4, 16, 2, "interleaved"), (2, 1, 1, "1f1b"),
])  # fmt: skip
def test_pipelines_are_those_of_simulate(ranks, micro, chunks, name):
    job = plan.Job(mesh={"pp": ranks}, batch=micro, sequence=64, micro_batches=micro, schedule=name, chunks=chunks)
    step = _Step(plan.Network.of({**SMALL, "n_layer": 14}), job, MACHINE)
    step.times = [[1.0, 2.0]] * (ranks * chunks)
    step.wires.message = lambda *_: 0.0
    line = simulate(schedule(name, ranks, micro, chunks))
    assert step.pipeline() == pytest.approx((line.total, line.bubble))
    assert [step.kept(rank) * chunks for rank in range(ranks)] == list(line.peak)


def test_search_gives_the_fastest_that_fits():
    batch = {"batch": 64, "sequence": 64}
    found = plan.search(NETWORK, MACHINE, 8, 2e8, best=5, **batch)
    speeds = [one.tokens_per_s for one in found]
    assert len(found) == 5 and speeds == sorted(speeds, reverse=True)
    assert all(one.total <= 2e8 and one.job.ranks == 8 and one.job.mesh["tp"] <= 2 for one in found)
    with pytest.raises(ValueError, match=r"the least found is 0\.10 GB"):  # a process alone takes as much
        plan.search(NETWORK, MACHINE, 8, 9e7, **batch)


def test_thousands_of_ranks(tmp_path, capsys):
    figures = tmp_path / "figures.json"
    figures.write_text(json.dumps(FIGURES))
    shape = ["--preset", "llama-3-8b", "--figures", figures, "--nodes", 512, "--link", "25,5", "--cores", 64]
    line = ["plan", *shape, "--batch", 2048, "--sequence", 2048, "--micro-batches", 16, "--json"]
    assert cli.main([*map(str, line), "--mesh", "dp=128,tp=8,pp=4"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ranks"] == 4096 and set(found["communication"]) == {"tp", "dp", "pp"}
    assert found["memory"]["total"] == pytest.approx(sum(v for k, v in found["memory"].items() if k != "total"))
    assert cli.main([*map(str, line), "--ranks", "4096", "--memory", "64GB", "--best", "3"]) == 0
    assert all(one["memory"]["total"] <= 64e9 for one in json.loads(capsys.readouterr().out))
    assert cli.main(["plan", "--preset", "gpt2-124m", "--mesh", "tp=2", "--figures", str(figures)]) == 0
    assert "124.4 million parameters on 2 ranks" in capsys.readouterr().out


@pytest.mark.parametrize("words, sentence", [
    ("--mesh dp=2,xp=2", "`mesh` must have axes of tp, cp, dp, pp, got xp"),
    ("--mesh dp=two", "`--mesh` must be as in"),
    ("--mesh tp=16", "`mesh` tp must be at most the 12 heads"),
    ("--mesh pp=15", "must be at most the 14 pieces"),
    ("--mesh dp=3", "`batch` must be a multiple of dp (3)"),
    ("--mesh dp=4 --nodes 3 --link 10,5", "`nodes` must divide the 4 ranks"),
    ("--mesh dp=4 --nodes 2", "`link` is needed for 2 nodes"),
    ("--mesh dp=4 --nodes 2 --link fast", "`--link` must be GB/s and microseconds"),
    ("--mesh dp=2 --cores 0", "`cores` must be an integer of at least 1, got 0"),
    ("--mesh dp=2 --sequence 4096", "`sequence` must be at most the 1024 positions"),
    ("--ranks 4", "`--ranks N` and `--memory SIZE` go together"),
    ("--ranks 4 --memory lots", "`--memory` must be a size"),
    ("--ranks 4 --memory 1MB", "holds no mesh of 4 ranks"),
    ("", "give either `--mesh"),
])  # fmt: skip
def test_what_cannot_be_is_one_sentence(words, sentence, tmp_path, capsys):
    figures = tmp_path / "figures.json"
    figures.write_text(json.dumps(FIGURES))
    assert cli.main(["plan", "--figures", str(figures), *words.split()]) == 2
    assert sentence in capsys.readouterr().err


def test_figures_of_another_kind_are_refused(tmp_path, capsys):
    figures = tmp_path / "figures.json"
    for text in ("{}", json.dumps(FIGURES | {"local": [1.0]}), json.dumps(FIGURES | {"format": 0})):
        figures.write_text(text)
        assert cli.main(["plan", "--mesh", "dp=2", "--figures", str(figures)]) == 2
        assert "holds no kernel figures of this format" in capsys.readouterr().err
