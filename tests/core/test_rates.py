"""Rates that are measured once for a machine, and what is chosen by them: `kernels/build/rates.py`."""

import concurrent.futures
import json
import os
import subprocess
import sys

import pytest
from infinicore.kernels.blocks.pool import SHARED
from infinicore.kernels.build import disk, isa, rates, render
from infinicore.kernels.cpu import threads
from infinicore.kernels.cpu.measure import survey

import infinicore as ic
from infinicore.core import launch

EMERALD = rates.Rates(
    multiply=159.0,
    divide=4.0,
    widened=59.0,
    dots=82.0,
    byte_dots=626.0,
    tiles=720.0,
    float16_tiles=0.0,
    byte_tiles=1480.0,
    near=105.0,
    one_core=15.0,
    all_cores=150.0,
    launches=((2, 0.4, 3.0), (4, 1.4, 5.6), (8, 2.1, 13.0), (16, 3.5, 24.0)),
)
ZEN4 = EMERALD._replace(
    multiply=116.0, divide=9.3, widened=81.0, dots=232.0, byte_dots=463.0, tiles=0.0, byte_tiles=0.0
)

MEASURES = """
import json
from infinicore.kernels.build import rates
from infinicore.kernels.cpu.measure import survey

true, asked = survey.survey, []
survey.survey = lambda: asked.append(1) or true()
found = rates.rates()
print(json.dumps([found, rates.choices(), rates.teams(), len(asked)]))
"""


def measured(folder, program=MEASURES, **environment):
    environment = {**os.environ, "INFINICORE_CACHE_DIR": str(folder), "INFINICORE_RATES": "auto", **environment}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.fixture
def with_all(monkeypatch):
    """A CPU with every instruction that a choice is about."""
    for name in ("has_bf16_dot", "has_int8_dot", "has_amx", "has_amx_float16"):
        monkeypatch.setattr(isa, name, lambda: True)
    monkeypatch.setattr(isa, "vector_bytes", lambda: 64)


def test_an_instruction_is_used_unless_another_way_is_faster(with_all, monkeypatch):
    chosen = rates.choose(EMERALD)
    assert chosen == (True, False, True, True, True, False, True, True)  # a product that cannot be measured is none
    assert rates.choose(EMERALD._replace(tiles=80.0, byte_tiles=500.0))[4:7] == (False, False, False)
    assert rates.choose(EMERALD._replace(float16_tiles=700.0)).float16_tiles
    monkeypatch.setattr(isa, "has_amx", lambda: False)  # refused by the system
    without = rates.choose(EMERALD)
    assert not without.pairs and without.row_pairs and not without.tiles and not without.byte_tiles
    assert rates.choose(ZEN4) == (True, True, True, True, False, False, False, False)
    assert not rates.choose(EMERALD._replace(dots=50.0)).row_pairs
    assert not rates.choose(EMERALD._replace(byte_dots=200.0)).byte_dots
    assert rates.choose(None).pairs


def test_without_the_instructions_nothing_is_chosen(monkeypatch):
    for name in ("has_bf16_dot", "has_int8_dot", "has_amx", "has_amx_float16"):
        monkeypatch.setattr(isa, name, lambda: False)
    monkeypatch.setattr(isa, "vector_bytes", lambda: 32)
    for found in (EMERALD, None):
        assert not any(rates.choose(found))


def test_a_launch_takes_the_threads_that_end_it_first(monkeypatch):
    """Times by the figures of the launches: work / threads, and what they cost."""
    monkeypatch.setattr(rates, "rates", lambda: EMERALD)
    teams = rates.teams()
    assert list(teams) == sorted(teams) and teams[0] >= rates.SIXTEENTHS and len(teams) == rates.TEAMS
    grain = rates.GRAIN_BYTES / EMERALD.near / 1000
    costs = {1: 0.0} | {count: warm + asleep / 32 for count, warm, asleep in EMERALD.launches}
    for sixteenths in range(16, 400):
        work, team = sixteenths / 16 * grain, sum(sixteenths >= least for least in teams[:4])
        times = {count: work / count + cost for count, cost in costs.items()}
        assert times[1 << team] <= 1.15 * min(times.values())
    monkeypatch.setattr(rates, "rates", lambda: EMERALD._replace(launches=((2, 40.0, 0.0),)))
    dear = rates.teams()
    assert all(many >= few for many, few in zip(dear, teams)) and dear[0] > 4 * rates.SIXTEENTHS
    monkeypatch.setattr(rates, "rates", lambda: EMERALD._replace(launches=()))  # a machine of one CPU
    assert len(rates.teams()) == rates.TEAMS


def test_launches_are_split_so():
    def split(function):
        """(items, threads) of each launch."""
        ic.start_graph_recording()
        try:
            function()
            return [(record[2], record[3] % SHARED) for record in launch.recording()]
        finally:
            ic.stop_graph_recording()

    teams, before = threads.teams(), launch.set_own_threads(8)
    try:
        for n in (1000, 32767, 32768, 50_000, 65_536, 200_000, 1 << 20):
            work = 16 * n // 32768
            wanted = min(8, 1 << sum(work >= least for least in teams))
            assert split(ic.ones(n).exp) == [(n, wanted)]
        few = ic.ones(5 * 65536)
        assert split(few.sum)[0] == (5, 5)  # chunks, of which each is worth a thread: never more than there are
    finally:
        launch.set_own_threads(before)


def test_a_survey_takes_a_moment_and_finds_what_there_is():
    survey.survey()  # kernels are compiled
    found, again = survey.survey(), survey.survey()
    assert found.multiply > 1 and found.divide > 0.1 and found.widened > 0.5 and found.near > 1 and found.one_core > 0.5
    assert found.all_cores > 0.5
    assert [count for count, *_ in found.launches][-1:] == ([threads.available_cpus()] if found.launches else [])
    assert all(warm >= 0 and asleep >= 0 for _, warm, asleep in found.launches)
    has = {
        "dots": isa.has_bf16_dot(),
        "byte_dots": isa.has_int8_dot(),
        "tiles": isa.has_amx(),
        "float16_tiles": isa.has_amx_float16(),
        "byte_tiles": isa.has_amx(),
    }
    for name, there in has.items():
        assert (getattr(found, name) > 0) == there
    assert found.multiply < 3 * again.multiply and again.multiply < 3 * found.multiply


def test_no_choice_has_a_part_in_what_measures():
    """Else the rates would depend on themselves."""
    own = disk.library_digest("from infinicore.kernels.build import rates")
    assert own  # it is found at all
    behind = disk._helpers()("build/rates.py")[0]
    for file in ("measure/rates", "measure/touch", "driver"):
        assert behind not in disk._library(f"from infinicore.kernels.cpu.{file.replace('/', '.')} import it")
    for file in ("gemm/blocked", "quant/tile", "attention/decode"):
        folder, name = file.split("/")
        assert behind in disk._library(f"from infinicore.kernels.cpu.{folder} import {name}")


def test_choices_are_a_part_of_the_key(monkeypatch):
    product = render.stub("gemm.gemv.dot_rows", {"T": "bfloat16", "ACT": None})
    idle = render.stub("measure.rates.idle", {})
    before = disk.path_of("x", product), disk.path_of("x", idle)
    other = rates.choices()._replace(pairs=not rates.choices().pairs)
    monkeypatch.setattr(rates, "choices", lambda: other)
    assert disk.path_of("x", product) != before[0] and disk.path_of("x", idle) == before[1]


def test_they_are_measured_once(tmp_path):
    """By one of several processes that begin together; a file that is damaged counts as none."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: measured(tmp_path), range(2))
    assert first[:3] == second[:3] and first[3] + second[3] == 1
    assert first[1] == list(rates.choose(rates.Rates(*first[0]))) and first[2][0] >= 16
    (file,) = tmp_path.glob("rates-*.json")
    assert measured(tmp_path)[3] == 0
    file.write_text(file.read_text().replace('"divide": ', '"divide": 1'))
    assert measured(tmp_path)[3] == 1
    assert measured(tmp_path, INFINICORE_RATES="fixed") == [None, list(rates.choose(None)), first[2] and [*_usual()], 0]
    assert len(list(tmp_path.glob("rates-*"))) == 1


def _usual():
    """What launches cost where nothing was measured."""
    before, rates._known[:] = rates._known[:], [None]
    try:
        return rates.teams()
    finally:
        rates._known[:] = before


def test_the_setting_is_checked():
    program = "from infinicore.kernels.build import rates\nrates.rates()"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env={**os.environ, "INFINICORE_RATES": "slow"}, capture_output=True, text=True)
    assert done.returncode == 1 and "`INFINICORE_RATES` must be one of auto, fixed, got 'slow'" in done.stderr


# A CPU whose dot products were measured to be slow: bfloat16 goes as float32, in every kernel that has the choice.
SLOW_DOTS = """
import json
import numpy as np
from infinicore.kernels.build import jit, rates, render

true = rates.rates()
rates._known[:] = [true._replace(multiply=200.0, widened=50.0, dots=100.0, byte_dots=100.0, tiles=0.0, byte_tiles=0.0)]
import infinicore as ic

rng = np.random.default_rng(0)
wrong = []
for m, n, k in ((40, 30, 100), (1, 64, 256), (3, 40, 65), (16, 300, 128), (64, 128, 784), (200, 150, 33)):
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((m, k), (n, k)))
    x, w = ic.from_numpy(a).to(ic.bfloat16), ic.from_numpy(b).to(ic.bfloat16)
    want = ic.from_numpy(a @ b.T).to(ic.bfloat16).float().numpy()  # sums of small integers are exact, rounded once
    if not (ic.linear(x, w).float().numpy() == want).all() or not (ic.matmul(x, w.t()).float().numpy() == want).all():
        wrong.append((m, n, k))
q, key, value = (ic.from_numpy(rng.standard_normal((1, 2, 40, 32)).astype(np.float32)) for _ in range(3))
half = [t.to(ic.bfloat16) for t in (q, key, value)]
attend = ic.nn.functional.scaled_dot_product_attention
far = (attend(*half, is_causal=True).float() - attend(*[t.float() for t in half], is_causal=True)).abs().max().item()
image, kernel = ic.from_numpy(rng.integers(-2, 3, (2, 3, 9, 9)).astype(np.float32)), ic.ones(4, 3, 3, 3)
conv = ic.nn.functional.conv2d(image.to(ic.bfloat16), kernel.to(ic.bfloat16)).float()
apart = (conv - ic.nn.functional.conv2d(image, kernel).to(ic.bfloat16).float()).abs().max().item()
constants = {"thread": True, "T": "bfloat16", "ACT": None, "R": "bfloat16"}
text = jit.assembly("p", render.stub("gemm.blocked.matmul", constants))
bytes_ = jit.assembly("b", render.stub("quant.products.stream", {"F": "q8_0", "T": "float32"}))
rows = jit.assembly("r", render.stub("gemm.gemv.dot_rows", {"T": "bfloat16", "ACT": None}))
print(json.dumps([wrong, far, apart, "vdpbf16ps" in text, "vpdpbusd" in bytes_, "vdpbf16ps" in rows]))
"""


@pytest.mark.skipif(not (isa.has_bf16_dot() and isa.has_int8_dot()), reason="this CPU has not both dot products")
def test_products_without_the_dots_that_a_cpu_has(tmp_path):
    """Products of panels go without them; rows that are multiplied as they lie would have to be widened each time."""
    wrong, far, apart, pairs, quads, rows = measured(tmp_path, SLOW_DOTS)
    assert wrong == [] and far < 0.02 and apart == 0 and not pairs and not quads and rows
