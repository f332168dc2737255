"""Threads that do all kinds of things at the same time, from the first import on: `threads_at_work.py SECONDS`
(at least).

Each result is compared with NumPy's, or with what one thread gets alone. Prints what went wrong, and how often each
kind of work was done.
"""

import collections
import faulthandler
import gc
import random
import sys
import threading
import time
import traceback

import numpy as np

import infinicore as ic

THREADS = 8
CONFIG = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "eos_token_id": 59,
}
OPTIONS = [
    {"temperature": 0},
    {"temperature": 0, "cache": "paged"},
    {"temperature": 0, "decode_threads": 1},
    {"temperature": 0, "kv_cache_dtype": "int8"},
    {"temperature": 0.9, "top_p": 0.9, "seed": 3, "repetition_penalty": 1.1},
]
_alone = threading.Lock()
_model = _answers = _doubled = None


def close(result, expected, tolerance=1e-4):
    np.testing.assert_allclose(result.numpy(), expected, rtol=tolerance, atol=tolerance)


def model():
    """One model for all threads, with the answers that one thread gets."""
    global _model, _answers
    from infinicore.models import CausalLM
    from infinicore.models.llama import configs

    with _alone:
        if _model is None:
            made = CausalLM(configs.parse("config.json", CONFIG, "llama")).eval()
            values = np.random.default_rng(1)
            for parameter in made.parameters():
                if parameter.ndim == 2:
                    array = (values.standard_normal(tuple(parameter.shape)) * 0.4).astype(np.float32)
                    parameter.detach().copy_(ic.from_numpy(array))
            _answers = {}
            for which in range(len(OPTIONS)):
                for prompt in PROMPTS:
                    _answers[which, prompt] = answer(made, which, prompt)
            _model = made
    return _model


PROMPTS = ((1, 2, 3), (7,), tuple(range(5, 45)))


def answer(made, which, prompt):
    generation = made.generate(list(prompt), max_new_tokens=12, ignore_eos=True, **OPTIONS[which])
    return [token.token_id for token in generation]


def generates(rng, _):
    which, prompt = rng.randrange(len(OPTIONS)), rng.choice(PROMPTS)
    made = model()
    assert answer(made, which, prompt) == _answers[which, prompt]


def elementwise(rng, values):
    shape = rng.choice([(5,), (300,), (17, 33), (70_000,), (400, 300)])
    a, b = (values.standard_normal(shape).astype(np.float32) for _ in "ab")
    x, y = ic.from_numpy(a), ic.from_numpy(b)
    close(ic.exp(x) * y + 2.5 - x, np.exp(a) * b + 2.5 - a)
    close(ic.where(x > y, x, y * x), np.where(a > b, a, b * a))
    close(x.transpose(0, -1).contiguous() * 3, a.T * 3 if a.ndim == 2 else a * 3)
    close(x.to(ic.bfloat16).to(ic.float32), a, 1e-2)


def products(rng, values):
    m, n, k = (rng.choice([1, 3, 17, 64, 200]) for _ in "mnk")
    a, b = values.standard_normal((m, k)).astype(np.float32), values.standard_normal((n, k)).astype(np.float32)
    x, w = ic.from_numpy(a), ic.from_numpy(b)
    close(ic.linear(x, w), a @ b.T, 2e-3)
    close(x @ w.transpose(0, 1), a @ b.T, 2e-3)


def reductions(rng, values):
    a = values.standard_normal((rng.choice([3, 100]), rng.choice([7, 900]))).astype(np.float32)
    x = ic.from_numpy(a)
    close(x.sum(0), a.sum(0), 1e-3)
    close(x.mean(), a.mean(), 1e-3)
    close(ic.softmax(x, -1).sum(-1), np.ones(len(a)))
    np.testing.assert_array_equal(ic.sort(x, -1)[0].numpy(), np.sort(a, -1))
    np.testing.assert_array_equal(x.max(1)[1].numpy(), a.argmax(1))


def memory(rng, _):
    held = [ic.full((rng.choice([1, 64, 5000, 300_000, 2_000_000]),), float(i)) for i in range(12)]
    rng.shuffle(held)
    del held[::2]
    if rng.random() < 0.1:
        from infinicore.core import memory as pool

        pool.trim()
    for x in held:
        assert x.numpy()[0] == x.numpy()[-1] == float(x.mean().item())


def cycles(rng, _):
    """What only the garbage collector finds."""
    for _ in range(20):
        ring = [ic.ones(200)]
        ring.append(ring)
    if rng.random() < 0.2:
        gc.collect()


def trains(rng, values):
    w = ic.from_numpy(values.standard_normal((8, 16)).astype(np.float32)).requires_grad_()
    a = values.standard_normal((32, 16)).astype(np.float32)
    loss = (ic.nn.functional.linear(ic.from_numpy(a), w) ** 2).sum()
    loss.backward()
    close(w.grad, 2 * (w.detach().numpy() @ a.T) @ a, 5e-3)
    with ic.no_grad():
        assert not (w * 2).requires_grad
    assert (w * 2).requires_grad


def graphs(rng, values):
    a = values.standard_normal(rng.choice([100, 90_000])).astype(np.float32)
    x = ic.from_numpy(a.copy())
    ic.start_graph_recording()
    y = (ic.tanh(x) + 1) * x
    graph = ic.stop_graph_recording()
    for _ in range(3):
        a = a[::-1].copy()
        x.copy_(ic.from_numpy(a))
        graph.run()
        close(y, (np.tanh(a) + 1) * a)


def recorded(rng, values):
    """One recorded function for all threads."""
    global _doubled
    with _alone:
        if _doubled is None:
            _doubled = ic.recorded(lambda x: (x * 2).cumsum(0))
    a = values.standard_normal(rng.choice([10, 200])).astype(np.float32)
    close(_doubled(ic.from_numpy(a)), (a * 2).cumsum(), 1e-3)


def modules(rng, values):
    """Names that are looked up by whoever comes first."""
    layers = ic.nn.Sequential(ic.nn.Linear(6, 5), ic.nn.LayerNorm(5), ic.nn.GELU(), ic.nn.Dropout(0.5))
    optimizer = ic.optim.AdamW(layers.parameters(), lr=1e-2)
    x = ic.from_numpy(values.standard_normal((4, 6)).astype(np.float32))
    with ic.autocast("cpu", enabled=rng.random() < 0.5):
        loss = layers(x).to(ic.float32).sum()
    loss.backward()
    optimizer.step()
    assert all(np.isfinite(p.detach().numpy()).all() for p in layers.parameters())


def counts(rng, _):
    """The thread count of a block is that of its thread."""
    from infinicore.context import NumThreads

    before = ic.get_num_threads()
    with NumThreads(1):
        assert ic.get_num_threads() == 1
        assert float(ic.ones(300_000).sum()) == 300_000
    assert ic.get_num_threads() == before


WORK = [generates, elementwise, products, reductions, memory, cycles, trains, graphs, recorded, modules, counts]
done, wrong = collections.Counter(), []


def work(number, stop, barrier):
    rng, values = random.Random(number), np.random.default_rng(number)
    barrier.wait()
    order = WORK[number:] + WORK[:number]  # everyone begins with something else, and does everything once
    while (order or time.monotonic() < stop) and not wrong:
        kind = order.pop() if order else rng.choice(WORK)
        try:
            kind(rng, values)
        except BaseException:
            wrong.append(f"{kind.__name__}: {traceback.format_exc()}")
        done[kind.__name__] += 1


def main(seconds):
    faulthandler.dump_traceback_later(2 * seconds + 300, exit=True)  # threads that wait for each other
    sys.setswitchinterval(1e-5)
    stop, barrier = time.monotonic() + seconds, threading.Barrier(THREADS)
    threads = [threading.Thread(target=work, args=(number, stop, barrier)) for number in range(THREADS)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    print(dict(done))
    print(*wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
