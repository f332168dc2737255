"""Memory, communication and time of a training step on a mesh, from a model's sizes and the figures of kernels.

Ranks are placed as `infinicore.distributed.Mesh` does, and collectives are counted as `infinicore.distributed` does
them: parts to and from every other rank. Formulas: activations, Korthikanti et al., arXiv 2205.05198; ZeRO, Rajbhandari
et al., arXiv 1910.02054; pipelines, Narayanan et al., arXiv 2104.04473.
"""

import functools
import math
from dataclasses import dataclass, field

from ..distributed.schedule import NAMES
from ..distributed.stages import cut

AXES = ("tp", "cp", "dp", "pp")  # from neighbours to the far ones, as in `distributed.mesh`
_ITEM = {"float32": 4, "bfloat16": 2}
_BUCKET = 25 << 20
_MESSAGE_US = 1.0  # of MPI, for each message sent or received
_UPDATE_BYTES = 28  # AdamW, a parameter in float32: parameter, gradient and two states are read, all but one written


@dataclass(kw_only=True, slots=True, frozen=True)
class Link:
    """What joins nodes: GB/s of a node, each way, and microseconds of a message."""

    rate: float
    latency: float


@dataclass(kw_only=True, slots=True, frozen=True)
class Job:
    """A training step. `mesh` has the ranks of each axis, `batch` sequences are of all ranks together, `cores` those
    of a node. `micro_batches` is how many parts a rank's batch is computed in: by a pipeline, or by accumulation.
    """

    mesh: dict
    nodes: int = 1
    link: Link | None = None
    batch: int = 1
    sequence: int = 1024
    micro_batches: int = 1
    zero: int = 0
    schedule: str = "1f1b"
    chunks: int = 1
    dtype: str = "float32"
    checkpointing: bool = False
    sequence_parallel: bool = False
    cores: int | None = None
    ranks: int = field(init=False)

    def __post_init__(self):
        mesh = dict.fromkeys(AXES, 1) | self.mesh
        unknown = ", ".join(sorted(set(mesh) - set(AXES)))
        if unknown:
            raise ValueError(f"`mesh` must have axes of {', '.join(AXES)}, got {unknown}")
        numbers = {f"mesh {axis}": n for axis, n in mesh.items()}
        numbers |= {name: getattr(self, name) for name in ("nodes", "batch", "sequence", "micro_batches", "chunks")}
        numbers |= {} if self.cores is None else {"cores": self.cores}
        for name, value in numbers.items():
            if type(value) is not int or value < 1:
                raise ValueError(f"`{name}` must be an integer of at least 1, got {value!r}")
        object.__setattr__(self, "mesh", mesh)
        object.__setattr__(self, "ranks", math.prod(mesh.values()))
        self._check()

    def _check(self):
        mesh = self.mesh
        if self.ranks % self.nodes:
            raise ValueError(f"`nodes` must divide the {self.ranks} ranks of `mesh`, got {self.nodes}")
        if self.nodes > 1 and self.link is None:
            raise ValueError(f"`link` is needed for {self.nodes} nodes: GB/s and microseconds, as in `--link 12.5,10`")
        if self.zero not in (0, 1, 2, 3):
            raise ValueError(f"`zero` must be 0, 1, 2 or 3, got {self.zero!r}")
        if self.dtype not in _ITEM:
            raise ValueError(f"`dtype` must be one of {', '.join(_ITEM)}, got {self.dtype!r}")
        if self.schedule not in NAMES or (self.schedule == "1f1b" and self.chunks > 1):
            raise ValueError(
                f"`schedule` must be one of {', '.join(NAMES)} ('1f1b' has 1 of `chunks`), got {self.schedule!r} and "
                f"{self.chunks} chunks"
            )
        if self.batch % (mesh["dp"] * self.micro_batches):
            raise ValueError(
                f"`batch` must be a multiple of dp ({mesh['dp']}) x `micro_batches` ({self.micro_batches}), got "
                f"{self.batch}"
            )
        if self.sequence % mesh["cp"]:
            raise ValueError(f"`sequence` must be a multiple of cp ({mesh['cp']}), got {self.sequence}")

    @property
    def tokens(self):
        """Tokens of a micro-batch on one rank."""
        return self.batch // (self.mesh["dp"] * self.micro_batches) * (self.sequence // self.mesh["cp"])

    @property
    def item(self):
        """Bytes of a value."""
        return _ITEM[self.dtype]


class Wires:
    """Times of communication along each axis."""

    def __init__(self, job, figures):
        self.job, self.local = job, figures.local
        self.here = job.ranks // job.nodes  # ranks of a node
        self.stride, step = {}, 1
        for axis in AXES:
            self.stride[axis], step = step, step * job.mesh[axis]

    def together(self, axes):
        """(ranks of a group along these axes, how many of them are on one node)."""
        size = math.prod(self.job.mesh[axis] for axis in axes)
        first = self.stride[next(axis for axis in AXES if axis in axes)]
        return size, min(size, max(1, self.here // first))

    def all_reduce(self, nbytes, *axes, factor=2.0):
        """(bytes that a rank sends, seconds) of a sum over a group; `factor` 1: of a reduce-scatter or all-gather."""
        size, near = self.together(axes)
        if size == 1 or not nbytes:
            return 0.0, 0.0
        us, rate = self.local
        sent = factor * (size - 1) / size * nbytes
        if near == size:
            return sent, us * 1e-6 + sent / rate / 1e9
        far = factor * (size - near) / size * nbytes * self.here  # all ranks of the node send at once
        wait = factor * (self.job.link.latency + 2 * (size - 1) * _MESSAGE_US) * 1e-6
        return sent, wait + far / self.job.link.rate / 1e9 + factor * (near - 1) / size * nbytes / rate / 1e9

    def message(self, nbytes, axis):
        """Seconds of a message to the next rank along an axis."""
        size, near = self.together([axis])
        us, rate = self.local
        if near == size:
            return us * 1e-6 + nbytes / rate / 1e9
        senders = min(self.here, self.stride[axis])
        return (self.job.link.latency + _MESSAGE_US) * 1e-6 + nbytes * senders / self.job.link.rate / 1e9


@dataclass(kw_only=True, slots=True, frozen=True)
class Plan:
    """What `estimate` found. `memory` has bytes of the fullest rank by what they hold, `communication` for each axis
    the bytes that a rank sends in a step, their seconds, and those of them that computing does not hide; `compute` are
    a step's seconds of computing on the busiest rank, `bubble` the share of time that ranks wait for the pipeline.
    """

    job: Job
    parameters: int
    memory: dict
    communication: dict
    compute: float
    bubble: float
    seconds: float

    @property
    def total(self):
        """Bytes of memory of the fullest rank."""
        return sum(self.memory.values())

    @property
    def tokens_per_s(self):
        """Tokens of all ranks in a second."""
        return self.job.batch * self.job.sequence / self.seconds

    def table(self):
        """All of it as plain values."""
        job = self.job
        names = "nodes batch sequence micro_batches zero schedule chunks dtype checkpointing sequence_parallel".split()
        return {
            "mesh": job.mesh, "ranks": job.ranks, **{name: getattr(job, name) for name in names},
            "parameters": self.parameters, "memory": {**self.memory, "total": self.total},
            "communication": self.communication, "compute_s": self.compute, "bubble": self.bubble,
            "step_s": self.seconds, "tokens_per_s": self.tokens_per_s,
        }  # fmt: skip


def check(network, job):
    """ValueError for a mesh that the model cannot be divided on."""
    mesh = job.mesh
    if mesh["tp"] > network.kv_heads:
        raise ValueError(f"`mesh` tp must be at most the {network.kv_heads} heads of keys, got {mesh['tp']}")
    if mesh["pp"] * job.chunks > network.layers + 2:
        raise ValueError(
            f"`mesh` pp x `chunks` must be at most the {network.layers + 2} pieces of the model, got {mesh['pp']} x "
            f"{job.chunks}"
        )
    if network.positions and job.sequence > network.positions:
        raise ValueError(f"`sequence` must be at most the {network.positions} positions of the model")


def estimate(network, job, figures):
    """The `Plan` of a step of `job` with a model of the sizes `network`; ValueError for what cannot be divided so."""
    check(network, job)
    return _Step(network, job, figures).plan()


@functools.lru_cache(maxsize=4096)
def _cut(costs, stages):
    return cut(list(costs), stages)


class _Step:
    """A step of a job: pieces of the model (embedding, layers, head) on stages, ranks and wires."""

    def __init__(self, network, job, figures):
        self.network, self.job, self.figures = network, job, figures
        self.wires = Wires(job, figures)
        here = job.ranks // job.nodes
        self.cores = (job.cores or figures.cores) / here
        mesh = job.mesh
        self.tp, self.pp, self.dp, self.cp = (mesh[axis] for axis in ("tp", "pp", "dp", "cp"))
        self.pieces = network.layers + 2
        times = [self.piece(i) for i in range(self.pieces)]
        # a rounded cost is enough to cut by, and one cut serves many jobs
        costs = tuple(round(1e3 * (f + b) / (sum(times[1]) or 1)) for f, b in times)
        self.bounds = _cut(costs, self.pp * job.chunks)
        self.stages = [range(a, b) for a, b in zip(self.bounds, self.bounds[1:])]
        self.times = [[sum(times[i][k] for i in stage) for k in (0, 1)] for stage in self.stages]

    # ---- time ----

    def flops_time(self, flops, rate):
        """Seconds of FLOPs at a core's GFLOP/s."""
        return flops / (rate * 1e9 * self.cores)

    @functools.cached_property
    def layer(self):
        """Seconds of a layer (forward, backward) for a micro-batch, with the sums over `tp`."""
        network, job, figures = self.network, self.job, self.figures
        linear, attention = network.layer_flops(job.tokens, job.sequence, self.tp, self.cp)
        rates = figures.layer_rate(job.dtype, network.gated, job.tokens, network.matrices(self.tp))
        attend = self.flops_time(attention, figures.attention[job.dtype])
        forward, backward = (self.flops_time(k * linear, rate) + k * attend for k, rate in zip((1, 2), rates))
        sums = 2 * self.wires.all_reduce(job.tokens * network.hidden * job.item, "tp")[1]
        ring = max(0.0, self.ring[1] - attend)  # keys and values travel while others are attended to
        forward += sums + ring
        return forward, backward + sums + 2 * ring + (forward if job.checkpointing else 0.0)

    @functools.cached_property
    def ring(self):
        """(bytes, seconds) of a layer's keys and values around `cp`."""
        if self.cp == 1:
            return 0.0, 0.0
        nbytes = 2 * self.network.key_value / self.tp * self.job.tokens * self.job.item
        return (self.cp - 1) * nbytes, (self.cp - 1) * self.wires.message(nbytes, "cp")

    def piece(self, number):
        """Seconds of a piece (forward, backward) for a micro-batch."""
        network, job = self.network, self.job
        if 0 < number < self.pieces - 1:
            return self.layer
        once = self.wires.all_reduce(job.tokens * network.hidden * job.item, "tp")[1]
        table = network.table / self.tp * job.item
        if number == 0:  # backward fills a gradient of the whole table, and adds it up
            return once, 4 * table / (self.figures.copy * 1e9)
        rate = self.figures.head_rate(job.dtype, job.tokens, network.hidden)
        return self.flops_time(network.head_flops(job.tokens, self.tp), rate) + once, 0.0

    def pipeline(self):
        """(seconds of all passes, share of it that ranks wait)."""
        job, n = self.job, self.job.micro_batches
        each = [sum(times) for times in self.times]
        ranks = [sum(each[rank :: self.pp]) for rank in range(self.pp)]
        link = 0.0
        if self.pp > 1:
            link = self.wires.message(job.tokens * self.network.hidden * job.item, "pp")
        # the slowest rank computes all micro-batches, and waits for the others once, there and back
        slowest = max(ranks)
        total = n * slowest + (sum(ranks) - slowest) / job.chunks + 2 * link * (self.pp * job.chunks - 1)
        return total, 1.0 - n * sum(ranks) / (self.pp * total)

    def plan(self):
        """The `Plan`."""
        network, job = self.network, self.job
        passes, bubble = self.pipeline()
        values = max(self.values(rank) for rank in range(self.pp))
        gradients = self.gradients(values)
        states = values / (self.dp * self.cp if job.zero else 1)
        update = states * _UPDATE_BYTES * job.item / 4 / (self.figures.update * 1e9 * self.cores)
        if self.dp * self.cp > 1:  # each gradient moves to the memory that others reach
            update += 2 * values * job.item / (self.figures.copy * 1e9 * self.cores)
        communication = {"tp": self._tp(), "cp": self._cp(), "dp": gradients, "pp": self._pp()}
        seconds = passes + update + gradients["exposed_s"]
        compute = job.micro_batches * max(sum(map(sum, self.times[rank :: self.pp])) for rank in range(self.pp))
        axes = {axis: communication[axis] for axis in AXES if job.mesh[axis] > 1 or (axis == "dp" and self.cp > 1)}
        hidden = sum(axes[axis]["exposed_s"] for axis in ("tp", "cp") if axis in axes)
        return Plan(
            job=job, parameters=int(network.parameters), memory=self.memory(), communication=axes,
            compute=compute - hidden + update, bubble=bubble, seconds=seconds,
        )  # fmt: skip

    # ---- communication ----

    def layers_of(self, rank):
        """(layers of a rank, whether it has the embedding, whether it has the head)."""
        mine = [i for stage in self.stages[rank :: self.pp] for i in stage]
        first, last = 0 in mine, self.pieces - 1 in mine
        return len(mine) - first - last, first, last

    def _tp(self):
        job, count = self.job, self.job.micro_batches
        layers, first, last = max(self.layers_of(rank) for rank in range(self.pp))
        sent, seconds = self.wires.all_reduce(job.tokens * self.network.hidden * job.item, "tp")
        times = count * (layers * (6 if job.checkpointing else 4) + first + last)
        return {"bytes": times * sent, "seconds": times * seconds, "exposed_s": times * seconds}

    def _cp(self):
        layers = max(self.layers_of(rank)[0] for rank in range(self.pp))
        times = self.job.micro_batches * layers * 3  # keys and values forward, and with their gradients backward
        _, attention = self.network.layer_flops(self.job.tokens, self.job.sequence, self.tp, self.cp)
        attend = self.flops_time(attention, self.figures.attention[self.job.dtype])
        nbytes, seconds = self.ring
        return {"bytes": times * nbytes, "seconds": times * seconds, "exposed_s": times * max(0.0, seconds - attend)}

    def _pp(self):
        nbytes = self.job.tokens * self.network.hidden * self.job.item
        times = 2 * self.job.micro_batches * self.job.chunks
        link = self.wires.message(nbytes, "pp") if self.pp > 1 else 0.0
        exposed = 2 * link * (self.pp * self.job.chunks - 1)
        return {"bytes": times * nbytes, "seconds": times * link, "exposed_s": exposed}

    def gradients(self, values):
        """Averages over `dp` (and `cp`) of a rank's gradients; ZeRO 3 collects parameters twice besides."""
        job = self.job
        factor = 3.0 if job.zero == 3 else 2.0
        sent, seconds = self.wires.all_reduce(values * job.item, "cp", "dp", factor=factor)
        size, near = self.wires.together(("cp", "dp"))
        exposed = seconds  # within a node communication needs the CPU that would compute
        if size > near and self.pp == 1:  # a network works beside backward, but for the last bucket
            backward = sum(times[1] for times in self.times)
            last = seconds * min(1.0, _BUCKET / (values * job.item))
            exposed = max(last, seconds - backward)
        return {"bytes": sent, "seconds": seconds, "exposed_s": exposed}

    # ---- memory ----

    def values(self, rank):
        """Parameters of a rank of the pipeline."""
        network, (layers, first, last) = self.network, self.layers_of(rank)
        found = layers * network.layer_parameters(self.tp)
        if first:
            found += network.table / self.tp + network.positions * network.hidden
        if last:
            found += network.norm + (0 if first and network.tied else network.table / self.tp)
        return found

    def kept(self, rank):
        """Micro-batches whose activations a rank keeps at most, in those of all its layers."""
        n, chunks = self.job.micro_batches, self.job.chunks
        if self.pp == 1:
            return 1
        if self.job.schedule == "gpipe":
            return n
        if chunks == 1:
            return min(n, self.pp - rank)
        return min(n * chunks, self.pp * (chunks - 1) + 2 * (self.pp - rank - 1) + 1) / chunks

    def activations(self, rank):
        """Bytes of what backward needs."""
        network, job = self.network, self.job
        layers, _, last = self.layers_of(rank)
        each = network.saved(self.tp, job.sequence_parallel)
        if job.checkpointing:
            kept = self.kept(rank) * layers * network.hidden + each
        else:
            kept = self.kept(rank) * layers * each
        return (kept + (2 * network.hidden if last else 0)) * job.tokens * job.item

    def memory(self):
        """Bytes of the fullest rank, by what they hold."""
        return max((self._memory(rank) for rank in range(self.pp)), key=lambda found: sum(found.values()))

    def _memory(self, rank):
        job, network, values = self.job, self.network, self.values(rank)
        group = self.dp * self.cp
        parameters = values * job.item
        # ZeRO has up to four of them underway; a pipeline copies gradients into one, as it averages after the step
        count = 0 if group == 1 else 4 if job.zero >= 2 else int(self.pp > 1)
        buckets = min(count * _BUCKET, parameters)
        _, first, last = self.layers_of(rank)
        table = network.table / self.tp * job.item
        return {
            "weights": parameters / (group if job.zero == 3 else 1),
            "gradients": parameters / (group if job.zero >= 2 else 1),
            "optimizer": 2 * parameters / (group if job.zero else 1),
            "activations": self.activations(rank),
            # a table's gradient before it is added up, and what a layer computes with
            "buffers": buckets + table * (first or last) + network.passing(self.tp) * job.tokens * job.item,
            "process": self.figures.process,
        }  # fmt: skip
