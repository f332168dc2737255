"""Every collective against NumPy, on every transport of this machine, blocking and not, recorded and not.

With the name of a device (`cuda`, `host2`), of tensors there; with `direct` behind it, an MPI that reaches them, with
`windows`, others that reach them (`devices.give_windows`).
"""

import itertools
import sys
import time

import infinicore.distributed as dist
import numpy as np
import refusals
from devices import NAME, device, give_windows, new, put
from infinicore.distributed import ccl
from infinicore.distributed import functional as flow
from infinicore.distributed import world as mpi_world
from infinicore.distributed.group import Group

import infinicore as ic

world = dist.init()
R, N = world.rank, world.size
groups = [world]
if "windows" in sys.argv:
    give_windows(R)
if "direct" in sys.argv:
    mpi_world.reaches = lambda kind: True
if N > 1:
    groups.append(Group(world.comm.Dup(), "messages", world.ranks, 60, "messages", None))

FOLD = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}


def data(r, n, dtype, seed=0):
    """What rank r has: the same on every rank that asks."""
    rng = np.random.default_rng([r, n, seed])
    if dtype == "bool":
        return rng.random(n) < 0.5
    if "int" in dtype:
        return rng.integers(0, 5, n).astype(dtype)
    return (rng.integers(-64, 64, n) / 16).astype(ic.dtype(dtype).numpy)


def folded(parts, op, dtype):
    """In float32 (float64 of that) in the order of ranks, rounded once."""
    if dtype == "bool":
        return np.logical_or.reduce(parts) if op in ("sum", "max") else np.logical_and.reduce(parts)
    wide = [p.astype("float32") if p.dtype.itemsize < 4 and "int" not in dtype else p for p in parts]
    total = wide[0]
    for part in wide[1:]:
        total = FOLD["sum" if op == "avg" else op](total, part)
    if op == "avg":
        total = total / np.asarray(N, total.dtype)
    return total.astype(ic.dtype(dtype).numpy)


def same(x, wanted, what, atol=0.0):
    got = x.detach().cpu().numpy() if isinstance(x, ic.Tensor) else x
    assert got.dtype == wanted.dtype and np.allclose(
        got.reshape(-1).astype("float64"), wanted.reshape(-1).astype("float64"), rtol=0, atol=atol, equal_nan=True
    ), f"{what} on rank {R}: {got.reshape(-1)[:5]} for {wanted.reshape(-1)[:5]}"


CASES = [("float32", op) for op in ("sum", "prod", "min", "max", "avg")]
CASES += [("bfloat16", "sum"), ("float16", "avg"), ("float64", "sum"), ("bool", "sum"), ("bool", "prod")]
CASES += [("int8", "sum"), ("int64", "max"), ("uint16", "sum"), ("float8_e4m3", "sum")]


def reductions(group):
    for dtype, op in CASES:
        every = [data(r, 1000, dtype) for r in range(N)]
        x = put(every[R].copy())
        assert dist.all_reduce(x, op, group) is x
        same(x, folded(every, op, dtype), f"all_reduce {op} of {dtype}")
        again, before = put(every[R].copy()), x.storage.version  # a call like one before is looked up
        dist.all_reduce(again, op, group)
        same(again, folded(every, op, dtype), f"a second all_reduce {op} of {dtype}")
        assert again.storage.version == before
    for n in (0, 1, 33, 40_000, 300_001):  # one phase, two phases, several rounds
        every = [data(r, n, "float32", 1) for r in range(N)]
        x = put(every[R].copy())
        dist.all_reduce(x, group=group)
        same(x, folded(every, "sum", "float32"), f"all_reduce of {n}")
        y = put(every[R].copy())
        dist.reduce(y, N - 1, group=group)
        same(y, folded(every, "sum", "float32") if R == N - 1 else every[R], f"reduce of {n}")
        work = dist.all_reduce(put(every[R].copy()), group=group, async_op=True)
        same(work.wait(), folded(every, "sum", "float32"), f"all_reduce of {n} in the background")
    every = [data(r, 600, "float32", 2).reshape(20, 30) for r in range(N)]
    whole = put(every[R].copy())
    dist.all_reduce(whole.t()[3:, ::2], group=group)  # strides
    wanted = every[R].copy()
    wanted.T[3:, ::2] = folded(every, "sum", "float32").T[3:, ::2]
    same(whole, wanted, "all_reduce of strides")
    nan = put(np.array([np.nan if R == 0 else 1.0, float(R)], "float32"))
    same(dist.all_reduce(nan, "max", group), np.array([np.nan, N - 1], "float32"), "NaN")
    parts = [data(r, 12 * N, "float32", 3) for r in range(N)]
    total = folded(parts, "sum", "float32")
    out = dist.reduce_scatter(new("empty", 12), put(parts[R].copy()), group=group)
    same(out, total[12 * R : 12 * R + 12], "reduce_scatter")
    counts = [5 * r + 1 for r in range(N)]
    starts = np.cumsum([0, *counts])
    pieces = [put(parts[R][starts[r] : starts[r + 1]].copy()) for r in range(N)]
    out = dist.reduce_scatter(new("empty", counts[R]), pieces, group=group)
    same(out, total[starts[R] : starts[R + 1]], "reduce_scatter of unequal parts")


def movements(group):
    counts = [3 * r + 1 for r in range(N)]
    for src in range(N):
        x = put(data(R, 70_000, "float32", 4))
        same(dist.broadcast(x, src, group), data(src, 70_000, "float32", 4), "broadcast")
    every = [data(r, 24, "bfloat16", 5).reshape(4, 6) for r in range(N)]
    x = put(every[R].copy())
    same(dist.all_gather(new("empty", (4 * N, 6), dtype="bfloat16"), x, group), np.concatenate(every), "all_gather")
    uneven = [new("empty", c) for c in counts]
    dist.all_gather(uneven, put(data(R, counts[R], "float32", 6)), group)
    for r in range(N):
        same(uneven[r], data(r, counts[r], "float32", 6), "all_gather of unequal parts")
    there = R == N - 1
    whole = new("empty", (N, 4, 6), dtype="bfloat16") if there else None
    dist.gather(x, whole, N - 1, group)
    if there:
        same(whole, np.stack(every), "gather")
    given = put(np.stack(every)) if R == 0 else None
    same(dist.scatter(new("empty", (4, 6), dtype="bfloat16"), given, 0, group), every[R], "scatter")
    send = [put(data(R, counts[r], "int32", 10 + r)) for r in range(N)]
    take = [new("empty", counts[R], dtype="int32") for _ in range(N)]
    dist.all_to_all(take, send, group, async_op=True).wait()
    for r in range(N):
        same(take[r], data(r, counts[R], "int32", 10 + R), "all_to_all")
    dist.barrier(group)


def chunks(group):
    """What travels through the host in several pieces, of unequal numbers."""
    if NAME == "cpu":
        return
    for dtype, n in (("float32", 1_300_001), ("bfloat16", 2_500_003)):
        every = [data(r, n, dtype, 30) for r in range(N)]
        # NCCL rounds sums of 16-bit floats on the way: once for each rank but the last, up to 2^-5 where they reach 16
        rounded = N > 2 and dtype == "bfloat16" and getattr(group.links_of(new("ones", 1)), "nccl", None)
        atol = 2.0**-5 * (N - 2) if rounded else 0.0
        wanted = folded(every, "sum", dtype)
        x, y = put(every[R].copy()), put(every[R].copy())
        work = dist.all_reduce(y, group=group, async_op=True)
        same(dist.all_reduce(x, group=group), wanted, f"all_reduce of {n} {dtype}", atol)
        same(work.wait(), wanted, f"all_reduce of {n} {dtype} in the background", atol)
        starts = [n * r * r // (N * N) for r in range(N + 1)]
        pieces = [put(every[R][a:b].copy()) for a, b in itertools.pairwise(starts)]
        mine = slice(starts[R], starts[R + 1])
        for way in (False, True):
            out = new("empty", mine.stop - mine.start, dtype=dtype)
            work = dist.reduce_scatter(out, pieces, group=group, async_op=way)
            same(work.wait() if way else out, wanted[mine], f"reduce_scatter of {n} {dtype}", atol)
            parts = [new("empty", b - a, dtype=dtype) for a, b in itertools.pairwise(starts)]
            work = dist.all_gather(parts, out, group, async_op=way)
            if way:
                work.wait()
            for a, b, part in zip(starts, starts[1:], parts, strict=False):
                same(part, wanted[a:b], f"all_gather of {n} {dtype}", atol)
    assert N == 1 or "windows" not in sys.argv or group.links_of(out).copies is not None
    z = put(data(R, 700_001, "float64", 31))
    same(dist.broadcast(z, N - 1, group), data(N - 1, 700_001, "float64", 31), "a long broadcast")


def messages(group):
    after, before = (R + 1) % N, (R - 1) % N
    if N == 1:
        return
    for n in (0, 5, 200_000):
        x, y = put(data(R, n, "float32", 7)), new("empty", n)
        works = [dist.irecv(y, before, group), dist.isend(x, after, group)]
        for work in works:
            work.wait()
        same(y, data(before, n, "float32", 7), "irecv")
        z = new("zeros", n)
        dist.batch([dist.P2P("recv", z, before), dist.P2P("send", x, after)], group)
        same(z, data(before, n, "float32", 7), "batch")
        if R == 0:
            dist.send(x, 1, group)
            dist.send(ic.from_numpy(data(R, n, "float32", 7)), 1, group)
        elif R == 1:
            same(dist.recv(new("empty", n), 0, group), data(0, n, "float32", 7), "recv")
            same(dist.recv(new("empty", n), 0, group), data(0, n, "float32", 7), "recv of what the host has sent")


def refused(group, x):
    """What travels through the host cannot be replayed by a device."""
    ic.start_graph_recording(device())
    try:
        dist.all_reduce(x, group=group)
    except NotImplementedError as error:
        assert "cannot be recorded in a graph" in str(error)
    else:
        raise AssertionError("a collective of another device was recorded")
    finally:
        ic.stop_graph_recording()


def by_peers(group, x):
    """All-reduces and gathers between GPUs are launches, several where there are many elements."""
    many = 300_001
    ic.start_graph_recording(device())
    y = x * 2.0
    dist.all_reduce(y, group=group)
    dist.all_reduce(y, "max", group)
    long = new("ones", many) * x[:1]
    dist.all_reduce(long, group=group)
    parts = [new("empty", many if r == 1 else 3) for r in range(N)]
    dist.all_gather(parts, long if R == 1 else long[:3].clone(), group)
    told = x[: 5 + N] + 1.0
    dist.broadcast(told, N - 1, group)
    graph = ic.stop_graph_recording()
    for k in range(5):
        x.fill_(float(R + k))
        graph.run()
        total = sum(r + k for r in range(N))
        same(y, np.full(2000, 2.0 * total, "float32"), "all_reduce of a graph of a GPU")
        same(long, np.full(many, total, "float32"), "a long one")
        for part in parts:
            same(part, np.full(part.numel(), total, "float32"), "all_gather of a graph of a GPU")
        same(told, np.full(5 + N, N + k, "float32"), "broadcast of a graph of a GPU")
        same(dist.all_reduce(new("ones", 7), group=group), np.full(7, N, "float32"), "all_reduce between replays")


def recorded(group):
    x = new("ones", 2000)
    if NAME != "cpu" and N > 1:
        return by_peers(group, x) if getattr(group.links_of(x), "peers", None) else refused(group, x)
    ic.start_graph_recording(device())
    y = x * 2.0
    dist.all_reduce(y, group=group)
    parts = new("empty", (N, 2000))
    dist.all_gather(parts, y, group)
    graph = ic.stop_graph_recording()
    for k in range(3):
        x.fill_(float(R + k))
        graph.run()
        total = np.full(2000, 2.0 * sum(r + k for r in range(N)), "float32")
        same(y, total, "all_reduce of a graph")
        same(parts, np.tile(total, N), "all_gather of a graph")


def gradients(group):
    """f(x) = sum of weights * collective(x): the gradient is what the transposed collective makes of the weights."""
    x0 = [data(r, 4 * N, "float32", 8) for r in range(N)]
    w0 = [data(r, 4 * N, "float32", 9) for r in range(N)]
    sum_w = np.add.reduce(w0)

    def grad(function, weight):
        x = put(x0[R].copy()).requires_grad_()
        y = function(x)
        (y * put(weight)).sum().backward()
        return x.grad, y.detach()

    g, y = grad(lambda x: flow.all_reduce(x, group=group), w0[R])
    same(y, np.add.reduce(x0), "all_reduce")
    same(g, sum_w, "gradient of all_reduce")
    same(grad(lambda x: flow.copy_to(x, group), w0[R])[0], sum_w, "gradient of copy_to")
    same(grad(lambda x: flow.reduce_from(x, group), w0[R])[0], w0[R], "gradient of reduce_from")
    part = slice(4 * R, 4 * R + 4)
    same(grad(lambda x: flow.reduce_scatter(x, group=group), w0[R][:4])[0], np.concatenate([w[:4] for w in w0]), "rs")
    big = [np.concatenate([w0[r]] * N) for r in range(N)]
    want = np.add.reduce([b.reshape(N, -1)[R] for b in big])
    same(grad(lambda x: flow.all_gather(x, group=group), big[R])[0], want, "gradient of all_gather")
    g, y = grad(lambda x: flow.all_to_all(x, group), w0[R])
    same(y, np.concatenate([x0[r][part] for r in range(N)]), "all_to_all")
    same(g, np.concatenate([w0[r][part] for r in range(N)]), "gradient of all_to_all")
    g, y = grad(lambda x: flow.broadcast(x, N - 1, group), w0[R])
    same(g, sum_w if R == N - 1 else 0 * sum_w, "gradient of broadcast")
    g, y = grad(lambda x: flow.reduce(x, 0, group), w0[R])
    same(g, w0[0], "gradient of reduce")
    x = put(x0[R].copy()).requires_grad_()
    flow.gather(x, 0, group).sum().backward()
    same(x.grad, np.ones(4 * N, "float32"), "gradient of gather")
    x = put(x0[R].copy()).view(N, 4).requires_grad_()
    y = flow.scatter(x, 0, group)
    same(y, x0[0].reshape(N, 4)[R], "scatter")
    (y * (R + 1.0)).sum().backward()
    wanted = np.repeat(np.arange(1, N + 1), 4).astype("float32")
    same(x.grad, wanted if R == 0 else 0 * wanted, "gradient of scatter")
    if N > 1 and R < 2:
        x = put(x0[0].copy()).requires_grad_()
        if R == 0:
            flow.send(x, 1, group).backward()
            same(x.grad, w0[1], "gradient of send")
        else:
            y = flow.recv(new("zeros", 4 * N).requires_grad_(), 0, group)
            same(y, x0[0], "recv")
            (y * put(w0[1])).sum().backward()


def objects_and_windows():
    assert dist.all_gather_object({"rank": R}) == [{"rank": r} for r in range(N)]
    assert dist.broadcast_object(R, N - 1) == N - 1
    assert dist.gather_object(R, 0) == (list(range(N)) if R == 0 else None)
    assert dist.scatter_object(list("abcdefgh"[:N]) if R == 0 else None) == "abcdefgh"[R]
    for n in (7, 100_003):
        every = [data(r, n, "float32", 20) for r in range(N)]
        w = world.empty((n,), device=device())
        for _ in range(2):
            w.copy_(put(every[R].copy()))
            dist.all_reduce(w)
            same(w, folded(every, "sum", "float32"), "all_reduce in the window")
        half = w.view(-1)[: n // 2]  # a part of it, in place too
        half.copy_(put(every[R][: n // 2].copy()))
        dist.all_reduce(half, "avg")
        same(half, folded([e[: n // 2] for e in every], "avg", "float32"), "part of the window")
    if N > 1:
        world.links.has_room = lambda nbytes: False  # nothing can be shared
        x = world.empty((5,), device=device()).fill_(1.0)
        same(dist.all_reduce(x), np.full(5, N, "float32"), "ordinary memory")
        del world.links.has_room
    x = new("full", (3,), R + 1.0)
    y = new("empty", 3)
    ccl.allreduce(y, x, ccl.MAX)
    same(y, np.full(3, N, "float32"), "ccl")
    flat = new("empty", sum(range(1, N + 1)))
    ccl.allgatherv(flat, new("full", (R + 1,), float(R)), list(range(1, N + 1)))
    same(flat, np.repeat(np.arange(N), np.arange(1, N + 1)).astype("float32"), "allgatherv")


def meshes():
    if N != 4:
        return
    mesh = dist.Mesh(dp=2, tp=2)
    assert mesh.rank_of() == R and mesh.coordinates["tp"] == R % 2 and mesh.coordinates["dp"] == R // 2
    assert mesh.tp.ranks == ((0, 1), (2, 3))[R // 2] and mesh.dp.ranks == ((0, 2), (1, 3))[R % 2]
    x = new("full", (3,), float(R))
    dist.all_reduce(x, group=mesh.dp)
    same(x, np.full(3, 2.0 * (R % 2) + 2, "float32"), "all_reduce along an axis")
    assert mesh.group("dp", "tp") is world and mesh.pp.size == 1
    assert dist.Mesh(dp=-1, pp=2).rank_of(dp=1, pp=1) == 3
    for sizes in ({"sp": 2}, {"tp": 2, "sp": 2}, {"tp": 2, "sp": -1}, {"sp": 2, "tp": -1}):  # the ranks of tp
        one = dist.Mesh(dp=2, **sizes)
        assert one.sizes == {"tp": 2, "cp": 1, "sp": 2, "dp": 2, "pp": 1} and one.sp is one.tp
        assert one.sp.ranks == mesh.tp.ranks and one.coordinates["sp"] == R % 2 and one.rank_of(sp=1, dp=0) == 1
        assert one.group("sp", "dp") is world and one.group("tp", "sp") is one.tp
    assert dist.Mesh(dp=2, sp=-1).sizes["sp"] == 2 and mesh.sp.size == 1 and mesh.group("dp", "sp") is mesh.dp
    refusals.refused(ValueError, "the ranks of `tp`, so it must be 2 (or 1), got 4", dist.Mesh, tp=2, sp=4)
    refusals.refused(ValueError, "`sp` must be a number of ranks", dist.Mesh, sp=0)
    refusals.refused(ValueError, "`sp` and `tp` are one axis", one.rank_of, sp=1, tp=0)
    refusals.refused(ValueError, "`sp` must be between 0 and 0", mesh.rank_of, sp=1)
    odd = dist.new_group([1, 3])
    assert odd.ranks == (1, 3) if R % 2 else odd is None


def mixed(group):
    """Calls whose tensors lie on two devices."""
    if NAME == "cpu":
        return ()
    here, there = ic.ones(3 * N), new("ones", 3)
    return (
        lambda: dist.all_gather(here, there, group),
        lambda: dist.all_gather([here] * N, there, group),
        lambda: dist.reduce_scatter(there, here, group=group),
        lambda: dist.all_to_all(new("ones", 3 * N), here, group),
        lambda: dist.batch([dist.P2P("send", here, 1 - R), dist.P2P("send", there, 1 - R)], group) if N == 2 else _no(),
    )


def _no():
    raise ValueError("`batch` is for two ranks")


def late_and_strange(group):
    """One rank that comes late does not matter; wrong arguments are refused before anybody waits."""
    if R == 0:
        time.sleep(0.2)
    same(dist.all_reduce(new("ones", 5), group=group), np.full(5, N, "float32"), "a late rank")
    for call in (
        lambda: dist.all_reduce(new("ones", 3), "xor", group),
        lambda: dist.all_reduce(new("ones", 3, dtype="int32"), "avg", group),
        lambda: dist.broadcast(new("ones", 3), N, group),
        lambda: dist.all_gather(new("ones", 3 * N + 1), new("ones", 3), group),
        lambda: dist.reduce_scatter(new("ones", 3), new("ones", 4), group=group),
        lambda: dist.all_reduce(new("ones", 3).requires_grad_(), group=group),
        lambda: dist.all_reduce(new("ones", 1).expand(3), group=group),
        *mixed(group),
        lambda: dist.Mesh(dp=N + 1),
    ):
        try:
            call()
        except ValueError as error:
            assert "`" in str(error) or "mesh" in str(error), error
        else:
            raise AssertionError("a wrong argument passed")


for group in groups:
    for case in (reductions, movements, chunks, messages, recorded, gradients, late_and_strange):
        case(group)
objects_and_windows()
meshes()
assert N > 1 or "mpi4py" not in sys.modules
print(f"rank {R} of {N}: done")
