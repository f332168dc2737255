"""`infinicore generate`: write on from a prompt with a Hugging Face checkpoint or a GGUF file."""

import itertools
import json
import os
import sys
import time

from .. import startup
from . import progress

EPILOG = """Without --prompt, the prompt is read from standard input. What is not given follows the checkpoint's
generation_config.json. Exit status: 0, 2 for input that cannot be used (one sentence on standard error),
130 after an interrupt."""


def add_model_arguments(parser):
    """What every command takes that runs a model."""
    parser.add_argument(
        "--model",
        metavar="PATH",
        help="a GGUF file, or a folder with config.json, tokenizer.json, *.safetensors; default: the small model that "
        "comes with the package, which writes Python",
    )
    parser.add_argument("--max-new-tokens", type=int, metavar="N", help="tokens to write at most")
    parser.add_argument("--temperature", type=float, metavar="T", help="0: always the most likely token")
    parser.add_argument("--top-k", type=int, metavar="K", help="choose among the K most likely tokens; 0: all")
    parser.add_argument(
        "--top-p", type=float, metavar="P", help="choose among the most likely tokens that hold P together"
    )
    parser.add_argument("--min-p", type=float, metavar="P", help="leave out tokens below P times the most likely one")
    parser.add_argument("--repetition-penalty", type=float, metavar="R", help="above 1: avoid what was there already")
    parser.add_argument("--seed", type=int, metavar="S", help="repeat the same choices")
    parser.add_argument(
        "--stop", action="append", metavar="TEXT", help="end before this text; may be given several times"
    )
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="default: the checkpoint's")
    parser.add_argument("--quantize", choices=("int8", "int4"), help="quantise the weights of linear layers on loading")
    parser.add_argument("--device", metavar="NAME", help="where the model runs: cpu (default), cuda, cuda:1")
    add_rank_arguments(parser)
    parser.add_argument("--threads", type=int, metavar="N", help="default: every CPU that this process may use")
    parser.add_argument("--decode-threads", type=int, metavar="N", help="for new tokens; default: as for the prompt")
    parser.add_argument(
        "--cache-weights", action="store_true", help="keep repacked weights on disk (INFINICORE_WEIGHT_CACHE=1)"
    )
    parser.add_argument("--cache", choices=("static", "paged"), default="static", help="how keys and values are kept")
    parser.add_argument("--kv-cache-dtype", choices=("int8",), help="store keys and values in a byte each")


def add_rank_arguments(parser):
    """How a model is divided among ranks."""
    words = (
        "on N ranks (processes), of which each has a part of every layer; started by `infinicore run -n N`, else here"
    )
    parser.add_argument("--tp", "--tensor-parallel-size", type=int, default=1, metavar="N", help=words)
    words = "on N ranks, of which each has some layers"
    parser.add_argument("--pp", "--pipeline-parallel-size", type=int, default=1, metavar="N", help=words)


def is_follower(arguments):
    """Whether this process is a rank behind the first of a divided model: it says nothing, and asks for nothing."""
    from ..distributed import world

    return (arguments.tp, arguments.pp) != (1, 1) and world.rank() > 0


def start_ranks(arguments, *more):
    """Start this command again on the ranks that `--tp` and `--pp` ask for, where it runs alone; `more` arguments.

    Does not return then: this process becomes `mpiexec`.
    """
    from ..distributed import world

    count = arguments.tp * arguments.pp
    if count > 1 and min(arguments.tp, arguments.pp) > 0 and world.launched() == 1:
        from ..distributed import launch

        launch.start(count, None, launch.COMMAND, [*arguments.argv, *more])


def add_arguments(parser):
    """Add the options of `infinicore generate`."""
    import argparse

    add_model_arguments(parser)
    parser.epilog = EPILOG
    parser.add_argument("--prompt", metavar="TEXT", help="default: standard input, without its last newline")
    switch = argparse.BooleanOptionalAction
    parser.add_argument("--stream", action=switch, default=True, help="print text as it comes, or all at the end")
    parser.add_argument(
        "--stats", action=switch, default=None, help="speed and memory at the end; default: without --json"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the text")


def options(arguments):
    """The options of `infinicore.lm.generate` that were given."""
    names = "max_new_tokens temperature top_k top_p min_p repetition_penalty seed stop".split()
    names += ["decode_threads", "kv_cache_dtype"]
    return {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}


def load(arguments):
    """The model, with progress on standard error; threads are set first. Followers stay in here until the end."""
    if is_follower(arguments):
        return _load(arguments)
    with startup.without_collection():
        return _load(arguments)


def _load(arguments):
    import infinicore

    from ..lm import divided

    if arguments.threads is not None:
        if arguments.threads < 1:
            raise ValueError(f"`--threads` must be at least 1, got {arguments.threads}")
        infinicore.set_num_threads(arguments.threads)
    if arguments.decode_threads is not None and arguments.decode_threads < 1:
        raise ValueError(f"`--decode-threads` must be at least 1, got {arguments.decode_threads}")
    if arguments.cache_weights:
        os.environ["INFINICORE_WEIGHT_CACHE"] = "1"
    chosen = {"dtype": arguments.dtype, "device": arguments.device, "quantize": arguments.quantize}
    chosen |= {"tensor_parallel_size": arguments.tp, "pipeline_parallel_size": arguments.pp, "mmap": True}
    if is_follower(arguments):
        return divided.load(arguments.model, **chosen, loader=infinicore.models.from_pretrained)
    progress.show_compilation()
    with progress.Line("loading weights") as line:
        loader = infinicore.models.from_pretrained
        return divided.load(arguments.model, **chosen, loader=loader, progress=line.update)


def peak_memory_bytes():
    """The most memory that this process has held (resident)."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("VmHWM:"):  # of this program alone; ru_maxrss remembers what started it
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def report(figures):
    """The line of speeds and memory."""
    return (
        f"prompt {figures['prompt_tokens']} tokens, {figures['prefill_tokens_per_s']:.1f} tokens/s; "
        f"new {figures['new_tokens']} tokens, {figures['decode_tokens_per_s']:.1f} tokens/s; "
        f"peak memory {peak_memory_bytes() / 2**20:.0f} MiB"
    )


def _begin(model, prompt, given):
    """A generation, and its tokens.

    Where kernels were compiled for its first token, those of the second one are too before anything is shown, so that
    no message comes between the two; and a short prompt begins again, so that speeds are those of the model.
    """
    generation = model.generate(prompt, **given)
    first = list(itertools.islice(generation, 1))
    if not progress.compiled():
        return generation, itertools.chain(first, generation)
    ids = generation.completion.prompt_ids
    once = {name: value for name, value in given.items() if name not in ("stop", "seed", "max_new_tokens")}
    model.generate(ids[:17], **once, max_new_tokens=2, ignore_eos=True).finish()
    if len(ids) > 512:
        return generation, itertools.chain(first, generation)
    generation.close()
    generation = model.generate(prompt, **given)
    return generation, generation


def run(arguments):
    """Generate; returns the exit status."""
    from ..distributed import world

    if is_follower(arguments):
        load(arguments)
    if arguments.prompt is None and (arguments.tp, arguments.pp) != (1, 1) and world.launched() > 1:
        raise ValueError("`--prompt` must be given within mpiexec, which does not tell where its input ends")
    prompt = _standard_input() if arguments.prompt is None else arguments.prompt
    if not prompt:
        raise ValueError("the prompt is empty: pass --prompt or text on standard input")
    start_ranks(arguments, *([f"--prompt={prompt}"] if arguments.prompt is None else []))
    model = load(arguments)
    given = options(arguments) | {"cache": arguments.cache}
    generation, tokens = _begin(model, prompt, given)
    progress.clear()
    status = _write(generation, tokens, stream=arguments.stream and not arguments.json, quiet=arguments.json)
    figures = generation.figures()
    if arguments.json and not status:
        print(json.dumps(_result(generation, figures)))
    if arguments.stats or (arguments.stats is None and not arguments.json):
        print(report(figures), file=sys.stderr)
    return status


def _standard_input():
    """The text on standard input, without the newline that ends its last line."""
    try:
        return sys.stdin.buffer.read().decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"the prompt on standard input is not UTF-8 text (byte {error.start})") from None


def _write(generation, tokens, stream, quiet):
    """Run to the end, printing the text of the tokens; the exit status."""
    out = sys.stdout
    if hasattr(out, "reconfigure"):
        out.reconfigure(errors="replace")  # a terminal that cannot show a character shows a question mark
    shown = time.perf_counter()
    status = 0
    try:
        for token in tokens:
            if stream and token.text:
                out.write(token.text)
                now = time.perf_counter()
                if now - shown > 0.02:  # a flush costs a system call; the eye sees 50 a second
                    out.flush()
                    shown = now
    except KeyboardInterrupt:
        status = 130
    if not quiet:
        if not stream:
            out.write(generation.completion.text)
        out.write("\n")
        out.flush()
    return status


def _result(generation, figures):
    completion = generation.completion
    return {
        "text": completion.text,
        "token_ids": completion.token_ids,
        "finish_reason": completion.finish_reason,
        **figures,
        "peak_memory_bytes": peak_memory_bytes(),
    }
