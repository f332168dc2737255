"""Which kind of file a path names, by what costs nothing to load."""

from pathlib import Path

MAGIC = b"GGUF"  # the first bytes of a GGUF file


def is_gguf(path):
    """Whether `path` is a GGUF file, by its name or its first bytes."""
    path = Path(path)
    if path.suffix == ".gguf":
        return not path.is_dir()
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC
