"""`infinicore train`: a language model from texts, or a checkpoint fine-tuned on them."""

import json
import sys

from . import progress
from .generate import peak_memory_bytes

EPILOG = """Each setting is a flag and a key of the TOML file (with _ for -); flags override the file, and the file the
preset. OUT holds checkpoints, log.jsonl, log.csv and loss.png, and at the end OUT/model, which `infinicore generate
--model OUT/model` takes. The same command again goes on from the newest checkpoint. Exit status: 0, 2 for input that
cannot be used (one sentence on standard error), 130 after an interrupt and 143 after SIGTERM (both save first)."""


def add_arguments(parser):
    """Add a flag for each setting of a run."""
    import argparse

    from ..train.config import ROWS
    from ..train.presets import PRESETS

    parser.epilog = EPILOG
    parser.argument_default = argparse.SUPPRESS
    parser.add_argument("--config", metavar="FILE", default=None, help="settings in TOML")
    parser.add_argument("--json", action="store_true", default=False, help="print the final figures as JSON")
    parser.add_argument(
        "--progress", action=argparse.BooleanOptionalAction, default=True, help="show how far it is, on standard error"
    )
    for name, row in ROWS.items():
        about, kind, options = row.metadata, row.metadata["kind"], {}
        text = about["meaning"]
        if name == "preset":
            text += "; " + "; ".join(f"{key}: {found.meaning}" for key, found in PRESETS.items())
        if row.default not in (None, ()) and kind is not bool:
            shown = " ".join(map(str, row.default)) if kind == "pair" else row.default
            text += f" (default: {shown})"
        if kind is bool:
            options["action"] = argparse.BooleanOptionalAction
        elif kind == "pair":
            options.update(type=float, nargs=2, metavar=("B1", "B2"))
        elif kind == "paths":
            options.update(nargs="+", metavar=about["metavar"])
        else:
            options.update(type=kind, metavar=about["metavar"] or {int: "N", float: "X"}.get(kind, name.upper()))
            if about["choices"]:
                options.update(choices=about["choices"], metavar=None)
        parser.add_argument("--" + name.replace("_", "-"), help=text.replace("%", "%%"), **options)


def run(arguments):
    """Train; prints the figures of the run."""
    from ..distributed import world
    from ..train.config import ROWS, read_toml
    from ..train.run import configure
    from ..train.run import run as train

    given = {name: value for name, value in vars(arguments).items() if name in ROWS}
    config = configure({} if arguments.config is None else read_toml(arguments.config), given)
    leads = world.rank() == 0
    shown = arguments.progress and leads
    if shown:
        progress.show_compilation()
    try:
        figures = train(config, progress=shown, say=progress.show if shown else _quiet)
    except (KeyboardInterrupt, SystemExit):
        progress.clear()
        if leads:
            print(f"stopped: the same command goes on from the newest checkpoint in {config.out}", file=sys.stderr)
        raise
    progress.clear()
    if not leads:
        return
    figures["peak_memory_bytes"] = peak_memory_bytes()
    if arguments.json:
        print(json.dumps(figures))
    else:
        forms = {"loss": "loss {:.4f}", "eval_loss": "validation loss {:.4f}", "tokens_per_s": "{:,.0f} tokens/s"}
        known = [form.format(figures[name]) for name, form in forms.items() if figures[name] is not None]
        print(
            f"{figures['model']}: {figures['parameters'] / 1e6:.2f} million parameters after {figures['steps']} steps, "
            + ", ".join([*known, f"peak memory {figures['peak_memory_bytes'] / 2**20:.0f} MiB"])
        )


def _quiet(text):
    pass
