"""A graph replays recorded launches in one compiled loop: no Python between them."""

import time

import infinicore as ic

x, weight = ic.randn(1, 256), ic.ones(256)


def step():
    y = x
    for _ in range(20):
        y = ic.rms_norm(y * 1.5, weight)
    return y


step()  # compiles
ic.start_graph_recording()
result = step()
graph = ic.stop_graph_recording()

x.copy_(ic.randn(1, 256))
began = time.perf_counter()
graph.run()  # new values in `x`, new values in `result`
replayed = time.perf_counter() - began
began = time.perf_counter()
expected = step()
called = time.perf_counter() - began
print("same result:", bool((result == expected).all()))
print(f"{len(graph)} launches: {replayed * 1e6:.0f} us replayed, {called * 1e6:.0f} us called one by one")
