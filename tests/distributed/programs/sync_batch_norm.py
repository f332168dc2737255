"""SyncBatchNorm on ranks of uneven batches beside BatchNorm on all rows: results, statistics, gradients."""

import infinicore.distributed as dist
import numpy as np

import infinicore as ic
from infinicore import nn

group = dist.init()
R, N = group.rank, group.size
rng = np.random.default_rng(0)
rows = [3 + 2 * (r % 2) for r in range(N)]
X, W = (rng.standard_normal((sum(rows), 4, 3)) for _ in range(2))
mine = slice(sum(rows[:R]), sum(rows[: R + 1]))

for momentum in (0.1, None):
    whole = nn.BatchNorm1d(4, momentum=momentum).double()
    own = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.BatchNorm1d(4, momentum=momentum).double()))
    for _ in range(2):
        x, part = ic.from_numpy(X.copy()).requires_grad_(), ic.from_numpy(X[mine].copy()).requires_grad_()
        y, z = whole(x), own(part)
        (y * ic.from_numpy(W)).sum().backward()
        (z * ic.from_numpy(W[mine])).sum().backward()
    np.testing.assert_allclose(z.detach().numpy(), y.detach().numpy()[mine], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(part.grad.numpy(), x.grad.numpy()[mine], rtol=1e-8, atol=1e-9)
    for (name, a), b in zip(own[0].named_buffers(), whole.buffers()):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-9, err_msg=name)
    for p, q in zip(own.parameters(), whole.parameters()):
        np.testing.assert_allclose(dist.all_reduce(p.grad.clone()).numpy(), q.grad.numpy(), rtol=1e-8, atol=1e-9)
own.eval()
assert own(part).shape == part.shape
print("done")
