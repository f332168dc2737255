"""Ranks of an MPI job: groups and meshes of them, collectives, data-, tensor-, context- and pipeline-parallel training.

A process that was started alone is a job of one rank, and needs no MPI.
"""

import importlib

if __name__ != "infinicore.distributed":
    raise ImportError("this package is `infinicore.distributed`; import it by that name")

_NAMES = {
    "collectives": (
        "P2P all_gather all_reduce all_to_all barrier batch broadcast gather irecv isend recv reduce reduce_scatter "
        "scatter send"
    ),
    "fsdp": "FSDPModule fully_shard register_fsdp_forward_method summon_full_params",
    "group": "Group get_rank get_world_size init is_initialized new_group",
    "mesh": "Mesh",
    "objects": "all_gather_object broadcast_object gather_object scatter_object",
    "context": "context_parallel context_parallel_unshard",
    "ddp": "DistributedDataParallel Join",
    "deferred": "deferred_init materialize_module",
    "divide": "clip_grad_norm_ parallelize whole_state_dict",
    "tensor_parallel": "ColumnParallelLinear RowParallelLinear VocabParallelEmbedding vocab_parallel_cross_entropy",
    "checkpoint": "load_checkpoint save_checkpoint",
    "parallel": "ParallelModel",
    "pipeline": "Pipeline",
    "process_group": (
        "P2POp ReduceOp all_gather_into_tensor all_to_all_single batch_isend_irecv broadcast_object_list "
        "destroy_process_group get_backend get_global_rank get_group_rank get_node_local_rank get_process_group_ranks "
        "init_process_group is_available is_gloo_available is_mpi_available is_nccl_available monitored_barrier "
        "reduce_scatter_tensor scatter_object_list"
    ),
    "ring": "ring_attention",
    "work": "Work",
    "zero": "ZeroDataParallel",
    "world": "PeerError launched",
}
_WHERE = {name: module for module, names in _NAMES.items() for name in names.split()}
_MODULES = ("ccl", "functional", "schedule")
__all__ = [*_WHERE, *_MODULES]


def __getattr__(name):
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    return value


def __dir__():
    return sorted({*globals(), *__all__})
