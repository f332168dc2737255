"""Functions of tensors under PyTorch's names: `import infinicore.nn.functional as F`."""

from ...lazy import lazily

ACT_SILU, ACT_SWIGLU = 0, 1  # the `activation` of `fused_moe`

_WHERE = {
    "activation": (
        "causal_softmax celu celu_ elu elu_ gelu glu gumbel_softmax hardshrink hardsigmoid hardswish hardtanh "
        "hardtanh_ leaky_relu leaky_relu_ log_softmax logsigmoid mish prelu relu relu6 relu_ rrelu rrelu_ selu selu_ "
        "sigmoid silu silu_and_mul softmax softmin softplus softshrink softsign swiglu tanh tanhshrink threshold "
        "threshold_"
    ).split(),
    "attention": (
        "RopeAlgo flash_attention multi_head_attention multi_head_attention_forward random_sample rope "
        "scaled_dot_product_attention"
    ).split(),
    "space": ["channel_shuffle", "pad", "pixel_shuffle", "pixel_unshuffle"],
    "ctc": ["ctc_loss"],
    "dropout": (
        "alpha_dropout dropout dropout1d dropout2d dropout3d feature_alpha_dropout"
    ).split(),
    "linear": (
        "bilinear cosine_similarity embedding embedding_bag linear normalize one_hot pairwise_distance"
    ).split(),
    "loss": (
        "binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss cross_entropy gaussian_nll_loss "
        "hinge_embedding_loss huber_loss kl_div l1_loss linear_cross_entropy margin_ranking_loss mse_loss nll_loss "
        "poisson_nll_loss smooth_l1_loss soft_margin_loss triplet_margin_loss"
    ).split(),
    "margins": (
        "multi_margin_loss multilabel_margin_loss multilabel_soft_margin_loss triplet_margin_with_distance_loss"
    ).split(),
    "normalization": ["batch_norm", "group_norm", "instance_norm", "layer_norm", "rms_norm"],
    "resampling": (
        "affine_grid grid_sample interpolate upsample upsample_bilinear upsample_nearest"
    ).split(),
    "windows": (
        "fold fractional_max_pool2d fractional_max_pool3d local_response_norm lp_pool1d lp_pool2d lp_pool3d "
        "max_unpool1d max_unpool2d max_unpool3d unfold"
    ).split(),
    "..": (
        "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d "
        "adaptive_max_pool3d avg_pool1d avg_pool2d avg_pool3d causal_conv1d chunk_gated_delta_rule conv1d conv2d "
        "conv3d conv_transpose1d conv_transpose2d conv_transpose3d fused_gated_delta_net_gating fused_moe "
        "fused_moe_mxfp4 kimi_delta_attention linear_mxfp4 linear_w8a8i8 mamba_selective_scan max_pool1d max_pool2d "
        "max_pool3d moe_fused_dense pdist recurrent_gated_delta_rule"
    ).split(),
    "with_indices": [
        "adaptive_max_pool1d_with_indices",
        "adaptive_max_pool2d_with_indices",
        "adaptive_max_pool3d_with_indices",
        "fractional_max_pool2d_with_indices",
        "fractional_max_pool3d_with_indices",
        "max_pool1d_with_indices",
        "max_pool2d_with_indices",
        "max_pool3d_with_indices",
    ],
}  # fmt: skip
__all__ = sorted(["ACT_SILU", "ACT_SWIGLU", *(name for names in _WHERE.values() for name in names)])
__getattr__, __dir__ = lazily(__name__, _WHERE)
