"""Transformer layers (Vaswani et al., arXiv 1706.03762), with PyTorch's names and options."""

import copy

import infinicore

from .. import functional as F
from .. import init
from ..module import Module
from .attention import MultiheadAttention
from .container import ModuleList
from .dropout import Dropout
from .linear import Linear
from .normalization import LayerNorm

_ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu}


def _activation(value):
    if callable(value):
        return value
    if value not in _ACTIVATIONS:
        raise ValueError(f"`activation` must be 'relu', 'gelu' or a function, got {value!r}")
    return _ACTIVATIONS[value]


def _clones(module, n):
    return ModuleList(copy.deepcopy(module) for _ in range(n))


def _causal(mask, size, is_causal):
    """Whether a mask is the causal one; looked up in the mask itself where the caller does not say."""
    if is_causal is not None:
        return is_causal
    if mask is None or mask.shape != (size, size) or mask.dtype is infinicore.bool:
        return False
    return bool((mask == Transformer.generate_square_subsequent_mask(size, dtype=mask.dtype)).all())


class _Layer(Module):
    """A layer of `attentions`, by name, and a feed-forward block, each with a residual and a normalisation."""

    attentions = ("self_attn",)

    def __init__(
        self,
        d_model,
        nhead,
        dim_feedforward=2048,
        dropout=0.1,
        activation=F.relu,
        layer_norm_eps=1e-5,
        batch_first=False,
        norm_first=False,
        bias=True,
        device=None,
        dtype=None,
    ):
        super().__init__()
        options = {"bias": bias, "device": device, "dtype": dtype}
        for name in self.attentions:
            self.add_module(name, MultiheadAttention(d_model, nhead, dropout, batch_first=batch_first, **options))
        self.linear1 = Linear(d_model, dim_feedforward, **options)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, **options)
        self.norm_first = norm_first
        blocks = range(1, len(self.attentions) + 2)
        for i in blocks:
            self.add_module(f"norm{i}", LayerNorm(d_model, eps=layer_norm_eps, **options))
        for i in blocks:
            self.add_module(f"dropout{i}", Dropout(dropout))
        self.activation = _activation(activation)

    def _residual(self, i, x, block):
        """x + block(x), with the i-th normalisation before the block or after the sum."""
        norm, dropout = getattr(self, f"norm{i}"), getattr(self, f"dropout{i}")
        if self.norm_first:
            return x + dropout(block(norm(x)))
        return norm(x + dropout(block(x)))

    def _attend(self, attention, x, memory, mask, padding, is_causal):
        return attention(
            x, memory, memory, attn_mask=mask, key_padding_mask=padding, is_causal=is_causal, need_weights=False
        )[0]

    def _feed_forward(self, x):
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


class TransformerEncoderLayer(_Layer):
    """Self-attention and a feed-forward block, each with a residual and a normalisation after it.

    `norm_first` normalises before each block instead. Inputs are [S, B, E], with `batch_first` [B, S, E].
    """

    def forward(self, src, src_mask=None, src_key_padding_mask=None, is_causal=False):
        masks = src_mask, src_key_padding_mask, is_causal
        x = self._residual(1, src, lambda x: self._attend(self.self_attn, x, x, *masks))
        return self._residual(2, x, self._feed_forward)


class TransformerDecoderLayer(_Layer):
    """As TransformerEncoderLayer, with attention over the encoder's result between the two blocks."""

    attentions = ("self_attn", "multihead_attn")

    def forward(
        self,
        tgt,
        memory,
        tgt_mask=None,
        memory_mask=None,
        tgt_key_padding_mask=None,
        memory_key_padding_mask=None,
        tgt_is_causal=False,
        memory_is_causal=False,
    ):
        own = tgt_mask, tgt_key_padding_mask, tgt_is_causal
        other = memory_mask, memory_key_padding_mask, memory_is_causal
        x = self._residual(1, tgt, lambda x: self._attend(self.self_attn, x, x, *own))
        x = self._residual(2, x, lambda x: self._attend(self.multihead_attn, x, memory, *other))
        return self._residual(3, x, self._feed_forward)


class TransformerEncoder(Module):
    """`num_layers` copies of a layer, one after another, and a normalisation at the end if given."""

    def __init__(self, encoder_layer, num_layers, norm=None, enable_nested_tensor=True, mask_check=True):
        super().__init__()
        self.layers = _clones(encoder_layer, num_layers)
        self.num_layers, self.norm = num_layers, norm

    def forward(self, src, mask=None, src_key_padding_mask=None, is_causal=None):
        first = self.layers[0].self_attn.batch_first if self.num_layers else False
        is_causal = _causal(mask, src.shape[1 if first and src.ndim == 3 else 0], is_causal)
        for layer in self.layers:
            src = layer(src, mask, src_key_padding_mask, is_causal)
        return src if self.norm is None else self.norm(src)


class TransformerDecoder(Module):
    """`num_layers` copies of a layer, one after another, and a normalisation at the end if given."""

    def __init__(self, decoder_layer, num_layers, norm=None):
        super().__init__()
        self.layers = _clones(decoder_layer, num_layers)
        self.num_layers, self.norm = num_layers, norm

    def forward(
        self,
        tgt,
        memory,
        tgt_mask=None,
        memory_mask=None,
        tgt_key_padding_mask=None,
        memory_key_padding_mask=None,
        tgt_is_causal=None,
        memory_is_causal=False,
    ):
        first = self.layers[0].self_attn.batch_first if self.num_layers else False
        tgt_is_causal = _causal(tgt_mask, tgt.shape[1 if first and tgt.ndim == 3 else 0], tgt_is_causal)
        for layer in self.layers:
            tgt = layer(
                tgt,
                memory,
                tgt_mask,
                memory_mask,
                tgt_key_padding_mask,
                memory_key_padding_mask,
                tgt_is_causal,
                memory_is_causal,
            )
        return tgt if self.norm is None else self.norm(tgt)


class Transformer(Module):
    """An encoder and a decoder; see `TransformerEncoderLayer` for the options."""

    def __init__(
        self,
        d_model=512,
        nhead=8,
        num_encoder_layers=6,
        num_decoder_layers=6,
        dim_feedforward=2048,
        dropout=0.1,
        activation=F.relu,
        custom_encoder=None,
        custom_decoder=None,
        layer_norm_eps=1e-5,
        batch_first=False,
        norm_first=False,
        bias=True,
        device=None,
        dtype=None,
    ):
        super().__init__()
        options = {"bias": bias, "device": device, "dtype": dtype}
        layer = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first)

        def norm():
            return LayerNorm(d_model, eps=layer_norm_eps, **options)

        if custom_encoder is None:
            custom_encoder = TransformerEncoder(TransformerEncoderLayer(*layer, **options), num_encoder_layers, norm())
        if custom_decoder is None:
            custom_decoder = TransformerDecoder(TransformerDecoderLayer(*layer, **options), num_decoder_layers, norm())
        self.encoder, self.decoder = custom_encoder, custom_decoder
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first
        if init.wanted():
            self._reset_parameters()

    def _reset_parameters(self):
        """Every matrix by Glorot's uniform rule."""
        for parameter in self.parameters():
            if parameter.ndim > 1:
                init.xavier_uniform_(parameter)

    def forward(
        self,
        src,
        tgt,
        src_mask=None,
        tgt_mask=None,
        memory_mask=None,
        src_key_padding_mask=None,
        tgt_key_padding_mask=None,
        memory_key_padding_mask=None,
        src_is_causal=None,
        tgt_is_causal=None,
        memory_is_causal=False,
    ):
        if src.shape[-1] != self.d_model or tgt.shape[-1] != self.d_model:
            raise ValueError(
                f"`src` and `tgt` must have a last dim of {self.d_model}, got shapes {tuple(src.shape)} "
                f"and {tuple(tgt.shape)}"
            )
        memory = self.encoder(src, src_mask, src_key_padding_mask, src_is_causal)
        return self.decoder(
            tgt,
            memory,
            tgt_mask,
            memory_mask,
            tgt_key_padding_mask,
            memory_key_padding_mask,
            tgt_is_causal,
            memory_is_causal,
        )

    @staticmethod
    def generate_square_subsequent_mask(sz, device=None, dtype=None):
        """The causal mask [sz, sz] of floats: minus infinity above the diagonal, else 0."""
        full = infinicore.full((sz, sz), float("-inf"), dtype=dtype or infinicore.get_default_dtype(), device=device)
        return infinicore.triu(full, 1)
