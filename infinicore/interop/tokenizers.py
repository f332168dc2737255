"""Reads tokenizer.json by the package `tokenizers`, whose failures become sentences."""

import json


class Guard:
    """`with guard:` around calls of a tokenizer that was read from `path`.

    The package raises plain Exception, and for many a mistake in the file a panic of its Rust code, which is a
    BaseException: both become a ValueError.
    """

    def __init__(self, path):
        self.path = path

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if kind is not None:
            self.translate(error)

    def translate(self, error):
        """Raise what such an error becomes; others are passed over."""
        if type(error) is Exception or type(error).__name__ == "PanicException":
            reason = " ".join(str(error).split())[:200]
            raise ValueError(
                f"{self.path} is no tokenizer that can be used: {reason}; take the file of the original checkpoint"
            ) from None


def read(path):
    """The `tokenizers.Tokenizer` of a tokenizer.json; raises ValueError for a file that cannot be used."""
    import tokenizers

    with Guard(path):
        backend = tokenizers.Tokenizer.from_file(str(path))
        state = None if backend.post_processor is None else backend.post_processor.__getstate__()
    if state is not None:
        _check_special_tokens(path, json.loads(state))
    return backend


def _check_special_tokens(path, processor):
    """Pieces of a template without an id end in a panic, which writes a backtrace to standard error."""
    for part in processor.get("processors", ()):
        _check_special_tokens(path, part)
    for template in ("single", "pair"):
        for piece in processor.get(template, ()):
            name = piece.get("SpecialToken", {}).get("id")
            if name is not None and name not in processor.get("special_tokens", {}):
                raise ValueError(
                    f"{path} is no tokenizer that can be used: `post_processor` adds {name!r}, which its "
                    "`special_tokens` lack"
                )


def check_text(text, name):
    """`text`; TypeError, ValueError for what cannot be encoded. `name` is the argument's."""
    if not isinstance(text, str):
        raise TypeError(f"`{name}` must be a text (str), got {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"`{name}` has half of a surrogate pair, {text[error.start]!r} at place {error.start}, which is no "
            "character: leave it out, or decode its bytes with errors='replace'"
        ) from None
    return text
