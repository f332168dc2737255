"""Float weights that are quantised while they are read: the formats, and where a config.json asks for one."""

QUANTIZE = ("int8", "int4")  # formats that float weights can be quantised to
REST = "infinicore"  # key of config.json


def check_format(quantize):
    """Refuse what `quantize=` does not know."""
    if quantize not in (None, *QUANTIZE):
        raise ValueError(f"`quantize` must be {' or '.join(map(repr, QUANTIZE))}, got {quantize!r}")


def format_of_rest(source, config):
    """What a config.json asks to do with linear layers that are stored as floats: a format of `quantize=`, or None.

    `infinicore quantize` writes {"infinicore": {"quantize": FORMAT}}: the head stays as it is in the file, as others
    expect, and is quantised like the rest when it is loaded.
    """
    table = config.get(REST)
    found = table.get("quantize") if isinstance(table, dict) else None
    if found not in (None, *QUANTIZE):
        raise ValueError(f"{source}: `{REST}.quantize` must be {' or '.join(QUANTIZE)}, got {found!r:.80}")
    return found
