"""Examples of the ops that have no samples in the table: kernels of derivatives, packed weights, Fourier transforms."""

_VECTOR = "x = infinicore.tensor([1.0, 2.0, 4.0, 3.0])"
_MATRIX = "x = infinicore.tensor([[1.0, 2.0, 4.0], [3.0, 0.0, 1.0]])"
_COMPLEX = "x = infinicore.tensor([1 + 2j, 3 - 1j, 0.5j])"
_WEIGHT = "weight = infinicore.randn(8, 64)"
_Q4 = 'raw, kind, shape = infinicore.zeros(4 * 18, dtype=infinicore.uint8), "Q4_0", (4, 32)  # 18 bytes for 32 numbers'

EXAMPLES = {
    "complex": [_VECTOR, "y = infinicore.complex(x, -x)"],
    "polar": [_VECTOR, "y = infinicore.polar(x, 0.5 * x)"],
    "allclose": [_VECTOR, "y = infinicore.allclose(x, x + 1e-9)  # True"],
    "equal": [_VECTOR, "y = infinicore.equal(x, x + 1.0)  # False"],
    "stft": [
        "x = infinicore.sin(infinicore.arange(64.0))",
        "y = infinicore.stft(x, 16, window=infinicore.hann_window(16), return_complex=True)  # [9, 17]",
    ],
    "istft": [
        "x, window = infinicore.sin(infinicore.arange(64.0)), infinicore.hann_window(16)",
        "y = infinicore.istft(infinicore.stft(x, 16, window=window, return_complex=True), 16, window=window)  # x",
    ],
    "fft_c2c": [_COMPLEX, "y = infinicore.fft_c2c(x, [0])"],
    "fft_r2c": [_VECTOR, "y = infinicore.fft_r2c(x, [0])"],
    "fft_c2r": [_COMPLEX, "y = infinicore.fft_c2r(x, [0], 4)"],
    **{
        f"fft_{name}": [_VECTOR if name[-3:] == "fft" else _MATRIX, f"y = infinicore.fft.{name}(x)"]
        for kind in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
        for name in (kind, kind + "2", kind + "n")
    },
    "scaled_dot_product_attention_backward": [
        "q, k, v, g = (infinicore.randn(1, 2, 3, 8) for _ in range(4))",
        "out = infinicore.scaled_dot_product_attention(q, k, v)",
        "y = infinicore.scaled_dot_product_attention_backward(g, q, k, v, out)  # gradients of q, k and v",
    ],
    "batch_norm_backward": [
        "x, g = infinicore.randn(4, 3), infinicore.randn(4, 3)",
        "mean, inverse = x.mean(0), (x.var(0, correction=0) + 1e-5).rsqrt()",
        "y = infinicore.batch_norm_backward(g, x, infinicore.ones(3), mean, inverse, True)",
    ],
    "group_norm_backward": [
        "x, g = infinicore.randn(2, 4), infinicore.randn(2, 4)",
        "rows = x.view(4, 2)",
        "mean, inverse = rows.mean(1), (rows.var(1, correction=0) + 1e-5).rsqrt()",
        "y = infinicore.group_norm_backward(g, x, 2, infinicore.ones(4), mean.view(2, 2), inverse.view(2, 2))",
    ],
    "conv_input_backward": [
        "grad, weight = infinicore.randn(1, 2, 4, 4), infinicore.randn(2, 3, 3, 3)",
        "y = infinicore.conv_input_backward(grad, weight, (1, 3, 6, 6))",
    ],
    "conv_weight_backward": [
        "grad, x = infinicore.randn(1, 2, 4, 4), infinicore.randn(1, 3, 6, 6)",
        "y = infinicore.conv_weight_backward(grad, x, (2, 3, 3, 3))",
    ],
    "pack_weight": [_WEIGHT, "y = infinicore.pack_weight(weight)"],
    "linear_packed": [_WEIGHT, "y = infinicore.linear_packed(infinicore.randn(3, 64), infinicore.pack_weight(weight))"],
    "quantize_weight": [_WEIGHT, 'y = infinicore.quantize_weight(weight, "int4")'],
    "empty_quantized": ['y = infinicore.empty_quantized((8, 64), "int8")'],
    "dequantize_weight": [_WEIGHT, "y = infinicore.dequantize_weight(infinicore.quantize_weight(weight))"],
    "linear_quantized": [
        _WEIGHT,
        "y = infinicore.linear_quantized(infinicore.randn(3, 64), infinicore.quantize_weight(weight))",
    ],
    "pack_int8": [
        "weight = infinicore.randint(-127, 128, (8, 64), dtype=infinicore.int8)",
        "y = infinicore.pack_int8(weight, infinicore.ones(8, 1))",
    ],
    "unpack_int8": [
        "weight = infinicore.randint(-127, 128, (8, 64), dtype=infinicore.int8)",
        "y = infinicore.unpack_int8(infinicore.pack_int8(weight, infinicore.ones(8, 1)))",
    ],
    "pack_float8": [
        _WEIGHT,
        "y = infinicore.pack_float8(weight.to(infinicore.float8_e4m3), infinicore.ones(1, 1))",
    ],
    "scaled_mm": [
        _WEIGHT,
        "x, weight = infinicore.randn(3, 64).to(infinicore.float8_e4m3), weight.to(infinicore.float8_e4m3)",
        "y = infinicore.scaled_mm(x, weight.t(), infinicore.ones(1), infinicore.ones(1, 8))",
    ],
    "pack_groups": [
        "words = infinicore.zeros(8, 16, dtype=infinicore.int32)  # 8 numbers each",
        "y = infinicore.pack_groups(words, infinicore.ones(8, 1))",
    ],
    "pack_gptq": [
        "words, zeros = (infinicore.zeros(*n, dtype=infinicore.int32) for n in ((16, 8), (1, 1)))",
        "y = infinicore.pack_gptq(words, zeros, infinicore.ones(1, 8))",
    ],
    "unpack_gptq": [
        "words = infinicore.zeros(8, 16, dtype=infinicore.int32)",
        "y = infinicore.unpack_gptq(infinicore.pack_groups(words, infinicore.ones(8, 1)))",
    ],
    "pack_awq": [
        "words, zeros = (infinicore.zeros(*n, dtype=infinicore.int32) for n in ((128, 1), (1, 1)))",
        "y = infinicore.pack_awq(words, zeros, infinicore.ones(1, 8))",
    ],
    "pack_mxfp4": [
        "blocks = infinicore.randint(0, 256, (8, 32), dtype=infinicore.uint8)",
        "y = infinicore.pack_mxfp4(blocks, infinicore.full((8, 2), 127, dtype=infinicore.uint8))",
    ],
    "gguf_dequantize": [_Q4, "y = infinicore.gguf_dequantize(raw, kind, shape)"],
    "gguf_embedding": [_Q4, "y = infinicore.gguf_embedding(infinicore.tensor([0, 3]), raw, kind, shape)"],
    "gguf_pack": [_Q4, "y = infinicore.gguf_pack(raw, kind, shape)"],
    "cross_entropy_backward": [
        "x, target = infinicore.randn(2, 3).requires_grad_(), infinicore.tensor([0, 2])",
        "infinicore.nn.functional.cross_entropy(x, target).backward()  # calls it, with what forward kept",
        "y = x.grad",
    ],
    "nll_loss_backward": [
        "x, target = infinicore.randn(2, 3).requires_grad_(), infinicore.tensor([0, 2])",
        "infinicore.nn.functional.nll_loss(x.log_softmax(-1), target).backward()  # calls it",
        "y = x.grad",
    ],
    "multi_clip": [
        "tensors = [infinicore.ones(2), infinicore.ones(3)]",
        "y = infinicore.multi_clip(tensors, infinicore.multi_norm(tensors), 1.0)",
    ],
    "multi_clamp": ["tensors = [infinicore.ones(2), infinicore.ones(3)]", "y = infinicore.multi_clamp(tensors, 0.5)"],
    "avg_pool_backward": [
        "x = infinicore.randn(1, 1, 4, 4).requires_grad_()",
        "infinicore.nn.functional.avg_pool2d(x, 2).sum().backward()  # calls it",
        "y = x.grad",
    ],
    "adaptive_avg_pool_backward": [
        "x = infinicore.randn(1, 1, 4, 4).requires_grad_()",
        "infinicore.nn.functional.adaptive_avg_pool2d(x, 2).sum().backward()  # calls it",
        "y = x.grad",
    ],
    "max_pool_backward": [
        "x = infinicore.randn(1, 1, 4, 4).requires_grad_()",
        "infinicore.nn.functional.max_pool2d(x, 2).sum().backward()  # calls it",
        "y = x.grad",
    ],
    "delta_rule_backward": [
        "q, k, v = (infinicore.randn(1, 3, 2, 4) for _ in range(3))",
        "decay, beta, state = infinicore.rand(1, 3, 2), infinicore.rand(1, 3, 2), infinicore.zeros(1, 2, 4, 4)",
        "y = infinicore.delta_rule_backward(infinicore.ones(1, 3, 2, 4), q, k, v, decay, beta, state)",
    ],
    "selective_scan_backward": [
        "x, dt = infinicore.randn(1, 3, 2), infinicore.rand(1, 3, 2)",
        "b, c = infinicore.randn(1, 3, 4), infinicore.randn(1, 3, 4)",
        "a, state = -infinicore.rand(2, 4), infinicore.zeros(1, 2, 4)",
        "y = infinicore.selective_scan_backward(infinicore.ones(1, 3, 2), x, dt, a, b, c, state)",
    ],
    "sample_tokens": [
        "logits = infinicore.randn(2, 10)",
        "drawn = infinicore.tensor([0.5, 0.9], dtype=infinicore.float64)",
        "y = infinicore.sample_tokens(logits, random_val=drawn)",
    ],
}  # fmt: skip
