"""Elementwise functions of NumPy with SciPy, PyTorch and JAX, as functions of two arrays: tests and the fuzz run them.

Each function turns two arrays of a dtype into an array of this dtype. All of them have a translation.
"""

import sys
from collections.abc import Callable
from typing import Any

Table = dict[str, Callable[[Any, Any], Any]]


def _numpy(np: Any) -> Table:
    import scipy.special as special

    return {
        "where": lambda p, q: np.where(p > q, p, q),
        "where with numbers": lambda p, q: np.where(p > q, 1.0, -2.0).astype(p.dtype) * p,
        "select": lambda p, q: np.select([p > 0.5, q > 0], [p, q * 2], -1.0) + np.select([p > q, q > 0], [p, 2.0]),
        "piecewise": lambda p, q: np.piecewise(p, [p < 0, q > 1], [lambda x: -x, lambda x: x * x, 0.5]),
        "maximum": lambda p, q: np.maximum(p, q),
        "minimum": lambda p, q: np.minimum(p, q * 2),
        "fmax": lambda p, q: np.fmax(p, q),
        "fmin": lambda p, q: np.fmin(p, q),
        "logaddexp": lambda p, q: np.logaddexp(p, q),
        "logaddexp2": lambda p, q: np.logaddexp2(p, q),
        "hypot": lambda p, q: np.hypot(p, q),
        "remainder": lambda p, q: np.mod(p, q) + np.remainder(q, 0.75),
        "fmod": lambda p, q: np.fmod(p, q),
        "floor_divide": lambda p, q: np.floor_divide(p, q),
        "clip": lambda p, q: np.clip(p, -0.5, 0.25) + np.clip(q, a_min=-1, a_max=1),
        "exp": lambda p, q: np.exp(np.tanh(p)) + np.log1p(np.abs(q)),
        "exp2": lambda p, q: np.exp2(p) + np.expm1(q),
        "log": lambda p, q: np.log(p) + np.log2(q) - np.log10(np.fabs(p)),
        "powers": lambda p, q: np.power(np.absolute(p), 1.5) + np.square(q),
        "reciprocal": lambda p, q: np.reciprocal(p) + np.true_divide(p, q),
        "round": lambda p, q: np.rint(p * 3) + np.floor(q) - np.ceil(q) + np.trunc(p),
        "fix": lambda p, q: np.fix(p * 3) + np.round(q * 5),
        "isnan": lambda p, q: np.where(np.isnan(p) | ~np.isfinite(q) | np.isinf(p), 0.0, p / q),
        "isclose": lambda p, q: np.where(np.isclose(p, q * p, rtol=0.25), p, q),
        "sign": lambda p, q: np.sign(p) + np.where(np.signbit(q), p, q),
        "copysign": lambda p, q: np.copysign(p, q),
        "nextafter": lambda p, q: np.nextafter(p, q),
        "ldexp": lambda p, q: np.ldexp(p, np.where(q > 0, 3, -2)),
        "nan_to_num": lambda p, q: np.nan_to_num(p, nan=0.25) + np.nan_to_num(q, posinf=3.0, neginf=-3.0),
        "heaviside": lambda p, q: np.heaviside(p, 0.5) + q,
        "sinc": lambda p, q: np.sinc(p) + q,
        "cbrt": lambda p, q: np.cbrt(p) + q,
        "angles": lambda p, q: np.deg2rad(p) + np.degrees(q),
        "arctan2": lambda p, q: np.arctan2(p, q) + np.sign(q),
        "trigonometric": lambda p, q: np.sin(p) + np.cos(q) + np.arctan(p) + np.arcsinh(q),
        "hyperbolic": lambda p, q: np.sinh(p) - np.cosh(q) + np.arcsin(np.tanh(p)),
        "cast": lambda p, q: np.floor(p).astype(p.dtype) + q.astype(p.dtype),
        "full_like": lambda p, q: np.full_like(p, 0.25) + np.zeros_like(q) + np.ones_like(p) * q,
        "asarray": lambda p, q: np.asarray(0.5, dtype=p.dtype) * p + q,
        "0-d": lambda p, q: np.array(0.5, np.float32) * p + q - np.asarray(2.0, np.float32),
        "erf": lambda p, q: special.erf(p) + q,
        "erfc": lambda p, q: special.erfc(p) + q,
        "erfinv": lambda p, q: special.erfinv(p) + q,
        "gamma": lambda p, q: special.gamma(np.fmin(p, 4.0)) + q,
        "gammaln": lambda p, q: special.gammaln(p) + q,
        "psi": lambda p, q: special.psi(p) + q,
        "expit": lambda p, q: special.expit(p) + q,
        "log_expit": lambda p, q: special.log_expit(p) + q,
        "logit": lambda p, q: special.logit(p) + q,
        "xlogy": lambda p, q: special.xlogy(p, q),
        "xlog1py": lambda p, q: special.xlog1py(p, q),
        "entr": lambda p, q: special.entr(p) + q,
        "ndtr": lambda p, q: special.ndtr(p) + q,
    }


def _torch(torch: Any) -> Table:
    from torch.nn import functional

    return {
        "where": lambda p, q: torch.where(p > q, p, q),
        "where with numbers": lambda p, q: torch.where(p > q, 1.0, -2.0).to(p.dtype) * p,
        "maximum": lambda p, q: torch.maximum(p, q) + torch.max(p, q),
        "minimum": lambda p, q: torch.min(p, q),
        "fmax": lambda p, q: torch.fmax(p, q),
        "fmin": lambda p, q: torch.fmin(p, q),
        "logaddexp": lambda p, q: torch.logaddexp(p, q),
        "logaddexp2": lambda p, q: torch.logaddexp2(p, q),
        "clamp": lambda p, q: torch.clamp(p, -0.5, 0.25) + torch.clamp(q, min=0.0),
        "clamp_min": lambda p, q: torch.clamp_min(p, 0.25) + torch.clamp_max(q, 0.0),
        "methods": lambda p, q: p.abs().sqrt() + q.exp() + p.clamp(max=0.5),
        "casts": lambda p, q: p.double().to(p.dtype) + q.floor().float().type_as(p),
        "relu": lambda p, q: torch.relu(p) - torch.sigmoid(q),
        "fmod": lambda p, q: torch.fmod(p, q) + torch.remainder(p, q),
        "floor_divide": lambda p, q: torch.floor_divide(p, q) + torch.div(q, p, rounding_mode="trunc"),
        "hypot": lambda p, q: torch.hypot(p, q) + torch.pow(q, 2),
        "rsqrt": lambda p, q: torch.rsqrt(torch.abs(p) + 1) * q,
        "scaled": lambda p, q: torch.add(p, q, alpha=2) - torch.sub(q, p, alpha=3),
        "exp2": lambda p, q: torch.exp2(p) + torch.expm1(q),
        "log": lambda p, q: torch.log(p) + torch.log2(q) - torch.log10(torch.abs(p)) + torch.log1p(q),
        "reciprocal": lambda p, q: torch.reciprocal(p) + torch.square(q),
        "round": lambda p, q: torch.round(p * 3) + torch.floor(q) - torch.ceil(q) + torch.trunc(p),
        "frac": lambda p, q: torch.frac(p) + q,
        "isclose": lambda p, q: torch.where(torch.isclose(p, q * p, rtol=0.25), p, q),
        "isnan": lambda p, q: torch.where(torch.isnan(p) | ~torch.isfinite(q) | torch.isinf(p), 0.0, p / q),
        "sign": lambda p, q: torch.sign(p) + torch.where(torch.signbit(q), p, q),
        "copysign": lambda p, q: torch.copysign(p, q),
        "nextafter": lambda p, q: torch.nextafter(p, q),
        "nan_to_num": lambda p, q: torch.nan_to_num(p, nan=0.25) + torch.nan_to_num(q, posinf=3.0, neginf=-3.0),
        "heaviside": lambda p, q: torch.heaviside(p, q),
        "sinc": lambda p, q: torch.sinc(p) + q,
        "angles": lambda p, q: torch.deg2rad(p) + torch.rad2deg(q),
        "atan2": lambda p, q: torch.atan2(p, q) + torch.asinh(p),
        "trigonometric": lambda p, q: torch.sin(p) + torch.cos(q) + torch.atan(p) - torch.tanh(q),
        "lerp": lambda p, q: torch.lerp(p, q, 0.25) + torch.lerp(p, q, q),
        "addcmul": lambda p, q: torch.addcmul(p, p, q, value=0.5) + torch.addcdiv(p, p, q),
        "like": lambda p, q: torch.full_like(p, 0.25) + torch.zeros_like(q) + torch.ones_like(p) * q,
        "0-d": lambda p, q: torch.tensor(0.5, dtype=torch.float64) * p + q * torch.tensor(2) - torch.tensor(1.5),
        "erf": lambda p, q: torch.erf(p) + torch.special.erf(q),
        "erfc": lambda p, q: torch.erfc(p) + q,
        "erfinv": lambda p, q: torch.erfinv(p) + q,
        "lgamma": lambda p, q: torch.lgamma(p) + torch.special.gammaln(q),
        "digamma": lambda p, q: torch.digamma(p) + q,
        "logit": lambda p, q: torch.logit(p) + torch.special.expit(q),
        "xlogy": lambda p, q: torch.xlogy(p, q),
        "xlog1py": lambda p, q: torch.special.xlog1py(p, q),
        "entr": lambda p, q: torch.special.entr(p) + torch.special.ndtr(q),
        "gelu": lambda p, q: (
            functional.gelu(torch.clamp(p, -20, 20)) + functional.gelu(q.clamp(-9), approximate="tanh")
        ),
        "silu": lambda p, q: functional.silu(p) + functional.mish(q),
        "relu6": lambda p, q: functional.relu6(p) + functional.leaky_relu(q, 0.125),
        "elu": lambda p, q: functional.elu(p, 0.5) + functional.selu(q),
        "celu": lambda p, q: functional.celu(p, 2.0) + functional.softsign(q),
        "hardtanh": lambda p, q: functional.hardtanh(p) + functional.hardsigmoid(q) + functional.hardswish(p),
        "softplus": lambda p, q: functional.softplus(p) + functional.softplus(q, 2.0, 10.0),
        "logsigmoid": lambda p, q: functional.logsigmoid(p) + q,
        "shrink": lambda p, q: functional.softshrink(p, 0.25) + functional.hardshrink(q) + functional.tanhshrink(p),
        "threshold": lambda p, q: functional.threshold(p, 0.25, -1.0) + q,
    }


def _jax(jax: Any) -> Table:
    import jax.nn
    import jax.scipy.special

    jnp, lax, special = jax.numpy, jax.lax, jax.scipy.special
    return {
        "where": lambda p, q: jnp.where(p > q, p, q),
        "where with numbers": lambda p, q: jnp.where(p > q, 1.0, -2.0).astype(p.dtype) * p,
        "select": lambda p, q: jnp.select([p > 0.5, q > 0], [p, q * 2], -1.0),
        "maximum": lambda p, q: jnp.maximum(p, q),
        "fmin": lambda p, q: jnp.fmin(p, q) + jnp.fmax(q, p),
        "logaddexp": lambda p, q: jnp.logaddexp(p, q),
        "logaddexp2": lambda p, q: jnp.logaddexp2(p, q),
        "hypot": lambda p, q: jnp.hypot(p, q),
        "remainder": lambda p, q: jnp.mod(p, q) + p % q,
        "fmod": lambda p, q: jnp.fmod(p, q),
        "floor_divide": lambda p, q: jnp.floor_divide(p, q),
        "clip": lambda p, q: jnp.clip(p, -0.5, 0.25) + q,
        "powers": lambda p, q: p**3 + jnp.power(jnp.abs(q), 1.5) + lax.integer_pow(q * q + 1, -2),
        "exp": lambda p, q: jnp.exp(jnp.tanh(p)) + jnp.log1p(jnp.abs(q)),
        "exp2": lambda p, q: jnp.exp2(p) + jnp.expm1(q),
        "log": lambda p, q: jnp.log(p) + jnp.log2(q) - jnp.log10(jnp.fabs(p)),
        "round": lambda p, q: jnp.round(p * 3) + jnp.floor(q) + lax.round(q * 2),
        "fix": lambda p, q: jnp.trunc(p * 3) + jnp.rint(q),
        "nan": lambda p, q: jnp.nan_to_num(jnp.where(p > 0, p, jnp.nan) + q, nan=0.25),
        "isclose": lambda p, q: jnp.where(jnp.isclose(p, q * p, rtol=0.25), p, q),
        "sign": lambda p, q: jnp.sign(p) + jnp.where(jnp.signbit(q), p, q),
        "copysign": lambda p, q: jnp.copysign(p, q),
        "nextafter": lambda p, q: jnp.nextafter(p, q),
        "heaviside": lambda p, q: jnp.heaviside(p, 0.5) + q,
        "sinc": lambda p, q: jnp.sinc(p) + q,
        "cbrt": lambda p, q: jnp.cbrt(p) + lax.cbrt(q),
        "angles": lambda p, q: jnp.deg2rad(p) + jnp.degrees(q),
        "nn": lambda p, q: jax.nn.softplus(p) + jax.nn.relu(q) + jax.nn.sigmoid(p) + jax.nn.silu(q),
        "gelu": lambda p, q: jax.nn.gelu(p) + jax.nn.gelu(q, approximate=False),
        "relu6": lambda p, q: jax.nn.relu6(p) + jax.nn.leaky_relu(q, 0.125),
        "elu": lambda p, q: jax.nn.elu(p, 0.5) + jax.nn.selu(q) + jax.nn.celu(p, 2.0),
        "hard": lambda p, q: jax.nn.hard_tanh(p) + jax.nn.hard_sigmoid(q) + jax.nn.hard_swish(p),
        "log_sigmoid": lambda p, q: jax.nn.log_sigmoid(p) + jax.nn.mish(q) + jax.nn.soft_sign(p),
        "squareplus": lambda p, q: jax.nn.squareplus(p) + jax.nn.squareplus(q, 1.0),
        "lax": lambda p, q: lax.select(p > q, p, q) + lax.clamp(q * 0 - 1, p, abs(q)) + lax.rsqrt(q * q + 1),
        "jit": jax.jit(lambda p, q: jnp.arctan2(p, q) + jnp.sign(q)),
        "cast": lambda p, q: jnp.floor(jnp.where(abs(p) < 50, p, 0) * 4).astype("int32").astype(p.dtype) + q,
        "constant": lambda p, q: p + q * jnp.sqrt(2.0) + jnp.asarray(0.5, p.dtype),
        "full_like": lambda p, q: jnp.full_like(p, 0.25) + jnp.zeros_like(q) + jnp.ones_like(p) * q,
        "erf": lambda p, q: special.erf(p) + lax.erf(q),
        "erfc": lambda p, q: special.erfc(p) + q,
        "erfinv": lambda p, q: special.erfinv(p) + q,
        "gammaln": lambda p, q: special.gammaln(p) + lax.lgamma(q),
        "digamma": lambda p, q: special.digamma(p) + q,
        "logit": lambda p, q: special.logit(p) + special.expit(q),
        "xlogy": lambda p, q: special.xlogy(p, q),
        "xlog1py": lambda p, q: special.xlog1py(p, q),
        "entr": lambda p, q: special.entr(p) + special.ndtr(q),
    }


def _numpy_of_integers(np: Any) -> Table:
    return {
        "bits": lambda p, q: np.bitwise_xor(p, np.invert(q)) | np.bitwise_and(p, 6),
        "shifts": lambda p, q: np.left_shift(p & 15, 3) + np.right_shift(q, 2),
        "floor_divide": lambda p, q: np.floor_divide(p, q | 1) + np.mod(p, q | 1),
        "fmod": lambda p, q: np.fmod(p, q | 1),
        "select": lambda p, q: np.select([p > 5, q > 0], [p, q * 2], -1),
        "piecewise": lambda p, q: np.piecewise(p, [p < 0, q > 1], [lambda x: -x, lambda x: x * x, 7]),
        "clip": lambda p, q: np.clip(p, -20, 10) + np.sign(q) + np.square(q),
        "nan_to_num": lambda p, q: np.nan_to_num(p) + np.round(q),
        "like": lambda p, q: np.full_like(p, 3) * q + np.asarray(5, dtype=p.dtype),
        "where": lambda p, q: np.where(p > q, 1, 2).astype(p.dtype) * q,
    }


def _torch_of_integers(torch: Any) -> Table:
    from torch.nn import functional

    return {
        "bits": lambda p, q: torch.bitwise_xor(p, torch.bitwise_not(q)) | torch.bitwise_and(p, 6),
        "shifts": lambda p, q: torch.bitwise_left_shift(p & 15, 3) + torch.bitwise_right_shift(q, 2),
        "remainder": lambda p, q: torch.remainder(p, q | 1) + torch.maximum(p, q),
        "fmod": lambda p, q: torch.fmod(p, q | 1) + torch.div(p, q | 1, rounding_mode="trunc"),
        "clamp": lambda p, q: torch.clamp(p, -20, 10) + torch.sign(q) + torch.square(q),
        "relu": lambda p, q: torch.relu(p) + functional.relu6(q) + torch.addcmul(p, p, q, value=2),
        "casts": lambda p, q: p.long().to(p.dtype) + q.int().to(p),
        "0-d": lambda p, q: torch.tensor(3) * p + q,
    }


def _jax_of_integers(jax: Any) -> Table:
    jnp, lax = jax.numpy, jax.lax
    return {
        "bits": lambda p, q: jnp.bitwise_xor(p, jnp.invert(q)) | jnp.bitwise_and(p, 6),
        "shifts": lambda p, q: jnp.left_shift(p & 15, 3) + jnp.right_shift(q, 2),
        "floor_divide": lambda p, q: p // (q | 1) + p % (q | 1),
        "lax": lambda p, q: lax.div(p, q | 1) + lax.rem(p, q | 1),
        "select": lambda p, q: lax.select_n(p % 3, p, q, p + q),
        "clip": lambda p, q: jnp.clip(p, -20, 10) + jnp.sign(q) + jnp.square(q),
        "relu": lambda p, q: jnp.select([p > 5, q > 0], [p, q * 2], -1),
    }


HOMES = ("numpy", "torch", "jax")
FLOATS = {"numpy": _numpy, "torch": _torch, "jax": _jax}
INTEGERS = {"numpy": _numpy_of_integers, "torch": _torch_of_integers, "jax": _jax_of_integers}


BEYOND_THE_STANDARD = (
    "cbrt", "entr", "erf", "erfc", "gamma", "gammaln", "gelu", "lgamma", "like", "ndtr", "nextafter"
)  # fmt: skip
"""Names of functions that need more than the array API standard has: special functions, scalars of NumPy."""


def functions(home: str, dtype: str) -> Table:
    """Return the functions of a library, which is imported, for a dtype."""
    return (INTEGERS if "int" in dtype else FLOATS)[home](sys.modules[home])
