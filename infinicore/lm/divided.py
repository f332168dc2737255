"""Loading a model that the ranks of this job divide, from commands and `LLM`; without ranks it costs nothing."""

import sys
import traceback

from . import tokenizer


def load(path, *, tensor_parallel_size=1, pipeline_parallel_size=1, loader, **options):
    """A model divided among the ranks of this job, on the first; the others follow it, and end when it does.

    `loader(path, mesh=, **options)` is `from_pretrained`. What cannot be done is an error on the first rank alone.
    """
    sizes = {"tp": tensor_parallel_size, "pp": pipeline_parallel_size}
    for name, size in zip(("tensor_parallel_size", "pipeline_parallel_size"), sizes.values()):
        if type(size) is not int or size < 1:
            raise ValueError(f"`{name}` must be an integer of at least 1, got {size!r}")
    if sizes == {"tp": 1, "pp": 1}:
        if path is not None:
            tokenizer.read_ahead(path)
        return loader(path, **options)
    from ..distributed import world
    from ..distributed.mesh import Mesh

    wanted = sizes["tp"] * sizes["pp"]
    if world.launched() != wanted:
        if world.rank():
            _leave(0)
        raise ValueError(
            f"tensor parallel {sizes['tp']} x pipeline {sizes['pp']} needs {wanted} ranks, and this job has "
            f"{world.launched()}: start it with `infinicore run -n {wanted}` or `mpiexec -n {wanted}`"
        )
    try:
        model = loader(path, mesh=Mesh(**sizes), **options)
    except Exception:
        if world.rank():
            _leave(0)
        raise
    if world.rank():
        _follow(model.ranks)
        _leave(0)
    return model


def _follow(ranks):
    """Follow to the end; an error ends all ranks, which would wait for this one."""
    from ..distributed.world import PeerError

    try:
        ranks.follow()
    except BaseException as error:
        if isinstance(error, PeerError):
            print(f"infinicore: error: {error}", file=sys.stderr)  # noqa: T201
        else:
            traceback.print_exc()
        sys.stderr.flush()
        ranks.world.comm.Abort(1)


def _leave(status):
    """End a rank behind the first, which has said what there is to say."""
    sys.stdout.flush()
    raise SystemExit(status)
