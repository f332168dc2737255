"""`infinicore quantize`: a float checkpoint to a quantised one on disk."""

import time

from . import progress

EPILOG = """int4 is written in the layout of GPTQ, int8 in that of compressed-tensors, which other engines read too. The
head and the embedding stay floats in the file; `infinicore generate` quantises the head when it loads the folder."""


def add_arguments(parser):
    """Add the arguments of `infinicore quantize`."""
    parser.epilog = EPILOG
    parser.add_argument("source", metavar="DIR", help="folder with config.json and *.safetensors")
    parser.add_argument("target", metavar="OUT", help="the folder to write; it must not exist")
    parser.add_argument("--format", choices=("int8", "int4"), required=True, help="of the weights of linear layers")
    parser.add_argument(
        "--group-size", type=int, choices=(32, 64, 128), help="neighbours with one scale, for int4 (default: 32)"
    )
    parser.add_argument("--threads", type=int, metavar="N", help="default: every CPU that this process may use")


def run(arguments):
    """Quantise; prints the sizes of the weights before and after."""
    import infinicore

    from ..models.export import quantize_folder

    if arguments.format == "int8" and arguments.group_size is not None:
        raise ValueError("`--group-size` is for int4: int8 has one scale per row, so leave it out")
    if arguments.threads is not None:
        if arguments.threads < 1:
            raise ValueError(f"`--threads` must be at least 1, got {arguments.threads}")
        infinicore.set_num_threads(arguments.threads)
    progress.show_compilation()
    began, size = time.perf_counter(), arguments.group_size or 32
    with progress.Line("quantising") as line:
        before, after = quantize_folder(
            arguments.source, arguments.target, arguments.format, group_size=size, progress=line.update
        )
    kind = f"int4 in groups of {size}" if arguments.format == "int4" else "int8"
    seconds = time.perf_counter() - began
    print(f"{arguments.target}: {before / 1e6:.1f} MB to {after / 1e6:.1f} MB as {kind}, {seconds:.1f} s")
