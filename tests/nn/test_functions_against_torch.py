"""Functions of `nn.functional` beside PyTorch's of the same name: values, and the gradients of every float input."""

import numpy as np
import pytest

import infinicore as ic
import infinicore.nn.functional as F

torch = pytest.importorskip("torch")

rng = np.random.default_rng(5)
normal, uniform = rng.standard_normal, rng.uniform


def ids(high, *shape):
    return rng.integers(0, high, shape)


IMAGE, SIGNAL, VOLUME = (2, 3, 6, 7), (2, 3, 8), (2, 2, 4, 5, 6)
SPACE = {3: SIGNAL, 4: IMAGE, 5: VOLUME}
CASES = []


def case(name, *args, **options):
    CASES.append(pytest.param(name, args, options, id=f"{name}-{len(CASES)}"))


for mode, dims in [("nearest", 3), ("nearest-exact", 4), ("nearest", 5), ("area", 4), ("area", 5)]:
    case("interpolate", normal(SPACE[dims]), scale_factor=1.7, mode=mode)
for mode, dims in [("linear", 3), ("bilinear", 4), ("bicubic", 4), ("trilinear", 5)]:
    for align in (False, True):
        case("interpolate", normal(SPACE[dims]), size=(9, 4, 7)[: dims - 2], mode=mode, align_corners=align)
    case("interpolate", normal(SPACE[dims]), scale_factor=(0.6, 1.9, 2.0)[: dims - 2], mode=mode)
    case("interpolate", normal(SPACE[dims]), scale_factor=1.3, mode=mode, recompute_scale_factor=True)
for mode in ("bilinear", "bicubic"):
    case("interpolate", normal(IMAGE), size=(3, 11), mode=mode, antialias=True)
    case("interpolate", normal(IMAGE), size=(4, 3), mode=mode, antialias=True, align_corners=True)
case("upsample", normal(IMAGE), scale_factor=2)
case("affine_grid", normal((2, 2, 3)), size=(2, 3, 4, 5), align_corners=False)
case("affine_grid", normal((2, 3, 4)), size=(2, 3, 4, 1, 5), align_corners=True)
for padding in ("zeros", "border", "reflection"):
    for mode in ("bilinear", "nearest", "bicubic"):
        for align in (False, True):
            options = {"mode": mode, "padding_mode": padding, "align_corners": align}
            case("grid_sample", normal(IMAGE), uniform(-2.2, 2.2, (2, 4, 5, 2)), **options)
    case("grid_sample", normal(VOLUME), uniform(-2.2, 2.2, (2, 3, 2, 4, 3)), padding_mode=padding, align_corners=True)
case("unfold", normal(IMAGE), kernel_size=(3, 2), dilation=(1, 2), padding=1, stride=(2, 1))
case("unfold", normal(IMAGE[1:]), kernel_size=2)
case("fold", normal((2, 12, 12)), output_size=(4, 5), kernel_size=2)
case("fold", normal((18, 9)), output_size=(5, 6), kernel_size=3, padding=1, stride=2)
case("lp_pool1d", uniform(0.1, 2, SIGNAL), norm_type=2.0, kernel_size=3, stride=2)
case("lp_pool2d", uniform(0.1, 2, IMAGE), norm_type=3.0, kernel_size=(2, 3), ceil_mode=True)
case("lp_pool3d", uniform(0.1, 2, VOLUME), norm_type=1.5, kernel_size=2)
case("local_response_norm", normal(IMAGE), size=2, alpha=0.3)
case("local_response_norm", normal(VOLUME), size=3, k=2.0)
case("max_unpool1d", normal((2, 4)), np.array([[0, 3, 4, 7], [1, 2, 5, 6]]), kernel_size=2)
places = np.arange(6).reshape(1, 2, 3) * 4
case("max_unpool2d", normal((1, 2, 3)), places, kernel_size=2, output_size=(5, 6))
case("max_unpool3d", normal((1, 1, 2, 3)), places[None], kernel_size=(1, 2, 2), stride=(1, 2, 2))
draws = uniform(0, 1, (2, 3, 2))
case("fractional_max_pool2d", normal(IMAGE), kernel_size=2, output_size=(3, 4), _random_samples=draws)
draws = uniform(0, 1, (2, 2, 3))
case(
    "fractional_max_pool3d", normal(VOLUME), kernel_size=(2, 1, 2), output_ratio=(0.5, 0.7, 0.5), _random_samples=draws
)
case("rrelu", normal((4, 5)), lower=0.1, upper=0.3)
case("channel_shuffle", normal((2, 6, 2, 3)), groups=3)
case("instance_norm", normal(IMAGE), weight=normal(3), bias=normal(3), eps=1e-3)
case("instance_norm", normal(SIGNAL), normal(3), uniform(1, 2, 3), use_input_stats=False)
case("embedding_bag", ids(7, 3, 4), normal((7, 5)))
for mode in ("sum", "mean", "max"):
    options = {"mode": mode, "padding_idx": 2}
    case("embedding_bag", ids(5, 9), normal((5, 4)), np.array([0, 3, 3, 7]), **options)
case("embedding_bag", ids(7, 6), normal((7, 2)), np.array([0, 4, 6]), mode="sum", include_last_offset=True)
case("embedding_bag", ids(7, 2, 3), normal((7, 2)), mode="sum", per_sample_weights=normal((2, 3)))
case("embedding", ids(4, 3, 3), normal((4, 3)), max_norm=1.0)
case("embedding", ids(4, 3, 3), normal((4, 3)), scale_grad_by_freq=True, padding_idx=1)
for p, weight in ((1, None), (2, uniform(0.5, 2, 4))):
    case("multi_margin_loss", normal((5, 4)), ids(4, 5), p=p, weight=weight, margin=0.7)
case("multi_margin_loss", normal(4), np.array(2), reduction="sum")
case("multi_margin_loss", normal(4), np.array([2]), reduction="none")
case("multi_margin_loss", normal((1, 4)), np.array(2), reduction="none")
case("multi_margin_loss", np.array(0.3), np.array(0), reduction="none")
case("multilabel_margin_loss", np.array(0.3), np.array(0), reduction="none")
labels = np.array([[2, 0, -1, 1], [-1, 3, 2, 0], [3, 1, 0, 2]])
case("multilabel_margin_loss", normal((3, 4)), labels, reduction="none")
case("multilabel_margin_loss", normal(4), labels[0])
case("multilabel_soft_margin_loss", normal((3, 4)), ids(2, 3, 4).astype(float), weight=uniform(0.5, 2, 4))
case("triplet_margin_with_distance_loss", *normal((3, 4, 6)), swap=True)
target = np.array([[1, 2, 2, 0], [3, 0, 0, 0], [1, 3, 1, 2]])
for reduction in ("none", "mean", "sum"):
    log_p = np.log(uniform(0.1, 1, (9, 3, 5)))
    case("ctc_loss", log_p, target + 1, [9, 5, 8], [3, 1, 4], reduction=reduction)
case("ctc_loss", np.log(uniform(0.1, 1, (6, 2, 4))), np.array([1, 1, 3]), np.array([6, 3]), np.array([2, 1]), blank=2)
case("ctc_loss", np.log(uniform(0.1, 1, (3, 2, 4))), target[:2], [3, 3], [3, 1], zero_infinity=True)
case("ctc_loss", np.log(uniform(0.1, 1, (5, 4))), target[0, :3], np.array(5), np.array(3))
query, key, value = normal((5, 4)), normal((6, 4)), normal((6, 3))
case("scaled_dot_product_attention", query, key, value, is_causal=True)
case("scaled_dot_product_attention", normal((2, 5, 4)), normal((2, 6, 4)), normal((1, 6, 3)), ids(2, 2, 5, 6) > 0)
case("scaled_dot_product_attention", *normal((3, 2, 3, 2, 5, 4)), normal((2, 1, 1, 5, 5)), scale=0.3)
case("scaled_dot_product_attention", *normal((3, 1, 2, 5, 4)), normal((5, 5)))
for shape, options in [((6, 5), {}), ((6, 2, 5), {"label_smoothing": 0.1}), ((6, 5), {"weight": uniform(1, 2, 6)})]:
    classes = ids(6, 4, *shape[1:-1])
    case("linear_cross_entropy", normal((4, 5)), normal(shape), classes, **options)
case("linear_cross_entropy", normal((4, 5)), normal((6, 5)), ids(6, 4), linear_bias=normal(6), reduction="none")


def ours(value, wants):
    if not isinstance(value, np.ndarray):
        return value
    x = ic.from_numpy(np.array(value))
    return x.requires_grad_() if wants and value.dtype.kind == "f" else x


def theirs(value, wants):
    if not isinstance(value, np.ndarray):
        return value
    x = torch.from_numpy(np.array(value))
    return x.requires_grad_() if wants and value.dtype.kind == "f" else x


@pytest.mark.parametrize("name, args, options", CASES)
@pytest.mark.filterwarnings("ignore")
def test_function(name, args, options):
    wants = [not (name in ("multilabel_soft_margin_loss", "ctc_loss", "instance_norm") and i > 0) for i in range(9)]
    wanted = {k: k in ("linear_bias", "per_sample_weights") for k in options}
    results = []
    for make, module in ((ours, F), (theirs, torch.nn.functional)):
        inputs = [make(a, w and "max_norm" not in options) for a, w in zip(args, wants)]
        named = {k: make(v, wanted[k]) for k, v in options.items()}
        y = getattr(module, name)(*inputs, **named)
        tensors = [x for x in (*inputs, *named.values()) if getattr(x, "requires_grad", False)]
        if tensors:
            seed = np.random.default_rng(1).standard_normal(tuple(y.shape))
            y.backward(make(seed, False))
        gradients = [np.zeros(tuple(x.shape)) if x.grad is None else x.grad.numpy() for x in tensors]
        results.append([y.detach().numpy(), *gradients])
    for one, two in zip(*results):
        assert one.dtype == two.dtype
        np.testing.assert_allclose(one, two, rtol=1e-7, atol=1e-8)
