"""What the suite `ops` calls of rows whose inputs do not follow from their kind: one line an op.

`name: arguments` is the call of both sides, \
`name: arguments = expression` names PyTorch's in terms of the inputs `x0`,
`x1`, ... where it has none of that name. A tensor is its kind and shape: `f[n,n]` of normal numbers, \
`u` between 0 and
1, `p` between 0.5 and 2, `c` around 1, `g` between 1.5 and 6, `i<8` integers below 8, `o` a permutation of 0, 1, ...,
`b` bools, `d` a positive definite matrix, `L` factors of one and `P` their pivots, `s` sorted numbers; `f^` is
transposed. `n` is 1024 and `s(large,small)` the first for a million elements; 8 and the second for 64.
Several lines of one op are several cases, \
named by what follows the name in brackets. Behind a bar stands what else is
to be known: `float` (no 16-bit dtypes), `int` (integers only), `random`, `ties` and `duplicates` (results may rightly
differ), `second` (of several results, the second is compared).
"""

CALLS = """
reshape: f[n,n], (-1,)
view: f[n,n], (-1,)
flatten: f[n,n]
ravel: f[n,n]
unflatten: f[n,n], 1, (2, -1)
squeeze: f[n,1,n]
unsqueeze: f[n,n], 1
permute: f[s(8,2),s(16,4),s(8192,8)], (2, 0, 1)
transpose: f[n,n], 0, 1
swapaxes: f[n,n], 0, 1
swapdims: f[n,n], 0, 1
t: f[n,n]
movedim: f[s(8,2),s(16,4),s(8192,8)], 0, 2
moveaxis: f[s(8,2),s(16,4),s(8192,8)], 0, 2
expand: f[n,1], (n, n)
unfold: f[n,n], 1, 4, 2
narrow: f[n,n], 1, 1, 4
select: f[n,n], 0, 1
split: f[n,n], s(256,2)
chunk: f[n,n], 4
diagonal: f[n,n]
unbind: f[s(8,4),s(131072,16)]
silu_and_mul: f[n,2*n] = F.silu(x0[..., :n]) * x0[..., n:]
clamp: f[n,n], -1.0, 1.0
gelu_tanh: f[n,n] = F.gelu(x0, approximate='tanh')
swiglu: f[n,n], f[n,n] = x0 * F.silu(x1)
gated_sigmoid: f[n,n], f[n,n] = x0 * torch.sigmoid(x1)
cast: f[n,n], float64 = x0.to(torch.float64)
threshold: f[n,n], 0.5, 0.0
where: b[n,n], f[n,n], f[n,n]
trunc_divide: i<100[n,n], p<9[n,n] = torch.div(x0, x1, rounding_mode='trunc')
rearrange: f^[n,n] = x0.contiguous()
cat: [f[n,n], f[n,n]]
stack: [f[n,n], f[n,n]]
masked_fill: f[n,n], b[n,n], 2.0
tril: f[n,n]
triu: f[n,n]
flip: f[n,n], (1,)
roll: f[n,n], 3, 1
one_hot: i<32[s(32768,2)], 32
repeat_index: i<4[s(32768,16)], s(32768,16) = torch.repeat_interleave(x0)
repeat_interleave: f[s(512,8),n], 2, 1
repeat: f[s(512,4),n], (2, 1)
tile: f[s(512,4),n], (2, 1)
broadcast_to: f[n,1], (n, n)
pad: f[n,n], (1, 1)
polygamma: 1, p[n,n]
trigamma: p[n,n] = torch.polygamma(1, x0)
mvlgamma: g[n,n], 2
zeta: g[n,n], g[n,n]
logit: u[n,n], 1e-6
median: f[n,n], 1
nanmedian: f[n,n], 1
kthvalue: f[n,n], 3
mode: f[n,s(64,8)]
quantile: f[n,n], 0.3, 1 | float
nanquantile: f[n,n], 0.3, 1 | float
msort: f[n,n]
searchsorted: s[n], f[n,n]
bucketize: f[n,n], s[n]
isin: f[n,n], f[s(100,8)]
unique: f[s(65536,64)]
unique_consecutive: s[n*n]
bincount: i<256[n*n] | int
histc: f[n*n], 64, -3, 3 | float
histogram: f[n*n], 64, range=(-3.0, 3.0) | float
argwhere: b[n,n]
nonzero: b[n,n]
atleast_1d: f[n,n]
atleast_2d: f[n,n]
atleast_3d: f[n,n]
hstack: [f[n,n], f[n,n]]
vstack: [f[n,n], f[n,n]]
dstack: [f[n,n], f[n,n]]
column_stack: [f[n,n], f[n,n]]
block_diag: f[n,s(512,4)], f[s(512,4),n]
broadcast_tensors: f[n,1], f[n]
meshgrid: [f[n], f[n]]
cartesian_prod: f[n], f[n]
combinations: f[s(1024,12)]
tensor_split: f[n,n], 4
hsplit: f[n,n], 4
vsplit: f[n,n], 4
dsplit: f[s(8,2),s(16,4),s(8192,8)], 4
narrow_copy: f[n,n], 1, 1, 4
fliplr: f[n,n]
flipud: f[n,n]
rot90: f[n,n], 1, (0, 1)
diag_embed: f[s(16,1),s(256,8)]
diag: f[n,n]
diagflat: f[n]
vander: p[n], s(64,8)
unravel_index: i<64[n,n], (8, 8)
select_scatter: f[n,n], f[n], 0, 1
slice_scatter: f[n,n], f[n,n//2], 1, 0, n, 2
diagonal_scatter: f[n,n], f[n]
unfold_copy: f[n,n], 1, 4, 2
split_copy: f[n,n], s(256,2)
diagonal_copy: f[n,n]
alias_copy: f[n,n]
as_strided_copy: f[n,n], (8, 8), (8, 1)
as_strided_scatter: f[n,n], f[8,8], (8, 8), (8, 1)
expand_copy: f[n,1], (n, n)
permute_copy: f[s(8,2),s(16,4),s(8192,8)], (2, 0, 1)
squeeze_copy: f[n,1,n]
unsqueeze_copy: f[n,n], 1
t_copy: f[n,n]
transpose_copy: f[n,n], 0, 1
unbind_copy: f[s(8,4),s(131072,16)]
view_copy: f[n,n], (-1,)
clamp_min: f[n,n], -1.0
clamp_max: f[n,n], 1.0
constant_pad_nd: f[n,n], (1, 2), 0.5
fill: f[n,n], 0.5
sum_to_size: f[n,n], (1, n)
linalg_cross: f[n,n,3], f[n,n,3]
linalg_inv_ex: d[s(256,8),s(256,8)]
linalg_cholesky_ex: d[s(256,8),s(256,8)]
linalg_solve_ex: d[s(256,8),s(256,8)], f[s(256,8),s(64,8)]
linalg_lu_factor_ex: d[s(256,8),s(256,8)]
triangular_solve: f[s(256,8),s(64,8)], d[s(256,8),s(256,8)]
mha: f[1,s(512,4),s(16,2),s(64,8)], f[1,s(512,4),s(16,2),s(64,8)], f[1,s(512,4),s(16,2),s(64,8)], is_causal=True, \
scale=0.125 = F.scaled_dot_product_attention(x0.transpose(1, 2), x1.transpose(1, 2), x2.transpose(1, 2), \
is_causal=True, scale=0.125).transpose(1, 2)
scaled_dot_product_attention: f[1,s(16,2),s(512,4),s(64,8)], f[1,s(16,2),s(512,4),s(64,8)], \
f[1,s(16,2),s(512,4),s(64,8)], is_causal=True
asum: f[n*n] = torch.linalg.vector_norm(x0, 1)
nrm2: f[n*n] = torch.linalg.vector_norm(x0)
blas_dot: f[n*n], f[n*n] = torch.dot(x0, x1)
blas_amax: f[n*n] = torch.argmax(torch.abs(x0)) + 1
blas_amin: f[n*n] = torch.argmin(torch.abs(x0)) + 1
bmm_strided: f[s(16,1),s(256,8),s(256,8)], f[s(16,1),s(256,8),s(256,8)] = torch.bmm(x0, x1)
mul_scalar: f[n,n], 1.5 = torch.mul(x0, 1.5)
batch_norm: f[s(16,2),s(64,2),s(32,4),s(32,4)], f[s(64,2)], p[s(64,2)], f[s(64,2)], f[s(64,2)]
batch_norm (training): f[s(16,2),s(64,2),s(32,4),s(32,4)], None, None, f[s(64,2)], f[s(64,2)], training=True
group_norm: f[s(16,2),s(64,2),s(32,4),s(32,4)], 2, f[s(64,2)], f[s(64,2)]
conv2d: f[s(4,1),s(64,2),s(56,4),s(56,8)], f[s(64,2),s(64,2),3,3], f[s(64,2)], 1, 1
conv2d (first layer): f[s(4,1),s(3,2),s(224,4),s(224,8)], f[s(64,2),s(3,2),s(7,3),s(7,3)], None, 2, 3
conv2d (1 x 1): f[s(4,1),s(256,2),s(28,4),s(28,8)], f[s(64,2),s(256,2),1,1]
conv2d (depthwise): f[s(4,1),s(64,2),s(56,4),s(56,8)], f[s(64,2),1,3,3], None, 1, 1, 1, s(64,2)
conv1d: f[s(4,1),s(256,2),s(1024,32)], f[s(256,2),s(256,2),3], f[s(256,2)], 1, 1
conv3d: f[1,s(16,1),s(16,4),s(56,4),s(56,4)], f[s(16,2),s(16,1),3,3,3], None, 1, 1
conv_transpose1d: f[s(4,1),s(256,2),s(256,32)], f[s(256,2),s(128,2),4], None, 2, 1
conv_transpose2d: f[s(4,1),s(64,2),s(28,4),s(28,8)], f[s(64,2),s(64,2),4,4], None, 2, 1
conv_transpose3d: f[1,s(16,1),s(8,4),s(28,4),s(28,4)], f[s(16,1),s(16,1),2,2,2], None, 2
conv_input_backward: f[s(4,1),s(64,2),s(56,4),s(56,8)], f[s(64,2),s(64,2),3,3], (s(4,1), s(64,2), s(56,4), \
s(56,8)), (1, 1), (1, 1), (1, 1), 1 = torch.nn.grad.conv2d_input((s(4,1), s(64,2), s(56,4), s(56,8)), x1, x0, \
padding=1)
conv_weight_backward: f[s(4,1),s(64,2),s(56,4),s(56,8)], f[s(4,1),s(64,2),s(56,4),s(56,8)], (s(64,2), s(64,2), 3, \
3), (1, 1), (1, 1), (1, 1), 1 = torch.nn.grad.conv2d_weight(x1, (s(64,2), s(64,2), 3, 3), x0, padding=1)
linalg_inv: d[s(256,8),s(256,8)]
lapack_solve: d[s(256,8),s(256,8)], f[s(256,8),s(64,8)] = torch.linalg.solve(x0, x1)
linalg_det: d[s(64,1),s(32,8),s(32,8)]
linalg_slogdet: d[s(256,8),s(256,8)]
linalg_cholesky: d[s(256,8),s(256,8)]
linalg_eigh: d[s(128,8),s(128,8)]
linalg_eigvalsh: d[s(128,8),s(128,8)]
linalg_qr: f[s(256,8),s(128,8)], 'r'
linalg_svd: f[s(128,8),s(128,8)], False | second
linalg_svdvals: f[s(128,8),s(128,8)]
linalg_pinv: f[s(128,8),s(128,8)]
linalg_vector_norm: f[n,n], 2, 1
linalg_matrix_norm: f[s(256,1),s(64,8),s(64,8)]
linalg_norm: f[n,n]
linalg_matrix_rank: f[s(128,8),s(128,8)]
linalg_cond: d[s(128,8),s(128,8)]
cdist: f[s(512,8),s(64,8)], f[s(512,8),s(64,8)]
pdist: f[s(512,8),s(64,8)]
seeded_dropout: f[n,n], 0.3, 7 = F.dropout(x0, 0.3) | random
seeded_uniform: f[n,n], 0.0, 1.0, 7 = x0.uniform_() | random float
seeded_normal: f[n,n], 0.0, 1.0, 7 = x0.normal_() | random float
triangular_solution: d[s(256,8),s(256,8)], f[s(256,8),s(64,8)], upper=False, \
unitriangular=False = torch.linalg.solve_triangular(x0, x1, upper=False)
linalg_lu_factor: d[s(256,8),s(256,8)]
embedding: i<s(32000,8)[s(512,8)], f[s(32000,8),s(2048,8)]
embedding_backward: f[s(512,8),s(2048,8)], i<s(1000,8)[s(512,8)], \
s(1000,8) = torch.ops.aten.embedding_dense_backward(x0, x1, s(1000,8), -1, False)
index_select: f[n,n], 0, i<n[n]
index_select (columns): f[n,n], 1, i<n[n]
index_select_backward: f[n,n], 0, i<n[n], n = torch.zeros(n, n, dtype=x0.dtype).index_add_(0, x1, x0)
index_add: f[n,n], 0, i<n[n], f[n,n]
index: f[n,n], (i<n[n],) = x0[x1]
index (mask): f[n,n], (b[n,n],) = x0[x1]
index_backward: f[n,n], (i<n[n],), (n, n) = torch.zeros(n, n, dtype=x0.dtype).index_put_((x1,), x0, accumulate=True)
index_put: f[n,n], (o[n],), f[n,n]
index_put (add): f[n,n], (i<n[n],), f[n,n], True
linalg_solve: d[s(256,8),s(256,8)], f[s(256,8),s(64,8)]
linalg_solve_triangular: d[s(256,8),s(256,8)], f[s(256,8),s(64,8)], upper=False
lu_solve: f[s(256,8),s(64,8)], L[s(256,8),s(256,8)], P[s(256,8)]
linalg_lu_solve: L[s(256,8),s(256,8)], P[s(256,8)], f[s(256,8),s(64,8)]
cholesky_solve: f[s(256,8),s(64,8)], d[s(256,8),s(256,8)]
cholesky_inverse: d[s(256,8),s(256,8)]
linalg_lstsq: f[s(256,8),s(64,8)], f[s(256,8),s(8,8)]
linalg_lu: d[s(256,8),s(256,8)]
linalg_vecdot: f[n,n], f[n,n]
linalg_tensorinv: d[s(256,8),s(256,8)], 1
linalg_tensorsolve: d[s(256,8),s(256,8)], f[s(256,8)]
linear: f[s(128,8),s(2048,8)], f[s(2048,8),s(2048,8)], f[s(2048,8)]
activation_backward: f[n,n], f[n,n], 'relu' = torch.where(x1 > 0, x0, 0.0)
linear_cross_entropy: f[s(128,8),s(256,8)], f[s(4000,8),s(256,8)], i<8[s(128,8)] = F.cross_entropy(F.linear(x0, \
x1), x2)
cross_entropy: f[n,n], i<n[n]
nll_loss: f[n,n], i<n[n]
mse_loss: f[n,n], f[n,n]
l1_loss: f[n,n], f[n,n]
smooth_l1_loss: f[n,n], f[n,n]
huber_loss: f[n,n], f[n,n]
binary_cross_entropy: u[n,n], u[n,n]
binary_cross_entropy_with_logits: f[n,n], u[n,n], 1.0 = F.binary_cross_entropy_with_logits(x0, x1)
kl_divergence: f[n,n], u[n,n] = F.kl_div(x0, x1)
kl_divergence_log: f[n,n], f[n,n] = F.kl_div(x0, x1, log_target=True)
matmul: f[s(512,8),s(512,8)], f[s(512,8),s(512,8)]
logdet: d[s(256,8),s(256,8)]
linalg_matrix_power: d[s(256,8),s(256,8)], 3
linalg_matrix_exp: u[s(128,8),s(128,8)]
linalg_multi_dot: [f[s(256,8),s(256,8)], f[s(256,8),s(64,8)], f[s(64,8),s(256,8)]]
qr: f[s(256,8),s(128,8)] = torch.linalg.qr(x0) | second
svd: f[s(128,8),s(128,8)] = torch.svd(x0) | second
pinverse: f[s(128,8),s(128,8)]
rms_norm: f[n,n], f[n], 1e-6 = F.rms_norm(x0, (n,), x1, 1e-6)
add_rms_norm: f[n,n], f[n,n], f[n], 1e-6 = F.rms_norm(x0 + x1, (n,), x2, 1e-6)
layer_norm: f[n,n], (n,), f[n], f[n]
multi_norm: [f[n,n], f[n]] = torch.nn.utils.get_total_norm([x0, x1])
isclose: f[n,n], f[n,n]
allclose: f[n,n], f[n,n]
equal: f[n,n], f[n,n]
nan_to_num: f[n,n]
ldexp: f[n,n], i<8[n,n]
float_power: p[n,n], 2.5
frexp: f[n,n]
rsub: f[n,n], f[n,n]
sinc: f[n,n]
deg2rad: f[n,n]
rad2deg: f[n,n]
isinf: f[n,n]
isposinf: f[n,n]
isneginf: f[n,n]
isreal: f[n,n]
gather: f[n,n], 1, i<n[n,n]
gather (columns): f[n,n], 0, i<n[n,n]
gather_backward: f[n,n], 1, i<n[n,n], (n, n) = torch.zeros(n, n, dtype=x0.dtype).scatter_add_(1, x1, x0)
scatter: f[n,n], 1, o[n,n], f[n,n]
scatter_add: f[n,n], 1, i<n[n,n], f[n,n]
take: f[n,n], i<n[n,n]
put: f[n,n], i<n[n], f[n] | duplicates
take_along_dim: f[n,n], i<n[n,n], 1
masked_select: f[n,n], b[n,n]
masked_scatter: f[n,n], b[n,n], f[n,n]
index_copy: f[n,n], 0, o[n], f[n,n]
index_fill: f[n,n], 0, i<n[n], 2.0
scatter_reduce: f[n,n], 1, i<n[n,n], f[n,n], 'amax'
index_reduce: f[n,n], 0, i<n[n], f[n,n], 'amax'
avg_pool1d: f[s(16,2),s(64,2),s(1024,16)], 2
avg_pool2d: f[s(4,1),s(64,1),s(64,8),s(64,8)], 2
avg_pool3d: f[s(4,1),s(16,1),s(16,4),s(32,4),s(32,4)], 2
max_pool1d: f[s(16,2),s(64,2),s(1024,16)], 3, 2, 1
max_pool2d: f[s(4,1),s(64,1),s(64,8),s(64,8)], 3, 2, 1
max_pool2d (2): f[s(4,1),s(64,1),s(64,8),s(64,8)], 2
max_pool3d: f[s(4,1),s(16,1),s(16,4),s(32,4),s(32,4)], 2
adaptive_avg_pool1d: f[s(16,2),s(64,2),s(1024,16)], 4
adaptive_avg_pool2d: f[s(16,1),s(256,4),s(16,4),s(16,4)], 1
adaptive_avg_pool3d: f[s(4,1),s(16,1),s(16,4),s(32,4),s(32,4)], 2
adaptive_max_pool1d: f[s(16,2),s(64,2),s(1024,16)], 4
adaptive_max_pool2d: f[s(16,1),s(256,4),s(16,4),s(16,4)], 2
adaptive_max_pool3d: f[s(4,1),s(16,1),s(16,4),s(32,4),s(32,4)], 2
avg_pool_backward: f[s(4,1),s(64,1),s(32,4),s(32,4)], (s(4,1), s(64,1), s(64,8), s(64,8)), (2, 2), (2, 2), (0, 0), \
False, True = torch.ops.aten.avg_pool2d_backward(x0, torch.empty(s(4,1), s(64,1), s(64,8), s(64,8), \
dtype=x0.dtype), [2, 2], [2, 2], [0, 0], False, True, None)
mm: f[s(512,8),s(512,8)], f[s(512,8),s(512,8)]
bmm: f[s(16,1),s(256,8),s(256,8)], f[s(16,1),s(256,8),s(256,8)]
mv: f[n,n], f[n]
dot: f[n*n], f[n*n]
inner: f[s(512,8),s(512,8)], f[s(512,8),s(512,8)]
outer: f[n], f[n]
addmm: f[s(512,8)], f[s(512,8),s(512,8)], f[s(512,8),s(512,8)]
addmv: f[n], f[n,n], f[n]
addr: f[n,n], f[n], f[n]
baddbmm: f[s(16,1),s(256,8),s(256,8)], f[s(16,1),s(256,8),s(256,8)], f[s(16,1),s(256,8),s(256,8)]
addbmm: f[s(256,8),s(256,8)], f[s(16,1),s(256,8),s(256,8)], f[s(16,1),s(256,8),s(256,8)]
chain_matmul: f[s(256,8),s(256,8)], f[s(256,8),s(64,8)], f[s(64,8),s(256,8)]
einsum: 'bij,bjk->bik', f[s(16,1),s(256,8),s(256,8)], f[s(16,1),s(256,8),s(256,8)]
tensordot: f[s(256,8),s(16,2),s(16,4)], f[s(16,2),s(16,4),s(256,8)], 2
kron: f[s(32,2),s(32,4)], f[s(32,2),s(32,4)]
trace: f[n,n]
cross: f[s(349525,21),3], f[s(349525,21),3], -1
cov: f[s(64,8),s(16384,8)]
corrcoef: f[s(64,8),s(16384,8)]
norm: f[n,n], 2, 1
norm (all): f[n,n]
dist: f[n,n], f[n,n], 2
renorm: f[n,n], 2, 0, 3.0
cumsum: f[n,n], 1
cumsum (columns): f[n,n], 0
cumprod: c[n,n], 1
logcumsumexp: f[n,n], 1
cummax: f[n,n], 1
cummin: f[n,n], 1
diff: f[n,n]
trapezoid: f[n,n]
cumulative_trapezoid: f[n,n]
logsumexp: f[n,n], 1
logsumexp (columns): f[n,n], 0
softmax: f[n,n], -1
softmax (columns): f[n,n], 0
softmax_backward: f[n,n], u[n,n], -1 = torch.ops.aten._softmax_backward_data(x0, x1, -1, x0.dtype)
log_softmax: f[n,n], -1
log_softmax_backward: f[n,n], f[n,n], -1 = torch.ops.aten._log_softmax_backward_data(x0, x1, -1, x0.dtype)
causal_softmax: f[n,n] = torch.softmax(x0.masked_fill(above, float('-inf')), -1)
sort: f[n,n]
sort (one row): f[n*n]
argsort: f[n,n] | ties
argsort (one row): f[n*n] | ties
topk: f[n,n], s(32,4)
topk (vocabulary): f[s(8,2),s(131072,32)], s(50,4)
prod: c[n,n], 1
any: b[n,n], 1
all: b[n,n], 1
count_nonzero: b[n,n], 1
aminmax: f[n,n]
"""
