"""`from_pretrained`: a Hugging Face folder or a GGUF file to a model that is ready to run; `from_config`: a new one."""

from pathlib import Path

from .. import io
from ..device import CPU, usable
from ..dtype import dtype as as_dtype
from ..io.json import read_json
from ..io.kinds import is_gguf
from ..nn import init
from ..startup import collecting_later, with_room
from . import in_place, on_load, repack, stages
from .checkpoint import Checkpoint, Copy, CopyTransposed, Later
from .registry import architecture_for, architecture_of

EMBEDDED = Path(__file__).parent / "embedded"  # the small model that comes with the package: see its README.md


def load_config(path):
    """The config of a folder's config.json, or of a GGUF file's metadata."""
    if is_gguf(path):
        from . import gguf

        with io.GGUFFile(path) as file:
            return gguf.config_of(file)
    source = Path(path) / "config.json"
    table = read_json(source, "model config")
    return architecture_of(source, table).parse(source, table)


def from_config(config, *, dtype=None, device=None):
    """A new model in training mode, initialised as its architecture says, by the default random generator.

    `config` is a dict as in config.json ("architectures" or "model_type" names the architecture), or the path of such
    a file or of a folder with one. `dtype` is float32 unless given. Raises ValueError for what the architecture cannot
    be, FileNotFoundError for a missing file. The same numbers on every `device` (None: the current one).
    """
    place = usable(device)
    source = "`config`"
    if not isinstance(config, dict):
        source = Path(config) / "config.json" if Path(config).is_dir() else Path(config)
        config = read_json(source, "model config")
    found = architecture_of(source, config)
    wanted = as_dtype("float32" if dtype is None else dtype)
    with init.skipped(), CPU:
        model = found.model(found.parse(source, config), dtype=wanted)
    model.source_config = dict(config)
    return model.init_weights().train().to(place)


def from_pretrained(path=None, *, dtype=None, device=None, quantize=None, progress=None, mesh=None, mmap=False):
    """Load a Hugging Face folder (config.json, model.safetensors or shards with an index, generation_config.json),
    or a GGUF file (its name ends in .gguf, or it begins with that word); without a path, the small model that comes
    with the package and writes Python.

    The model goes to `device` (None: the current one), tensor by tensor from the file.

    `dtype` is what float weights are converted to and computed in. The default is the one that config.json names; of a
    GGUF file that of its weights, or where they are quantised bfloat16 (float32 on a CPU without its dot product).
    `progress(done, total)` is called with the bytes of weights read. Peak memory is the model and a few tens of
    megabytes. Checkpoints quantised by AWQ, GPTQ, compressed-tensors, fp8 and mxfp4 stay quantised; `quantize` ("int8"
    or "int4", see `quantize_weight`) quantises each linear layer that is stored as floats, the head included, while it
    is read. With `mmap`, float weights that the file has as the model wants them stay on the mapped file (see
    `in_place`): a 16-bit model starts in about half the time, and nobody may write to the file meanwhile. With a `mesh`
    (`infinicore.distributed.Mesh`), each rank reads its part alone, to a `device` of its own ("cuda": a GPU each),
    along `tp` of each layer, along `pp` of the layers. Its first rank has a model that runs as any other for inference,
    whose steps the others follow by `model.ranks.follow()`; what cannot be done raises the same on all ranks.
    Raises FileNotFoundError for a missing folder or file, ValueError, in one sentence with the file's name,
    for anything in it that is damaged, of another shape, missing or left over, and NotImplementedError for what is
    known but not supported.
    """
    place = usable(device)
    path = EMBEDDED if path is None else Path(path)
    wanted = None if dtype is None else as_dtype(dtype)
    if wanted is not None and not wanted.is_floating_point:
        raise TypeError(f"`dtype` must be a floating-point dtype, got {wanted}")
    on_load.check_format(quantize)
    if type(mmap) is not bool:
        raise TypeError(f"`mmap` must be True or False, got {mmap!r}")
    if mesh is not None and mesh.world.size > 1:
        if mesh.tp.size * mesh.pp.size != mesh.world.size:
            raise ValueError(f"`mesh` must divide a model along `tp` and `pp` alone, got {mesh!r}")
        if mesh.sp.size > 1:
            raise ValueError(f"`mesh` has sp {mesh.sp.size}, which divides sequences in training: give `tp` alone")
        from ..distributed.objects import agree
        from ..lm.ranks import Ranks

        model = agree(mesh.world, lambda: _load_path(path, wanted, quantize, place, progress, mesh, mmap=False))
        model.ranks = Ranks(model, mesh)
        return model
    with collecting_later():
        return with_room(_load_path, path, wanted, quantize, place, progress, None, mmap)


def _load_path(path, wanted, quantize, place, progress, mesh, mmap):
    if is_gguf(path):
        from . import gguf

        if quantize is not None:
            raise NotImplementedError(
                f"`quantize` is for Hugging Face folders, and {path} is a GGUF file: leave it out"
            )
        with CPU:
            model, generation_config = gguf.load(path, wanted, progress, mesh, mmap, sums=place is not CPU), {}
    else:
        model, generation_config = _load_folder(path, wanted, quantize, place, progress, mesh, mmap)
    model.path, model.generation_config = path, generation_config
    return model.eval().to(place)


def _load_folder(path, dtype, quantize, place, progress, mesh, mmap):
    """(model, generation_config) of a Hugging Face folder; the model is on `place` if it is not quantised."""
    if not path.is_dir():
        raise FileNotFoundError(f"there is no folder {path}")
    config, source_config = load_config(path), read_json(path / "config.json", "model config")
    generation = path / "generation_config.json"
    generation_config = read_json(generation, "generation config") if generation.is_file() else {}
    checkpoint = Checkpoint(path)
    try:
        dtype = dtype or as_dtype(config.dtype)
        quantize = quantize or config.quantize
        with CPU if quantize or config.quantization else place:  # panels are packed on the CPU
            model = _load(checkpoint, config, dtype, quantize, progress, mesh, mmap, sums=place is not CPU)
        model.source_config = source_config
        return model, generation_config
    finally:
        if not init.deferring():
            checkpoint.close()


def naming(checkpoint, config):
    """(whether the head is the embedding, the model's spelling of a checkpoint's name, names to pass over)."""
    names = architecture_for(config).names
    held = {names.canonical(name): name for name in checkpoint.where}
    tied = config.tie_word_embeddings and _is_tied(checkpoint, held, names)
    canonical, ignored = names.canonical, {names.HEAD} if tied else set()
    if tied and names.EMBEDDING not in held:  # saved under the other name of the same tensor

        def canonical(name):
            return names.EMBEDDING if name == names.HEAD else names.canonical(name)

    return tied, canonical, ignored


def _load(checkpoint, config, dtype, quantize, progress, mesh=None, mmap=False, sums=False):
    """`sums`: ranks of a mesh add up 16-bit floats, which rounds otherwise than one process."""
    tied, canonical, ignored = naming(checkpoint, config)
    names = architecture_for(config).names
    transposed = getattr(names, "TRANSPOSED", ())
    if quantize and transposed:
        raise NotImplementedError(f"{checkpoint.folder}: `quantize` is not supported for {config.model_type} models")
    layout = repack.Layout(config.quantization, names.shapes(config, tied), checkpoint, canonical)
    found = checkpoint.resolve(layout.expected, canonical, names.IGNORED_SUFFIXES, ignored | layout.ignored)
    with init.skipped():
        model = architecture_for(config).model(config, dtype=dtype, tied=tied)
    if mesh is not None:
        from . import parts

        scheme = config.quantization
        exact = (dtype.itemsize < 4 and not sums) or bool(scheme or quantize)
        stages.keep_stage(model, mesh.pp)
        rows = {"rows": layout.layers, "head_rows": "lm_head" in layout.layers}
        parts.divide(model, mesh, exact=exact, **{name: scheme.rows if any_ else 1 for name, any_ in rows.items()})
        found = {name: stored for name, stored in found.items() if stages.is_here(model, name)}
        checkpoint = parts.part_of_checkpoint(checkpoint, found, layout, model, transposed)
        layout.take_part(model)
    elif mmap and not quantize:
        lying = in_place.use(model, _places(checkpoint, found, transposed))
        found = {name: stored for name, stored in found.items() if name not in lying}
    jobs = _jobs(layout, found, model, quantize, tied, names)
    if init.deferring():
        _put_off(checkpoint, jobs, model, found)
        return model
    paths = [checkpoint.folder / "config.json", *(file.path for file in checkpoint.files)]
    key = repack.cache_key(paths, config.quantization and config.quantization.method, quantize, mesh=mesh)
    restored = repack.restore(key, model)
    checkpoint.load([job for job in jobs if getattr(job, "path", None) not in restored], progress)
    if not restored:
        repack.remember(key, model)
    return model


def _put_off(checkpoint, jobs, model, found):
    """Have the parameters read when they have memory."""
    named = {found[name]: p for name, p in model.named_parameters(remove_duplicate=False) if name in found}
    for job in jobs:
        if not isinstance(job, (Copy, CopyTransposed)):
            raise NotImplementedError(
                f"{checkpoint.folder}: `deferred_init` is for models that are trained, not for quantised weights: call "
                "`from_pretrained` itself"
            )
        init.put_off(named[job.names[0]], Later(checkpoint, job))


def _places(checkpoint, found, transposed):
    """Where the tensors of a checkpoint lie that are stored as the model has them."""
    files = {name: checkpoint.where[stored] for name, stored in found.items() if not name.endswith(transposed)}
    entries = {name: file.entries[found[name]] for name, file in files.items()}
    return {
        name: in_place.Place(str(files[name].path), entry.start, entry.stop, entry.dtype)
        for name, entry in entries.items()
    }


def _jobs(layout, found, model, quantize, tied, names):
    """What is to be done with each tensor of a checkpoint."""
    jobs, state = list(layout.jobs(found, model)), model.state_dict()
    for name, stored in found.items():
        if quantize and repack.is_linear(name, state[name].shape):
            path = name.removesuffix(".weight")
            jobs.append(repack.Quantize(stored, quantize, path, model.get_submodule(path)))
        elif name.endswith(getattr(names, "TRANSPOSED", ())):
            jobs.append(CopyTransposed(stored, state[name]))
        else:
            jobs.append(Copy(stored, state[name]))
    if quantize and tied and stages.is_here(model, names.HEAD):
        jobs.append(repack.Quantize(found[names.EMBEDDING], quantize, "lm_head", model.lm_head))
    return jobs


def _is_tied(checkpoint, held, names):
    """Whether the head is the embedding: its own tensor may be left out, or be an equal copy."""
    if names.HEAD not in held or names.EMBEDDING not in held:
        return True
    head, embedding = (checkpoint.bytes_of(held[name]) for name in (names.HEAD, names.EMBEDDING))
    # A head of its own beside `tie_word_embeddings`: what the checkpoint holds counts, as in transformers.
    return head.size == embedding.size and bool((head == embedding).all())
