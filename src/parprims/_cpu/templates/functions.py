"""Functions that kernels for CPUs call: memory, the elementwise functions of the standard, and 16-bit floats.

A kernel for CPUs is one text: entry.py, this file, the functions that are written for a call, and the loops of a
primitive. Numba compiles it. A kernel reads an array as a pointer to its elements: an index is neither counted from the
end nor checked.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators

import math
import platform

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic
from numba.types import (
    boolean,
    complex64,
    complex128,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)

inf, nan = math.inf, math.nan


def function(pyfunc):
    return njit(pyfunc, nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)


# ---- Memory -----------------------------------------------------------------------------------------------------


@intrinsic
def load(typing, array, index):
    def generate(context, builder, signature, args):
        made = context.make_array(array)(context, builder, args[0])
        pointer = builder.gep(made.data, [args[1]], inbounds=True)
        return context.unpack_value(builder, array.dtype, pointer)

    return array.dtype(array, types.int64), generate


# Loads an element that no kernel writes: it is read once, however much is written meanwhile.
@intrinsic
def constant(typing, array, index):
    def generate(context, builder, signature, args):
        made = context.make_array(array)(context, builder, args[0])
        value = builder.load(builder.gep(made.data, [args[1]], inbounds=True))
        value.set_metadata("invariant.load", builder.module.add_metadata([]))
        return value

    return array.dtype(array, types.int64), generate


@intrinsic
def store(typing, array, index, value):
    def generate(context, builder, signature, args):
        made = context.make_array(array)(context, builder, args[0])
        pointer = builder.gep(made.data, [args[1]], inbounds=True)
        context.pack_value(builder, array.dtype, args[2], pointer)
        return context.get_dummy_value()

    return types.void(array, types.int64, array.dtype), generate


# Regions of memory that do not overlap: arrays, or rows of an array. Loops over several regions become SIMD code
# without a test at run time whether a store to one changes a load from another.
_REGIONS = 16


def _in_region(builder, instruction, region):
    domain = builder.module.add_metadata(["parprims"])
    regions = [builder.module.add_metadata([f"region {at}", domain]) for at in range(_REGIONS)]
    others = [one for at, one in enumerate(regions) if at != region]
    instruction.set_metadata("alias.scope", builder.module.add_metadata([regions[region]]))
    instruction.set_metadata("noalias", builder.module.add_metadata(others))


@intrinsic(prefer_literal=True)
def load_from(typing, region, array, index):
    def generate(context, builder, signature, args):
        made = context.make_array(array)(context, builder, args[1])
        value = builder.load(builder.gep(made.data, [args[2]], inbounds=True))
        _in_region(builder, value, region.literal_value)
        return context.data_model_manager[array.dtype].from_data(builder, value)

    return array.dtype(region, array, types.int64), generate


@intrinsic(prefer_literal=True)
def store_to(typing, region, array, index, value):
    def generate(context, builder, signature, args):
        made = context.make_array(array)(context, builder, args[1])
        data = context.data_model_manager[array.dtype].as_data(builder, args[3])
        written = builder.store(data, builder.gep(made.data, [args[2]], inbounds=True))
        _in_region(builder, written, region.literal_value)
        return context.get_dummy_value()

    return types.void(region, array, types.int64, array.dtype), generate


# Brings memory that is soon read to the nearest cache. The place may be outside of the array.
@intrinsic
def prefetch(typing, array, index):
    def generate(context, builder, signature, args):
        made = context.make_array(array)(context, builder, args[0])
        place = builder.bitcast(builder.gep(made.data, [args[1]]), ir.IntType(8).as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [place.type, *[ir.IntType(32)] * 3])
        fetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        builder.call(fetch, [place, *(ir.Constant(ir.IntType(32), one) for one in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


# ---- Choices ----------------------------------------------------------------------------------------------------


# Selects one of two computed values. Numba makes a branch of an expression with `if`, and compiles it for far longer.
@intrinsic
def select(typing, condition, one, other):
    def generate(context, builder, signature, args):
        return builder.select(args[0], args[1], args[2])

    kind = types.unliteral(one)
    return kind(types.boolean, kind, kind), generate


# ---- 16-bit floats, by their bits -------------------------------------------------------------------------------


def _reinterpreted(source, target):
    @intrinsic
    def reinterpret(typing, x):
        def generate(context, builder, signature, args):
            return builder.bitcast(args[0], context.get_value_type(target))

        return target(source), generate

    return reinterpret


as_float32, as_uint32 = _reinterpreted(uint32, float32), _reinterpreted(float32, uint32)
as_float64, as_uint64 = _reinterpreted(uint64, float64), _reinterpreted(float64, uint64)


@function
def bfloat16_value(bits):
    return as_float32(uint32(bits) << uint32(16))


@function
def bfloat16_bits(x):
    bits = as_uint32(float32(x))
    if x != x:
        return uint16(0x7FFF)
    return uint16((bits + uint32(0x7FFF) + ((bits >> uint32(16)) & uint32(1))) >> uint32(16))


# Instructions between float16 and float32. All processors with AVX2 have them, and all of ARM's. They ignore the modes
# of rounding and of subnormal numbers that the program sets.
@intrinsic
def _widened(typing, bits):
    def generate(context, builder, signature, args):
        return builder.fpext(builder.bitcast(args[0], ir.HalfType()), ir.FloatType())

    return float32(uint16), generate


@intrinsic
def _narrowed(typing, x):
    def generate(context, builder, signature, args):
        return builder.bitcast(builder.fptrunc(args[0], ir.HalfType()), ir.IntType(16))

    return uint16(float32), generate


_FEATURES = getattr(cpu_target.target_context.codegen(), "_tm_features", "")  # those that Numba compiles for
if platform.machine() in ("aarch64", "arm64") or "+f16c" in _FEATURES:

    @function
    def float16_value(bits):
        return _widened(uint16(bits))

    @function
    def float16_bits(x):
        x = float32(x)
        lost = uint16((as_uint32(x) >> uint32(16)) & uint32(0x8000) | uint32(0x7E00))
        return select(x != x, lost, _narrowed(x))

else:

    @function
    def float16_value(bits):
        sign = uint32(bits & uint16(0x8000)) << uint32(16)
        rest = uint32(bits & uint16(0x7FFF))
        if rest >= uint32(0x7C00):  # infinity and NaN
            return as_float32(sign | uint32(0x7F800000) | ((rest & uint32(0x3FF)) << uint32(13)))
        # The exponent is 112 too small for a float32; the product also normalises subnormal numbers.
        return as_float32(sign | (rest << uint32(13))) * float32(5.192296858534828e33)

    @function
    def float16_bits(x):
        bits = as_uint32(float32(x))
        sign = (bits >> uint32(16)) & uint32(0x8000)
        rest = bits & uint32(0x7FFFFFFF)
        if rest > uint32(0x7F800000):
            return uint16(sign | uint32(0x7E00))
        if rest >= uint32(0x477FF000):  # at least 65520, which rounds to infinity
            return uint16(sign | uint32(0x7C00))
        if rest < uint32(0x38800000):  # below 2^-14: a multiple of 2^-24
            shifted = as_uint32(as_float32(rest) + float32(0.5)) - uint32(0x3F000000)
            return uint16(sign | shifted)
        return uint16(
            sign | ((rest - uint32(0x38000000) + uint32(0xFFF) + ((rest >> uint32(13)) & uint32(1))) >> uint32(13))
        )


# ---- Elementwise functions, by the array API standard's names ---------------------------------------------------


@function
def maximum(a, b):
    return select((a != a) | (a > b), a, b)


@function
def minimum(a, b):
    return select((a != a) | (a < b), a, b)


@function
def absolute(a):
    return abs(a)


@function
def reciprocal(a):
    return type_of(a)(1) / a


# Divides as NumPy does, by zero too: an error of Numba's own division would end the kernel.
@function
def divide_complex(a, b):
    if abs(b.real) >= abs(b.imag):
        if abs(b.real) == 0:
            return complex(a.real / abs(b.real), a.imag / abs(b.real))
        ratio = b.imag / b.real
        size = b.real + b.imag * ratio
        return complex((a.real + a.imag * ratio) / size, (a.imag - a.real * ratio) / size)
    if abs(b.imag) >= abs(b.real):
        ratio = b.real / b.imag
        size = b.real * ratio + b.imag
        return complex((a.real * ratio + a.imag) / size, (a.imag * ratio - a.real) / size)
    return type_of(a)(complex(nan, nan))


@intrinsic
def type_of(typing, x):
    def generate(context, builder, signature, args):
        return context.get_dummy_value()

    return types.NumberClass(x)(x), generate


@function
def sign(a):
    if a != a:
        return a
    return type_of(a)(int64(a > 0) - int64(a < 0))


@function
def floor_divide(a, b):
    if (b == 0) | (a != a) | (b != b):
        return a / b
    rest = np.fmod(a, b)
    quotient = (a - rest) / b
    if rest != 0 and (rest < 0) != (b < 0):
        quotient -= type_of(a)(1)
    if quotient == 0:
        return math.copysign(type_of(a)(0), a / b)
    whole = np.floor(quotient)
    return type_of(a)(whole + 1 if quotient - whole > type_of(a)(0.5) else whole)


@function
def remainder(a, b):
    rest = np.fmod(a, b)
    if rest == 0:
        return math.copysign(type_of(a)(0), b)
    return rest + b if (rest < 0) != (b < 0) else rest


@function
def floor_divide_of_integers(a, b):
    if b == 0:
        return type_of(a)(0)
    if b + type_of(b)(1) == 0:  # -1 of a signed integer; the largest unsigned one divides as any other
        if type_of(b)(0) > b:
            return type_of(a)(type_of(a)(0) - a)
    return type_of(a)(a // b)


@function
def remainder_of_integers(a, b):
    if b == 0:
        return type_of(a)(0)
    if type_of(b)(0) > b and b + type_of(b)(1) == 0:
        return type_of(a)(0)
    return type_of(a)(a % b)


# A shift by the width or more leaves only the sign.
@function
def bitwise_left_shift(a, b, width):
    if (b < 0) | (b >= width):
        return type_of(a)(0)
    return type_of(a)(a << b)


@function
def bitwise_right_shift(a, b, width):
    if (b < 0) | (b >= width):
        return type_of(a)(-1) if a < 0 else type_of(a)(0)
    return type_of(a)(a >> b)


@function
def isnan(a):
    return a != a


@function
def isfinite(a):
    return a - a == 0


@function
def isinf(a):
    return (a == a) & (a - a != 0)


@function
def signbit(a):
    return math.copysign(1.0, a) < 0


@function
def logaddexp(a, b):
    if a == b:
        return type_of(a)(a + type_of(a)(0.69314718055994530942))
    return maximum(a, b) + math.log1p(math.exp(-abs(a - b)))


@function
def exp2(a):
    return type_of(a)(2) ** a


@function
def trunc(a):
    return type_of(a)(np.trunc(a))


@function
def round(a):
    return type_of(a)(np.rint(a))


@function
def floor(a):
    return type_of(a)(np.floor(a))


@function
def ceil(a):
    return type_of(a)(np.ceil(a))


@function
def pow(a, b):
    return a**b


@function
def log2(a):
    # Numba's own log2 of float32 does not compile beside its log2 of float64 in one kernel.
    return type_of(a)(np.log2(np.float64(a)))


@function
def gamma(a):
    # Python's gamma has an error at negative infinity and at its poles; here the result is NaN, and infinite at zeros.
    return select(a == 0, type_of(a)(1) / a, type_of(a)(math.gamma(a)))


@function
def nextafter_of_32_bits(a, b):
    if (a != a) | (b != b):
        return a + b
    if a == b:
        return b
    if a == 0:
        return math.copysign(as_float32(uint32(1)), b)
    bits = as_uint32(a)
    return as_float32(uint32(bits + uint32(1)) if (a < b) == (a > 0) else uint32(bits - uint32(1)))


@function
def nextafter_of_64_bits(a, b):
    return np.nextafter(a, b)


@function
def lgamma(a):
    return type_of(a)(math.lgamma(a))


cbrt, erf, erfc = np.cbrt, math.erf, math.erfc
sqrt, exp, expm1, log, log1p, log10 = np.sqrt, np.exp, np.expm1, np.log, np.log1p, np.log10
sin, cos, tan, asin, acos, atan = np.sin, np.cos, np.tan, np.arcsin, np.arccos, np.arctan
sinh, cosh, tanh, asinh, acosh, atanh = np.sinh, np.cosh, np.tanh, np.arcsinh, np.arccosh, np.arctanh
atan2, hypot, copysign = np.arctan2, np.hypot, np.copysign
