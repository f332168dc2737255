"""Datasets, samplers and the DataLoader with PyTorch's names; token files, tokenizer training and MNIST's format."""

from .collate import default_collate, default_convert
from .dataset import (
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    random_split,
)
from .idx import mnist, read_idx
from .loader import DataLoader
from .part import LoaderPart
from .sampler import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from .text import CharTokenizer, character_datasets, tokenize, train_tokenizer
from .tokens import TokenDataset, TokenFile, TokenWriter, write_tokens
from .worker import WorkerInfo, get_worker_info

__all__ = [
    "BatchSampler",
    "ChainDataset",
    "CharTokenizer",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "DistributedSampler",
    "IterableDataset",
    "LoaderPart",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "StackDataset",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "TokenDataset",
    "TokenFile",
    "TokenWriter",
    "WeightedRandomSampler",
    "WorkerInfo",
    "character_datasets",
    "default_collate",
    "default_convert",
    "get_worker_info",
    "mnist",
    "random_split",
    "read_idx",
    "tokenize",
    "train_tokenizer",
    "write_tokens",
]
