"""Elementwise functions of NumPy, PyTorch and SciPy that the standard lacks, as functions of a namespace and operands.

The namespace is a library's, or that of symbolic scalars. A function works on any of them. The file is long because it
is one table of short functions.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import array_api_compat

from parprims._core.arrays import (
    SIXTEEN_BIT_FLOATS,
    Namespace,
    device,
    dtype_name,
    is_jax,
    library,
    library_title,
    mode,
)
from parprims._operators.foreign.names import SPECIAL, Untranslatable, standard_name


def named(xp: Namespace, name: str, home: str = "") -> Callable[..., Any]:
    """Return the function of a namespace for the name that a function has in another library, its home.

    Raises Untranslatable if there is none.
    """
    name = standard_name(name)
    composed = OF_TORCH.get(name) if home == "torch" else _OF_NUMPY.get(name) if home == "numpy" else None
    composed = COMPOSED.get(name) if composed is None else composed
    if composed is not None:
        return functools.partial(composed, xp)
    found = getattr(xp, name, None)
    if found is None and name in SPECIAL:
        found = _special(xp, name)
    if not callable(found):
        raise Untranslatable(f"it calls {name}, which has no translation")
    function: Callable[..., Any] = found
    return function


_PACKAGES = {"numpy": "scipy.special", "jax": "jax.scipy.special", "cupy": "cupyx.scipy.special"}
_IN_SCIPY = {"lgamma": "gammaln"}


def _special(xp: Namespace, name: str) -> Callable[..., Any]:
    """Return a function of `SPECIAL` from the library's own package of special functions."""
    found, package = None, _PACKAGES.get(library(xp))
    if library(xp) == "torch" and name in _LACKS_TORCH:
        return functools.partial(_LACKS_TORCH[name], xp)
    if package is not None:
        with contextlib.suppress(ImportError):
            found = getattr(importlib.import_module(package), _IN_SCIPY.get(name, name), None)
    if found is None:
        needed = f" without {package}" if package else ""
        raise Untranslatable(f"it calls {name}, which {library_title(xp)} does not have{needed}")
    special: Callable[..., Any] = found
    if is_jax(xp):
        return special
    in_32_bits = functools.partial(_in_32_bits, xp, special)
    return in_32_bits if name != "lgamma" else lambda x: xp.where(x == -math.inf, math.inf, in_32_bits(x))


def _in_32_bits(xp: Namespace, function: Callable[..., Any], x: Any) -> Any:
    """Return a function of SciPy, which has none of 16-bit floats."""
    if dtype_name(x.dtype) not in SIXTEEN_BIT_FLOATS:
        return function(x)
    return xp.astype(xp.asarray(function(xp.astype(x, xp.float32))), x.dtype)


def _cube_root(xp: Namespace, x: Any) -> Any:
    size = abs(x)
    root = xp.pow(size, 1.0 / 3.0)
    better = root - (root * root * root - size) / (3.0 * root * root)
    better = xp.where((size == 0) | ~xp.isfinite(better), root, better)
    return xp.where(x < 0, -better, better)


def _gamma(xp: Namespace, x: Any) -> Any:
    """Return the gamma function, NaN at its poles but zero, from the logarithm of its size in 64 bits."""
    dtype, x = x.dtype, xp.astype(x, xp.float64)
    below = xp.floor(x)
    size = xp.exp(named(xp, "lgamma")(x))
    negative = x < 0
    found = xp.where(negative & (xp.remainder(below, 2.0) == 1.0), -size, size)
    found = xp.where(x == 0, 1.0 / x, xp.where(negative & (x == below), math.nan, found))
    return xp.astype(found, dtype)


_LACKS_TORCH = {"cbrt": _cube_root, "gamma": _gamma}


def _either(name: str) -> Callable[..., Any]:
    """Return PyTorch's max or min of two arrays. With a number as second argument, PyTorch reduces an axis."""

    def of_two(xp: Namespace, x: Any, y: Any) -> Any:
        if not hasattr(y, "dtype"):
            raise Untranslatable(f"it calls {name[:3]} of an axis, which is not elementwise")
        return getattr(xp, name)(x, y)

    return of_two


def fmod(xp: Namespace, x: Any, y: Any) -> Any:
    """Return the remainder of a division rounded toward zero, from the remainder of a division rounded down."""
    if xp.isdtype((x if hasattr(x, "dtype") else y).dtype, "integral"):
        rest = xp.remainder(x, y)
        return xp.where((rest != 0) & ((x < 0) != (y < 0)), rest - y, rest)
    if array_api_compat.is_cupy_namespace(xp):  # its remainder of a division by infinity is NaN
        return xp.fmod(x, y)
    rest = xp.remainder(abs(x), abs(y))
    return xp.where(x < 0, -rest, rest)


def _not_nan(name: str) -> Callable[..., Any]:
    holds = operator.ge if name == "maximum" else operator.le

    def chosen(xp: Namespace, x: Any, y: Any) -> Any:
        if not (hasattr(x, "dtype") and hasattr(y, "dtype")):  # a number of Python
            x, y = (x, y) if hasattr(x, "dtype") else (y, x)
            return x if y != y else xp.where(holds(x, y), x, y)
        return xp.where(x != x, y, xp.where(y != y, x, getattr(xp, name)(x, y)))

    return chosen


def _dtype(xp: Namespace, name: str) -> Any:
    """Return a dtype of a namespace. JAX has 64 bits only where its setting allows them, and warns elsewhere."""
    if is_jax(xp) and not mode(xp):
        name = name.replace("64", "32")
    return getattr(xp, name)


def _where(whole: str, real: str) -> Callable[..., Any]:
    """Return where of a library in which numbers of Python have these dtypes if no array is beside them."""

    def chosen(xp: Namespace, condition: Any, x: Any, y: Any) -> Any:
        if not hasattr(x, "dtype") and not hasattr(y, "dtype"):
            kinds = {type(x), type(y)}
            name = "bool" if kinds == {bool} else whole if kinds <= {bool, int} else real
            x, y = (xp.asarray(one, dtype=_dtype(xp, name), device=device(condition)) for one in (x, y))
        return xp.where(condition, x, y)

    return chosen


def _select(xp: Namespace, conditions: Any, choices: Any, default: Any = 0) -> Any:
    """Return, as numpy.select, the choice of the first condition that is true."""
    like, result = next((one for one in choices if hasattr(one, "dtype")), None), default
    for condition, choice in zip(conditions[::-1], choices[::-1], strict=True):
        numbers = not hasattr(choice, "dtype") and not hasattr(result, "dtype")
        if numbers and like is not None:  # beside an array, numbers of Python have its dtype
            kinds = "real floating" if float in (type(choice), type(result)) else ("numeric", "bool")
            if not xp.isdtype(like.dtype, kinds):
                raise Untranslatable("it selects among integers and a float")
            result = xp.where(condition, xp.full_like(like, choice), xp.full_like(like, result))
        else:
            result = _OF_NUMPY["where"](xp, condition, choice, result)
    return result


def _piecewise(xp: Namespace, x: Any, conditions: Any, functions: Any) -> Any:
    """Return, as numpy.piecewise, the function of the last condition that is true; one more is for all the rest."""
    conditions = [*conditions] if isinstance(conditions, (tuple, list)) else [conditions]
    values = [xp.astype(one(x), x.dtype) if callable(one) else xp.full_like(x, one) for one in functions]
    if len(values) == len(conditions):
        values.append(xp.zeros_like(x))
    if len(values) != len(conditions) + 1:
        raise ValueError(f"{len(functions)} functions for {len(conditions)} conditions")
    result = values.pop()
    for condition, value in zip(conditions, values, strict=True):
        result = xp.where(condition, value, result)
    return result


def _sigmoid(xp: Namespace, x: Any) -> Any:
    return 1.0 / (1.0 + xp.exp(-x))


def _rounded(xp: Namespace, x: Any, decimals: int = 0) -> Any:
    if decimals:
        raise Untranslatable("it rounds to decimals")
    return xp.round(x)


def _clip(xp: Namespace, x: Any, min: Any = None, max: Any = None, *, a_min: Any = None, a_max: Any = None) -> Any:
    return xp.clip(x, a_min if min is None else min, a_max if max is None else max)


def _clamp_min(xp: Namespace, x: Any, min: Any) -> Any:
    return xp.clip(x, min, None)


def _clamp_max(xp: Namespace, x: Any, max: Any) -> Any:
    return xp.clip(x, None, max)


def _between(xp: Namespace, x: Any, low: Any, high: Any) -> Any:
    return xp.where(x < low, low, xp.where(x > high, high, x))


def _fresh(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of torch.nn.functional with its option to work in place, which is refused."""

    def run(xp: Namespace, *args: Any, inplace: bool = False, **options: Any) -> Any:
        if inplace:
            raise Untranslatable("it changes an array in place")
        return function(xp, *args, **options)

    return run


def _gelu(xp: Namespace, x: Any, approximate: str = "none") -> Any:
    if approximate == "tanh":
        return 0.5 * x * (1.0 + xp.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    return 0.5 * x * named(xp, "erfc")(-0.7071067811865476 * x)


def _softplus(xp: Namespace, x: Any, beta: Any = 1.0, threshold: Any = 20.0) -> Any:
    scaled = x * beta
    return xp.where(scaled > threshold, x, xp.log1p(xp.exp(scaled)) / beta)


def _log_sigmoid(xp: Namespace, x: Any) -> Any:
    return xp.where(x > 0, 0.0, x) - xp.log1p(xp.exp(-abs(x)))


def _logit(xp: Namespace, x: Any, eps: Any = None) -> Any:
    x = x if eps is None else _between(xp, x, eps, 1.0 - eps)
    apart = 2.0 * (x - 0.5)
    return xp.where(abs(apart) < 0.4, xp.log1p(apart) - xp.log1p(-apart), xp.log(x / (1.0 - x)))


def _elu(xp: Namespace, x: Any, alpha: Any = 1.0, scale: Any = 1.0, input_scale: Any = 1.0) -> Any:
    return xp.where(x > 0, scale * x, scale * alpha * xp.expm1(x * input_scale))


def _celu(xp: Namespace, x: Any, alpha: Any = 1.0) -> Any:
    return xp.where(x > 0, x, alpha * xp.expm1(x / alpha))


def _selu(xp: Namespace, x: Any) -> Any:
    return xp.where(x > 0, 1.0507009873554805 * x, 1.7580993408473766 * xp.expm1(x))


def _hard_sigmoid(xp: Namespace, x: Any) -> Any:
    return _between(xp, x + 3.0, 0.0, 6.0) / 6.0


def _hard_tanh(xp: Namespace, x: Any, min_val: Any = -1.0, max_val: Any = 1.0) -> Any:
    return _between(xp, x, min_val, max_val)


def _hard_shrink(xp: Namespace, x: Any, lambd: Any = 0.5) -> Any:
    return xp.where(abs(x) <= lambd, 0.0, x)


def _soft_shrink(xp: Namespace, x: Any, lambd: Any = 0.5) -> Any:
    return xp.where(x > lambd, x - lambd, xp.where(x < -lambd, x + lambd, x * 0.0))


def _leaky_relu(xp: Namespace, x: Any, negative_slope: Any = 0.01) -> Any:
    return xp.where(x > 0, x, x * negative_slope)


def _radians(_: Namespace, x: Any) -> Any:
    return x * 0.017453292519943295


def _degrees(_: Namespace, x: Any) -> Any:
    return x * 57.29577951308232


def _normal_distribution(xp: Namespace, x: Any) -> Any:
    return 0.5 * named(xp, "erfc")(-0.7071067811865476 * x)


def _lerp(xp: Namespace, start: Any, end: Any, weight: Any) -> Any:
    if hasattr(weight, "dtype"):
        near = start + weight * (end - start)
        return xp.where(abs(weight) < 0.5, near, end - (end - start) * (1.0 - weight))
    return start + weight * (end - start) if abs(weight) < 0.5 else end - (end - start) * (1.0 - weight)


def _nan_to_num(
    xp: Namespace, x: Any, *args: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None
) -> Any:
    del copy  # arrays are never changed
    if args:
        raise Untranslatable("it gives the options of nan_to_num by position")
    if not xp.isdtype(x.dtype, "real floating"):
        return x
    info = xp.finfo(x.dtype)
    x = xp.where(x != x, 0.0 if nan is None else nan, x)
    x = xp.where(x == math.inf, float(info.max) if posinf is None else posinf, x)
    return xp.where(x == -math.inf, float(info.min) if neginf is None else neginf, x)


def _heaviside(xp: Namespace, x: Any, at_zero: Any) -> Any:
    step = xp.where(x > 0, xp.ones_like(x), xp.where(x != x, x, 0.0))
    return xp.where(x == 0, at_zero, step)


def _is_close(xp: Namespace, x: Any, y: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Any:
    difference = abs(x - y)
    close = (x == y) | (xp.isfinite(difference) & (difference <= atol + abs(rtol * y)))
    return close | ((x != x) & (y != y)) if equal_nan else close


def _log_add_exp2(xp: Namespace, x: Any, y: Any) -> Any:
    apart = xp.log1p(_exp2(xp, -abs(x - y))) * 1.4426950408889634
    return xp.where(x == y, x + 1.0, xp.maximum(x, y) + apart)


def _exp2(xp: Namespace, x: Any) -> Any:
    return xp.exp2(x) if hasattr(xp, "exp2") else xp.pow(xp.full_like(x, 2), x)


def _x_log_y(name: str) -> Callable[..., Any]:
    """Return x times a logarithm of y, which is zero where x is."""

    def chosen(xp: Namespace, x: Any, y: Any) -> Any:
        like = x if hasattr(x, "dtype") else y
        y = y if hasattr(y, "dtype") else xp.full_like(like, y)
        return xp.where((x == 0) & (y == y), xp.zeros_like(like), x * getattr(xp, name)(y))

    return chosen


def _entropy(xp: Namespace, x: Any) -> Any:
    return xp.where(x > 0, -x * xp.log(x), xp.where(x == 0, 0.0, xp.where(x < 0, -math.inf, x)))


def _sinc(xp: Namespace, x: Any) -> Any:
    angle = 3.141592653589793 * xp.where(x == 0, 1e-20, x)
    return xp.sin(angle) / angle


def _load_exponent(xp: Namespace, x: Any, exponent: Any) -> Any:
    """Return x times a power of two in two steps, because the power alone may overflow."""
    if not hasattr(exponent, "dtype"):
        exponent = xp.full_like(x, exponent)
    exponent = xp.astype(exponent, x.dtype)
    half = xp.floor(exponent * 0.5)
    return x * _exp2(xp, half) * _exp2(xp, exponent - half)


def _divide(xp: Namespace, x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode == "floor":
        return xp.floor_divide(x, y)
    if rounding_mode is None:
        return xp.divide(x, y) if hasattr(x, "dtype") and hasattr(y, "dtype") else x / y
    if not xp.isdtype((x if hasattr(x, "dtype") else y).dtype, "integral"):
        return xp.trunc(x / y)
    return truncated_quotient(xp, x, y)


def truncated_quotient(xp: Namespace, x: Any, y: Any) -> Any:
    """Return the quotient of integers, rounded toward zero."""
    quotient, rest = xp.floor_divide(x, y), xp.remainder(x, y)
    return xp.where((rest != 0) & ((x < 0) != (y < 0)), quotient + 1, quotient)


def polynomial(x: Any, coefficients: Sequence[Any]) -> Any:
    """Return the value of a polynomial, given its coefficients from the highest, by Horner's rule."""
    return functools.reduce(lambda found, one: found * x + one, coefficients)


def _rational(x: Any, above: tuple[float, ...], below: tuple[float, ...]) -> Any:
    return polynomial(x, above) / polynomial(x, below)


def erfinv(xp: Namespace, x: Any) -> Any:
    """Return the inverse of erf, in the whole precision of 64 bits.

    M. J. Wichura, Algorithm AS 241: The percentage points of the normal distribution, Applied Statistics 37(3), 1988.
    """
    # The coefficients stand in the code of this function, so they are compiled into kernels.
    middle = 0.5 * x
    inner = _rational(
        0.180625 - middle * middle,
        (2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4, 4.5921953931549871457e4,
         1.3731693765509461125e4, 1.9715909503065514427e3, 1.3314166789178437745e2, 3.3871328727963666080e0),
        (5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4, 2.1213794301586595867e4,
         5.3941960214247511077e3, 6.8718700749205790830e2, 4.2313330701600911252e1, 1.0),
    )  # fmt: skip
    size = abs(x)
    tail = xp.sqrt(-xp.log(0.5 * (1.0 - size)))
    near = _rational(
        tail - 1.6,
        (7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1, 1.27045825245236838258e0,
         3.64784832476320460504e0, 5.76949722146069140550e0, 4.63033784615654529590e0, 1.42343711074968357734e0),
        (1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2, 1.48103976427480074590e-1,
         6.89767334985100004550e-1, 1.67638483018380384940e0, 2.05319162663775882187e0, 1.0),
    )  # fmt: skip
    far = _rational(
        tail - 5.0,
        (2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3, 2.65321895265761230930e-2,
         2.96560571828504891230e-1, 1.78482653991729133580e0, 5.46378491116411436990e0, 6.65790464350110377720e0),
        (2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5,
         7.86869131145613259100e-4, 1.48753612908506148525e-2, 1.36929880922735805310e-1,
         5.99832206555887937690e-1, 1.0),
    )  # fmt: skip
    outer = xp.where(size == 1.0, math.inf, xp.where(tail <= 5.0, near, far))
    outer = xp.where(x < 0, -outer, outer)
    return 0.7071067811865476 * xp.where(size <= 0.85, middle * inner, outer)


def digamma(xp: Namespace, x: Any) -> Any:
    """Return the logarithmic derivative of the gamma function, NaN at its poles."""
    reflects = x < 0.5
    y, total = xp.where(reflects, 1.0 - x, x), xp.zeros_like(x)
    for _ in range(10):  # psi(y) = psi(y + 1) - 1 / y
        small = y < 10.0
        total, y = xp.where(small, total - 1.0 / y, total), xp.where(small, y + 1.0, y)
    z = 1.0 / (y * y)
    series = 1.0 / 132.0 - z * (691.0 / 32760.0 - z * (1.0 / 12.0))
    series = 1.0 / 12.0 - z * (1.0 / 120.0 - z * (1.0 / 252.0 - z * (1.0 / 240.0 - z * series)))
    found = total + xp.log(y) - 0.5 / y - z * series
    from_pole = x - xp.round(x)
    found = xp.where(reflects, found - 3.141592653589793 / xp.tan(3.141592653589793 * from_pole), found)
    return xp.where((from_pole == 0) & reflects, math.nan, found)


def _digamma_with_zero(xp: Namespace, x: Any) -> Any:
    return xp.where(x == 0, -1.0 / x, digamma(xp, x))


def _to(xp: Namespace, x: Any, *args: Any, dtype: Any = None, device: Any = None, **options: Any) -> Any:
    """Return PyTorch's conversion to a dtype; the device stays."""
    del device, options
    for one in args:
        if type(one).__name__ not in ("str", "bool", "device"):
            is_dtype = isinstance(one, type) or "dtype" in type(one).__name__.lower()
            dtype = one if is_dtype else one.dtype
    return x if dtype is None else xp.astype(x, dtype)


def _cast(name: str) -> Callable[..., Any]:
    return lambda xp, x: xp.astype(x, _dtype(xp, name))


def _scaled(name: str) -> Callable[..., Any]:
    """Return PyTorch's sum or difference, with a factor of the second operand."""
    return lambda _, x, y, alpha=1: getattr(operator, name)(x, y if alpha == 1 else y * alpha)


COMPOSED: dict[str, Callable[..., Any]] = {
    "addcdiv": lambda _, x, y, z, value=1: x + value * (y / z),
    "addcmul": lambda _, x, y, z, value=1: x + value * y * z,
    "celu": _fresh(_celu),
    "clamp_max": _clamp_max,
    "clamp_min": _clamp_min,
    "clip": _clip,
    "deg2rad": _radians,
    "digamma": _digamma_with_zero,
    "elu": _fresh(_elu),
    "entr": _entropy,
    "erfinv": erfinv,
    "exp2": _exp2,
    "fmax": _not_nan("maximum"),
    "fmin": _not_nan("minimum"),
    "fmod": fmod,
    "frac": lambda xp, x: x - xp.trunc(x),
    "gelu": _gelu,
    "hardshrink": _hard_shrink,
    "hardsigmoid": _fresh(_hard_sigmoid),
    "hardswish": _fresh(lambda xp, x: x * _hard_sigmoid(xp, x)),
    "hardtanh": _fresh(_hard_tanh),
    "heaviside": _heaviside,
    "isclose": _is_close,
    "ldexp": _load_exponent,
    "leaky_relu": _fresh(_leaky_relu),
    "lerp": _lerp,
    "log_sigmoid": _log_sigmoid,
    "logaddexp2": _log_add_exp2,
    "logit": _logit,
    "max": _either("maximum"),
    "min": _either("minimum"),
    "mish": _fresh(lambda xp, x: x * xp.tanh(_softplus(xp, x))),
    "nan_to_num": _nan_to_num,
    "ndtr": _normal_distribution,
    "piecewise": _piecewise,
    "rad2deg": _degrees,
    "relu": _fresh(lambda xp, x: xp.maximum(x, xp.zeros_like(x))),
    "relu6": _fresh(lambda xp, x: _between(xp, x, 0, 6)),
    "round": _rounded,
    "rsqrt": lambda xp, x: 1.0 / xp.sqrt(x),
    "select": _select,
    "selu": _fresh(_selu),
    "sigmoid": _sigmoid,
    "silu": _fresh(lambda xp, x: x / (1.0 + xp.exp(-x))),
    "sinc": _sinc,
    "softplus": _softplus,
    "softshrink": _soft_shrink,
    "softsign": lambda _, x: x / (abs(x) + 1),
    "tanhshrink": lambda xp, x: x - xp.tanh(x),
    "threshold": _fresh(lambda xp, x, threshold, value: xp.where(x <= threshold, value, x)),
    "xlog1py": _x_log_y("log1p"),
    "xlogy": _x_log_y("log"),
}
"""Elementwise functions of NumPy, PyTorch and SciPy that the standard lacks, as functions of a namespace."""

OF_TORCH: dict[str, Callable[..., Any]] = {
    "add": _scaled("add"),
    "bfloat16": _cast("bfloat16"),
    "bool": _cast("bool"),
    "divide": _divide,
    "double": _cast("float64"),
    "float": _cast("float32"),
    "half": _cast("float16"),
    "heaviside": lambda xp, x, at_zero: xp.where(x == 0, at_zero, xp.where(x > 0, xp.ones_like(x), 0)),
    "int": _cast("int32"),
    "long": _cast("int64"),
    "short": _cast("int16"),
    "sign": lambda xp, x: xp.where(x != x, 0, xp.sign(x)),
    "subtract": _scaled("sub"),
    "to": _to,
    "type": lambda xp, x, dtype: xp.astype(x, dtype),
    "type_as": lambda xp, x, other: xp.astype(x, other.dtype),
    "where": _where("int64", "float32"),
}
"""Functions of PyTorch alone, or of another meaning there."""

_OF_NUMPY: dict[str, Callable[..., Any]] = {
    "lgamma": lambda xp, x: xp.where(x == -math.inf, x, named(xp, "lgamma")(x)),
    "where": _where("int64", "float64"),
}
"""Functions of another meaning in NumPy."""
