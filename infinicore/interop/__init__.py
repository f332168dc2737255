"""Exchange of tensors with NumPy, torch and everything that speaks DLPack."""

from ..lazy import lazily

__getattr__, __dir__ = lazily(__name__, {})
