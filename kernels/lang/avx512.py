"""Single instructions of AVX-512 that elementary functions are built on, for vectors of whole registers."""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ..build import isa
from .vector import I32, Vector

REGISTER = 64  # bytes
ROUND_AS_SET = 4  # the operand that leaves the rounding mode alone
_KINDS = {types.float32: ("ps", ir.FloatType()), types.float64: ("pd", ir.DoubleType())}


def fills_registers(v):
    """Whether a value's type is a float vector of whole AVX-512 registers, on a CPU that has them."""
    if "avx512f" not in isa.features() or not isinstance(v, Vector) or v.dtype not in _KINDS:
        return False
    return v.lanes * v.dtype.bitwidth % (8 * REGISTER) == 0


def _by_registers(builder, name, kind, values, rest=()):
    """Call an instruction on each register of some vectors; `rest` are operands behind "keep nothing, all lanes"."""
    suffix, element = _KINDS[kind.dtype]
    count = 8 * REGISTER // kind.dtype.bitwidth
    register, mask = ir.VectorType(element, count), ir.IntType(count)
    signature = [register] * (len(values) + 1) + [mask] + [operand.type for operand in rest]
    symbol = f"llvm.x86.avx512.{name}.{suffix}.512"
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(register, signature), symbol)
    parts = []
    for first in range(0, kind.lanes, count):
        lanes = ir.Constant(ir.VectorType(I32, count), list(range(first, first + count)))
        own = [builder.shuffle_vector(v, v, lanes) for v in values]
        parts.append(builder.call(function, [*own, ir.Constant(register, None), ir.Constant(mask, -1), *rest]))
    while len(parts) > 1:
        joined = ir.Constant(ir.VectorType(I32, 2 * count), list(range(2 * count)))
        parts = [builder.shuffle_vector(a, b, joined) for a, b in zip(parts[::2], parts[1::2])]
        count *= 2
    return parts[0]


@intrinsic
def scalef(typingctx, p, k):
    """p * 2^k for integers k, rounded once: the exponent may leave what one factor 2^k can be."""
    if not fills_registers(p) or p != k:
        return None

    def codegen(context, builder, sig, args):
        return _by_registers(builder, "mask.scalef", p, args, (ir.Constant(I32, ROUND_AS_SET),))

    return p(p, k), codegen


@intrinsic
def rcp14(typingctx, q):
    """1 / q with 14 bits right, for q and 1 / q that are normal numbers."""
    if not fills_registers(q):
        return None
    return q(q), lambda context, builder, sig, args: _by_registers(builder, "rcp14", q, args)
