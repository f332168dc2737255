"""Wrong options and inputs: one sentence each, which names the argument."""

import pytest

import infinicore as ic
import infinicore.nn.functional as F
from infinicore import nn

X = ic.ones(2, 4)
IMAGE = ic.ones(2, 4, 6, 6)
CASES = [
    (lambda: nn.Linear(4, -1), ValueError, "`out_features`"),
    (lambda: nn.Bilinear(0, 2, 3), ValueError, "`in1_features`"),
    (lambda: nn.Bilinear(4, 3, 5)(X, X), ValueError, "`input2`"),
    (lambda: nn.Conv2d(4, 6, 3, groups=3), ValueError, "`groups`"),
    (lambda: nn.Conv2d(4, 6, (3, 3, 3)), ValueError, "`kernel_size`"),
    (lambda: nn.Conv2d(4, 6, 3, padding="full"), ValueError, "`padding`"),
    (lambda: nn.Conv2d(4, 6, 3, stride=2, padding="same"), ValueError, "stride"),
    (lambda: nn.Conv2d(4, 6, 3, padding_mode="mirror"), ValueError, "`padding_mode`"),
    (lambda: nn.Conv2d(3, 6, 3)(IMAGE), ValueError, "weight"),
    (lambda: nn.GroupNorm(3, 4), ValueError, "`num_groups`"),
    (lambda: nn.LayerNorm(0), ValueError, "`normalized_shape`"),
    (lambda: nn.LayerNorm(5)(X), ValueError, "`normalized_shape`"),
    (lambda: nn.BatchNorm2d(4)(X), ValueError, "4 dims"),
    (lambda: nn.BatchNorm1d(4)(ic.ones(1, 4)), ValueError, "more than one value"),
    (lambda: nn.PReLU(3)(X), ValueError, "`weight`"),
    (lambda: nn.Hardtanh(1.0, 0.0), ValueError, "`min_val`"),
    (lambda: F.softshrink(X, -1.0), ValueError, "`lambd`"),
    (lambda: F.celu(X, 0.0), ValueError, "`alpha`"),
    (lambda: nn.GLU()(ic.ones(2, 3)), ValueError, "even size"),
    (lambda: F.embedding_bag(ic.tensor([1]), X), ValueError, "`offsets`"),
    (lambda: F.embedding_bag(ic.tensor([1, 0]), X, ic.tensor([1])), ValueError, "`offsets"),
    (lambda: F.embedding_bag(ic.tensor([[1]]), X, mode="median"), ValueError, "`mode`"),
    (lambda: F.layer_norm(X, 4.0), TypeError, "`normalized_shape`"),
    (lambda: F.group_norm(X, 2.0), TypeError, "`num_groups`"),
    (lambda: F.cross_entropy(X, ic.tensor([0, 1]), label_smoothing="0.1"), TypeError, "`label_smoothing`"),
    (lambda: F.cross_entropy(X, ic.tensor([0, 1]), ignore_index=None), TypeError, "`ignore_index`"),
    (lambda: F.pad(X, (1.5, 0)), TypeError, "`pad`"),
    (lambda: F.pad(X, 1), TypeError, "`pad`"),
    (lambda: F.dropout(X, "0.5"), TypeError, "`p`"),
    (lambda: nn.Dropout("0.5"), TypeError, "`p`"),
    (lambda: F.interpolate(IMAGE), ValueError, "`size`"),
    (lambda: F.interpolate(IMAGE, size=3, mode="linear"), NotImplementedError, "`mode`"),
    (lambda: F.interpolate(IMAGE, size=3, align_corners=True), ValueError, "`align_corners`"),
    (lambda: F.interpolate(IMAGE, size=(0, 3)), ValueError, "size"),
    (lambda: F.grid_sample(IMAGE, ic.zeros(2, 3, 3, 3)), ValueError, "`grid`"),
    (lambda: F.grid_sample(IMAGE, ic.zeros(2, 3, 3, 2), "linear"), ValueError, "`mode`"),
    (lambda: F.affine_grid(ic.zeros(1, 2, 3), (2, 1, 4, 4)), ValueError, "`theta`"),
    (lambda: F.unfold(X, 2), ValueError, "`input`"),
    (lambda: F.unfold(IMAGE, 9), ValueError, "`kernel_size`"),
    (lambda: F.fold(ic.ones(2, 5, 9), (4, 4), 2), ValueError, "`input`"),
    (lambda: F.max_unpool2d(IMAGE, IMAGE.long() * 900, 2), ValueError, "`indices`"),
    (lambda: F.max_unpool2d(IMAGE, IMAGE.long(), 2, output_size=(40, 40)), ValueError, "`output_size`"),
    (lambda: F.fractional_max_pool2d(IMAGE, 2), ValueError, "`output_size`"),
    (lambda: F.conv_transpose2d(IMAGE, ic.ones(3, 2, 2, 2)), ValueError, "weight"),
    (lambda: F.conv_transpose2d(IMAGE, ic.ones(4, 2, 2, 2), output_padding=1), ValueError, "`output_padding`"),
    (lambda: F.conv3d(IMAGE, ic.ones(4, 2, 2, 2)), ValueError, "dims"),
    (lambda: F.instance_norm(ic.ones(2, 3, 1)), ValueError, "space"),
    (lambda: F.multi_margin_loss(X, ic.tensor([0, 4])), ValueError, "`target`"),
    (lambda: F.multi_margin_loss(X, ic.tensor([0, 1]), p=3), ValueError, "`p`"),
    (lambda: F.multilabel_margin_loss(X, ic.tensor([0, 1])), ValueError, "`target`"),
    (lambda: F.ctc_loss(IMAGE[0], ic.ones(6, 2).long(), [5] * 6, [1] * 6), ValueError, "`input_lengths`"),
    (lambda: F.ctc_loss(IMAGE[0], ic.ones(6, 2).long() * 9, [4] * 6, [1] * 6), ValueError, "`targets`"),
    (lambda: F.linear_cross_entropy(X, X, ic.tensor([0, 1]), options=1), TypeError, "`options`"),
    (lambda: F.scaled_dot_product_attention(X[0], X, X), ValueError, "`query`"),
    (lambda: nn.Embedding(4, 2)(ic.tensor([4])), ValueError, "from 0 to 3"),
    (lambda: nn.Embedding.from_pretrained(ic.ones(3)), ValueError, "2 dims"),
    (lambda: nn.Unflatten(1, (3, 2))(X), ValueError, "`unflattened_size`"),
    (lambda: nn.PixelShuffle(3)(IMAGE), ValueError, "`upscale_factor`"),
    (lambda: nn.PixelUnshuffle(4)(IMAGE), ValueError, "`downscale_factor`"),
    (lambda: nn.MultiheadAttention(8, 3), ValueError, "`num_heads`"),
    (lambda: nn.MultiheadAttention(8, 2)(X, X, X), ValueError, "last dim of 8"),
    (lambda: nn.MultiheadAttention(4, 2)(X, X, X, is_causal=True), ValueError, "`attn_mask`"),
    (lambda: nn.MultiheadAttention(4, 2)(X, X, X, attn_mask=ic.zeros(3, 3)), ValueError, "`attn_mask`"),
    (lambda: nn.MultiheadAttention(4, 2)(X, X, X, attn_mask=ic.zeros(2, 2).long()), TypeError, "`attn_mask`"),
    (lambda: nn.TransformerEncoderLayer(4, 2, activation="step"), ValueError, "`activation`"),
    (lambda: nn.Transformer(4, 2, 1, 1, 4)(ic.ones(2, 3), X), ValueError, "`src`"),
    (lambda: nn.MSELoss("average"), ValueError, "`reduction`"),
    (lambda: F.mse_loss(X, X, reduction="average"), ValueError, "`reduction`"),
    (lambda: nn.BCELoss()(X, ic.ones(4)), ValueError, "`target`"),
    (lambda: nn.HuberLoss(delta=0.0)(X, X), ValueError, "`delta`"),
    (lambda: nn.SmoothL1Loss(beta=-1.0)(X, X), ValueError, "`beta`"),
    (lambda: nn.BCELoss()(X * 2.0, X), ValueError, "probabilities"),
    (lambda: nn.GaussianNLLLoss()(X, X, -X), ValueError, "`var`"),
    (lambda: nn.TripletMarginLoss(margin=0.0), ValueError, "`margin`"),
    (lambda: F.pad(X, (1, 2, 3)), ValueError, "`pad`"),
    (lambda: F.pad(X, (1, 1), "mirror"), ValueError, "`mode`"),
    (lambda: nn.Module().register_parameter("a.b", None), KeyError, "dot"),
    (lambda: nn.Module().register_parameter("a", X), TypeError, "`param`"),
    (lambda: nn.Module().add_module("a", X), TypeError, "`module`"),
    (lambda: nn.Linear(2, 2).load_state_dict([1]), TypeError, "`state_dict`"),
]


@pytest.mark.parametrize("call, error, words", CASES, ids=range(len(CASES)))
def test_wrong_arguments(call, error, words):
    with pytest.raises(error, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda t: ic.zeros(2**62), MemoryError),
        (lambda t: nn.functional.conv2d(ic.ones(1, 1, 3, 3), ic.ones(1, 1, 3, 3), padding=2**40), ValueError),
        (lambda t: nn.functional.mse_loss(t, (1,)), TypeError),
        (lambda t: nn.functional.hardsigmoid(5), TypeError),
        (lambda t: t.view_as(2.0), TypeError),
        (lambda t: t.reshape_as(2.0), TypeError),
        (lambda t: t.type_as(False), TypeError),
        (lambda t: ic.clamp(5, 0), TypeError),
        (lambda t: ic.ones(()).split(-1), ValueError),
    ],
)
def test_what_used_to_be_raw_errors_are_sentences(call, error):
    with pytest.raises(error, match="`"):
        call(ic.ones(3, 3))
