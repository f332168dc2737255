"""What scripts for `torch.distributed` call, over the ranks and collectives of this package.

Ranks are those of the MPI job, which `init_process_group` takes as they are. `infinicore run` sets the variables of
`torchrun` as well (`RANK`, `LOCAL_RANK`, `WORLD_SIZE`, `LOCAL_WORLD_SIZE`).
"""

import importlib.util
from datetime import timedelta

from . import collectives
from .group import init, world_group
from .objects import broadcast_object, scatter_object

BACKENDS = ("mpi", "gloo", "nccl", "ucc")


class ReduceOp:
    """Names of reductions: `op` of the collectives."""

    SUM, PRODUCT, MIN, MAX, AVG = "sum", "prod", "min", "max", "avg"


def is_available():
    """Whether there are collectives at all: always."""
    return True


def is_mpi_available():
    """Whether mpi4py is installed."""
    return importlib.util.find_spec("mpi4py") is not None


def is_nccl_available():
    """Whether NCCL is installed, which carries large tensors between GPUs."""
    return importlib.util.find_spec("nccl") is not None


def is_gloo_available():
    """Whether Gloo carries tensors: never, MPI and shared memory do."""
    return False


def init_process_group(
    backend=None,
    init_method=None,
    timeout=None,
    world_size=-1,
    rank=-1,
    store=None,
    group_name="",
    pg_options=None,
    device_id=None,
):
    """Start communication among the processes that MPI has started: `init`.

    `backend` (of `BACKENDS`, or several as "cpu:gloo,cuda:nccl") and `init_method` choose nothing, since tensors say
    where they lie and MPI knows its ranks. `timeout` is a timedelta or seconds. Raises ValueError where `world_size` or
    `rank` are not those of the job.
    """
    asked = [part.rpartition(":")[2] for part in (backend or "mpi").lower().split(",")]
    if not set(asked) <= set(BACKENDS):
        raise ValueError(f"`backend` must be one of {', '.join(map(repr, BACKENDS))}, got {backend!r}")
    if store is not None:
        raise NotImplementedError("`store` cannot be given: ranks find each other through MPI, so leave it out")
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    group = init(timeout=seconds)
    for name, wanted, found in (("world_size", world_size, group.size), ("rank", rank, group.rank)):
        if wanted not in (-1, None, found):
            raise ValueError(
                f"`{name}` is {wanted}, and this is {found} in a job of {group.size} started by MPI: start the script "
                "with `infinicore run -n RANKS script.py`, which starts all ranks itself"
            )


def destroy_process_group(group=None):
    """Nothing: communication ends with the process, and what `init` made may be used until then."""
    world_group(group)


def get_backend(group=None):
    """ "mpi": what starts the ranks of a group."""
    world_group(group)
    return "mpi"


def get_process_group_ranks(group=None):
    """The numbers of a group's ranks in the world."""
    return list(world_group(group).ranks)


def get_global_rank(group, group_rank):
    """The number in the world of rank `group_rank` of a group."""
    return world_group(group).ranks[collectives._peer(group_rank, "group_rank", world_group(group))]


def get_group_rank(group, global_rank):
    """The place in a group of rank `global_rank` of the world; ValueError where it is none of its ranks."""
    ranks = world_group(group).ranks
    if global_rank not in ranks:
        raise ValueError(f"`global_rank` must be one of the group's ranks {list(ranks)}, got {global_rank}")
    return ranks.index(global_rank)


def get_node_local_rank(fallback_rank=None):
    """The number of this process among those of its machine."""
    return world_group().place


def all_gather_into_tensor(output_tensor, input_tensor, group=None, async_op=False):
    """`all_gather` into one tensor, whose part r is that of rank r."""
    found = collectives.all_gather(output_tensor, input_tensor, group, async_op)
    return found if async_op else None


def reduce_scatter_tensor(output, input, op=ReduceOp.SUM, group=None, async_op=False):
    """`reduce_scatter` of one tensor, of which rank r gets part r."""
    found = collectives.reduce_scatter(output, input, op, group, async_op)
    return found if async_op else None


def all_to_all_single(output, input, output_split_sizes=None, input_split_sizes=None, group=None, async_op=False):
    """`all_to_all` of the rows of two tensors: as many for each rank, or as the sizes say."""
    sides = []
    for name, x, sizes in (("output", output, output_split_sizes), ("input", input, input_split_sizes)):
        ranks = world_group(group).size
        if sizes is None and x.shape_[:1] and x.shape_[0] % ranks == 0:
            sizes = [x.shape_[0] // ranks] * ranks
        if sizes is None or len(sizes) != ranks or sum(sizes) != x.shape_[0]:
            raise ValueError(
                f"`{name}_split_sizes` must be {ranks} numbers that add up to the rows of shape {x.shape_}, got {sizes}"
            )
        sides.append(list(x.split(list(sizes))))
    found = collectives.all_to_all(*sides, group, async_op)
    return found if async_op else None


class P2POp:
    """One message of `batch_isend_irecv`: `P2POp(isend, tensor, peer)` or `P2POp(irecv, tensor, peer)`."""

    def __init__(self, op, tensor, peer, group=None, tag=0):
        kinds = {"isend": "send", "irecv": "recv"}
        if getattr(op, "__name__", None) not in kinds:
            raise ValueError(f"`op` must be `isend` or `irecv`, got {op!r}")
        self.op, self.group, self.tag = op, group, tag
        self.message = collectives.P2P(kinds[op.__name__], tensor, peer)


def batch_isend_irecv(p2p_op_list):
    """Messages that travel together: the list of one `Work` for all of them."""
    groups = {id(world_group(one.group)): one.group for one in p2p_op_list}
    if len(groups) != 1:
        raise ValueError(f"`p2p_op_list` must hold messages of one group, got {len(groups)}")
    (group,) = groups.values()
    return [collectives.batch([one.message for one in p2p_op_list], group, async_op=True)]


def broadcast_object_list(object_list, src=0, group=None, device=None):
    """Fill a list with the Python objects that it holds on rank `src`."""
    object_list[:] = broadcast_object(list(object_list), src, group)


def scatter_object_list(scatter_object_output_list, scatter_object_input_list=None, src=0, group=None):
    """Put element r of rank `src`'s list first in the output list of rank r."""
    scatter_object_output_list[0] = scatter_object(scatter_object_input_list, src, group)


def monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
    """`barrier`, which names ranks that do not come within the time that `init` was given."""
    collectives.barrier(group)
