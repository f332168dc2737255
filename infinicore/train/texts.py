"""Texts or files of tokens to what a language model is trained on, as a `TrainConfig` says."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..data import CharTokenizer, Subset, TokenDataset, TokenFile, tokenize, train_tokenizer
from ..lm import Tokenizer
from ..lm.tokenizer import load_config
from .presets import preset

_TEXTS = (".txt", ".md", ".rst", ".py")
_TOKENS = (".tokens", ".bin")
_TOKENIZER_FILES = (
    "tokenizer.json tokenizer_config.json special_tokens_map.json added_tokens.json vocab.json merges.txt "
    "chat_template.jinja"
).split()
_LLMC_VOCABULARY = {"uint16": 50257, "uint32": 128256}  # GPT-2's and LLaMA-3's, the only ones of that format


@dataclass(kw_only=True, slots=True)
class Data:
    """What a model is trained on: `tokenizer` is a folder or None, `evaluation` a dataset or None."""

    tokenizer: Path | None
    vocab_size: int
    training: TokenDataset
    evaluation: Subset | None


def _files(names, setting):
    """The files that `names` (files and folders) stand for."""
    found = []
    for path in map(Path, names):
        if path.is_dir():
            below = sorted(p for p in path.rglob("*") if p.suffix in _TEXTS and p.is_file())
            if not below:
                raise ValueError(f"`{setting}`: {path} holds no text ({', '.join(_TEXTS)}): name the files")
            found += below
        elif path.is_file():
            found.append(path)
        else:
            raise FileNotFoundError(f"`{setting}`: there is no file or folder {path}")
    tokens = [path for path in found if path.suffix in _TOKENS]
    if tokens and len(found) > 1:
        raise ValueError(f"`{setting}`: {tokens[0]} is a file of tokens, which must be given alone")
    return found


def _texts(paths):
    for path in paths:
        try:
            yield path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not UTF-8 text (byte {error.start}): convert it, or leave it out") from None


def _tokenizer(config, folder, paths):
    """(tokenizer, its folder) for texts: read, or made of the texts and saved."""
    choice = config.tokenizer or config.model or ("bpe" if config.vocab_size else "characters")
    if choice != "bpe" and config.vocab_size is not None:
        raise ValueError(f"`vocab_size` is of a new tokenizer, and `tokenizer` is {choice!r}: leave one of them out")
    if choice == "bpe":
        if config.vocab_size is None:
            raise ValueError("`tokenizer` bpe needs `vocab_size`, e.g. 4096")
        return train_tokenizer(_texts(paths), config.vocab_size, folder), folder
    if choice == "characters":
        tokenizer = CharTokenizer("".join(_texts(paths)))
        return tokenizer, tokenizer.save(folder)
    source = Path(choice)
    if not (source / "tokenizer.json").is_file():
        raise FileNotFoundError(f"there is no tokenizer {source / 'tokenizer.json'}: give `tokenizer`")
    return copy_tokenizer(source, folder), folder


def copy_tokenizer(source, folder):
    """Copy the files of a tokenizer into a folder; returns that."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in _TOKENIZER_FILES:
        if (source / name).is_file() and source.resolve() != folder.resolve():
            shutil.copyfile(source / name, folder / name)
    return folder


def _of_texts(config, folder, paths, others):
    """(tokenizer folder, tokens to train on, tokens to evaluate or None) of texts."""
    tokenizer, saved = _tokenizer(config, folder / "tokenizer", paths + others)
    training = tokenize(_texts(paths), tokenizer, folder / "train.tokens")
    evaluation = tokenize(_texts(others), tokenizer, folder / "validation.tokens") if others else None
    return saved, training, evaluation


def _of_tokens(config, folder, path, others):
    """The same for a file of tokens, which stays where it is."""
    training = TokenFile(path)
    evaluation = TokenFile(others[0]) if others else None
    source = config.tokenizer or config.model
    if source in ("bpe", "characters"):
        raise ValueError(f"`tokenizer` {source!r} is made of texts, and {path} holds tokens: give its folder")
    if source is None:
        return None, training, evaluation
    for file in filter(None, (training, evaluation)):
        file.check_tokenizer(source)
    return copy_tokenizer(Path(source), folder / "tokenizer"), training, evaluation


def _tokens(config, folder):
    """(tokenizer folder or None, tokens to train on, tokens to evaluate or None); what is new comes into `folder`."""
    made = preset(config.preset).prepare if config.preset is not None and not config.data else None
    if made is not None:
        tokenizer, training, evaluation = made(folder)
        return tokenizer, TokenFile(training), TokenFile(evaluation)
    if not config.data:
        raise ValueError("`data` is missing: give texts (files or folders) or a file of tokens to train on")
    paths, others = _files(config.data, "data"), _files(config.validation_data, "validation_data")
    of_tokens = [found[0].suffix in _TOKENS for found in (paths, others) if found]
    if len(set(of_tokens)) > 1:
        raise ValueError("`data` and `validation_data` must both be texts or both be files of tokens")
    folder.mkdir(parents=True, exist_ok=True)
    if of_tokens[0]:
        return _of_tokens(config, folder, paths[0], others)
    written, tokenizer = folder / "complete", folder / "tokenizer"
    names = [folder / "train.tokens", folder / "validation.tokens"]
    if written.is_file():  # a run that goes on has the tokens that it began with
        return tokenizer, TokenFile(names[0]), TokenFile(names[1]) if others else None
    found = _of_texts(config, folder, paths, others)
    written.touch()
    return found


def read_tokenizer(folder):
    """The `lm.Tokenizer` of a folder."""
    return Tokenizer(folder / "tokenizer.json", load_config(folder))


def _sequences(file, length, what, stride=1, **part):
    try:
        return TokenDataset(file, length, stride, **part)
    except ValueError as error:
        raise ValueError(
            f"the data to {what} is too short ({error}): give more of it, another share `validation`, or a smaller "
            "`sequence_length`"
        ) from None


def prepare_data(config):
    """The `Data` of a run; tokens and tokenizer are written into its folder once."""
    tokenizer, training, evaluation = _tokens(config, Path(config.out) / "data")
    length, vocab_size = config.sequence_length, training.vocab_size
    if vocab_size is None and tokenizer is not None:
        vocab_size = len(read_tokenizer(tokenizer))
    if vocab_size is None:
        vocab_size = config.vocab_size
    if vocab_size is None and training.format == "llm.c":
        vocab_size = _LLMC_VOCABULARY[training.tokens.dtype.name]
    if vocab_size is None:
        raise ValueError(f"{training.path} does not say how many tokens there are: give `vocab_size` or `tokenizer`")
    border = None
    if evaluation is None and config.validation:
        evaluation, border = training, int(len(training) * (1 - config.validation))
    chosen = None
    if evaluation is not None:
        windows = _sequences(evaluation, length, "evaluate", length, start=border)
        count = min(len(windows), config.eval_batches * config.batch_size)
        chosen = Subset(windows, np.linspace(0, len(windows) - 1, count).astype(np.int64).tolist())
    dataset = _sequences(training, length, "train on", config.stride or 1, stop=border)
    return Data(tokenizer=tokenizer, vocab_size=vocab_size, training=dataset, evaluation=chosen)
