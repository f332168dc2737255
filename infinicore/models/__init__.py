"""Language models: checkpoints in Hugging Face layout, decoders, and the caches they run over."""

from ..lazy import lazily

_WHERE = {
    ".lm.kvcache": ["PagedCache", "StaticCache"],
    "auto": ["from_config", "from_pretrained", "load_config"],
    "gpt2.configs": ["GPT2Config"],
    "gpt2.model": ["GPT2"],
    "language_model": ["LanguageModel"],
    "llama.configs": ["DecoderConfig"],
    "llama.model": ["CausalLM"],
    "registry": ["ARCHITECTURES"],
    "save": ["save_pretrained"],
}
__all__ = sorted(name for names in _WHERE.values() for name in names)
__getattr__, __dir__ = lazily(__name__, _WHERE)
