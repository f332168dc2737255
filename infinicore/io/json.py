"""JSON files that describe checkpoints and tokenizers."""

import json
from pathlib import Path


def read_json(path, what):
    """An object from a JSON file; `what` says in errors what the file is for."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no {what} {path}")
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {str(error)[:200]}") from None
    if not isinstance(table, dict):
        raise ValueError(f"{path} must hold a JSON object, got a {type(table).__name__}")
    return table


def token_ids(source, table, key):
    """A token id, a list of them or nothing, as a tuple."""
    value = table.get(key)
    values = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(v) is int and v >= 0 for v in values):
        raise ValueError(f"{source}: `{key}` must be a token id or a list of them, got {value!r}")
    return tuple(values)
