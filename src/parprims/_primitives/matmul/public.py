"""Matrix product: c[i, j] = a[i, 0] b[0, j] + a[i, 1] b[1, j] + ..., by sum and product or any other two operators."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Never

from parprims import _cpu
from parprims._core.arrays import Array, Namespace, lacks_arithmetic, library_title
from parprims._dispatch import derivative_rules
from parprims._dispatch.by_device import by_device, in_programs
from parprims._dispatch.dispatch import Abstract, Method, MethodRefused, Methods, directly, primitive
from parprims._dispatch.examples import lines
from parprims._dispatch.primitive import Primitive
from parprims._dispatch.registry import nodes
from parprims._libraries.settings import float32_products
from parprims._operators.operator import Operator
from parprims._primitives.matmul import cpu, crossover, cuda, native
from parprims._primitives.matmul.array import array
from parprims._primitives.matmul.call import Product, checked, departs


@partial(primitive, state=float32_products)
def matmul(
    a: Array,
    b: Array,
    /,
    *,
    add: str | Operator | Callable[..., Any] = "add",
    multiply: str | Operator | Callable[..., Any] = "multiply",
    precision: str = "float32",
    kernel: str | None = None,
    tile: int | tuple[int, int, int] | None = None,
    method: str = "auto",
    axis_name: Any = None,
    **others: Never,
) -> Array:
    """Multiply matrices, c[i, j] = sum over k of a[i, k] b[k, j]: the array API standard's ``matmul``.

    The sum and the product may be any two operators: ``matmul(a, b, add="minimum", multiply="add")`` extends shortest
    paths, and ``add="logaddexp", multiply="add"`` multiplies matrices of probabilities, given their logarithms.

    Parameters
    ----------
    a, b : array
        The factors, of shapes (..., m, k) and (..., k, n) and of numeric dtypes that promote together (bool too if the
        operators take it). The other axes hold batches of matrices and broadcast. A one-dimensional factor is a vector
        of length k, and the result then lacks the axis of length m or n.
    add : str, Operator or callable, default "add"
        The associative operator that combines the products, in the order of k.
    multiply : str, Operator or callable, default "multiply"
        The operator that multiplies an element of a by an element of b, in this order.
    precision : {"float32", "tf32", "highest", "residues"}, default "float32"
        The precision of products of float32. "float32": the error of a chain of float32 products and sums. "tf32":
        factors may first be rounded, or truncated, to 10 fraction bits. "highest": computed in float64 and rounded
        once. "residues": as exact as "float32", and for large matrices of float32 and float64 faster on GPUs with fast
        integer tensor cores. Factors of other dtypes take the default only.
    kernel : {"naive", "tiled", "packed", "conflict_free", "tensor"}, optional
        The kernel that method "kernel" runs. The default is the fastest for the call.
    tile : int or sequence of int, optional
        The lengths along m, n and k of the tile that method "array", or a block of the kernel, multiplies at once; one
        number stands for all three. A block of the kernels "naive" and "tiled" has m n threads.
    method : {"auto", "canonical", "kernel", "native", "array"}, default "auto"
        Implementation to use; "auto" chooses one. "canonical" takes one that groups elements by their places alone. See
        the page "Reproducibility", and `methods`.
    axis_name : str, tuple of str or ProcessGroup, optional
        Inside `jax.shard_map`, the axes of the mesh that the contracted axis of both factors is split over; on PyTorch,
        the group of processes. Each device passes its own part. See the page "Arrays that are split over devices".

    Returns
    -------
    array
        The product, of shape (..., m, n) and of the promoted dtype. If k is 0, every element is the identity of add.

    Raises
    ------
    TypeError
        If a factor is no array of numbers, the factors come from several libraries or their dtypes do not promote
        together, an operator does not work on them, or tile does not consist of integers.
    ValueError
        If a factor has no dimensions, k differs between the factors, the batches do not broadcast, an argument has an
        unknown value or contradicts another argument, tile is not positive or does not fit the kernel, or k is 0 and
        add has no identity.
    MethodRefused
        If the method or kernel cannot compute this call.

    See Also
    --------
    reduce : A reduction by any associative operator.
    scan : Prefix combinations by any associative operator.
    Operator : An operator with its identity and properties.

    Notes
    -----
    Work and depth: m n k products and sums, in ceil(log2 k) steps (array), in chains along k (kernel).
    Error, in units of eps sum |a| |b|: ceil(log2 k) + 1 by array, one more if tile is given; k + 1 by native and
    kernel, but k + 5 if the kernel tensor multiplies float32; 4 times as much for complex numbers. With tf32, 2^-9 sum
    |a| |b| more; with highest, rounded once. With residues, 2 sqrt(k) + 1, or the default bound where this bound cannot
    be proved. Integers wrap.
    Reproducibility: the same input, tile included, gives the same bits, run after run, by array and kernel. By array,
    except on JAX, and by kernels for CPUs a row of the product does not depend on other rows; by kernels for GPUs it
    does not by method canonical, except with residues.
    Methods: native (sum and product, if no tile is given), kernel (operators that can be traced; CUDA arrays and, by
    Numba, if neither kernel nor tile is given, arrays of NumPy, PyTorch and eager JAX on the CPU), array. If ``kernel``
    is given, the call runs that kernel or raises MethodRefused. torch.autocast changes nothing.
    Derivatives: of sum and product, by every method on PyTorch and JAX; of other operators, those of the library's
    operations.
    Memory, measured errors and more: the page "matmul" of the documentation. CUDA graphs and torch.compile: its page
    "Programs and settings of JAX, PyTorch and CuPy".

    References
    ----------
    G. H. Golub and C. F. Van Loan, "Matrix Computations", 4th ed., Johns Hopkins, 2013, chapter 1.

    H. Ootomo and R. Yokota, "Recovering single precision accuracy from Tensor Cores while surpassing the FP32
    theoretical peak performance", IJHPCA 36(4), 2022.

    K. Ozaki, Y. Uchino and T. Imamura, "Ozaki Scheme II: A GEMM-oriented emulation of floating-point matrix
    multiplication using an integer modular technique", arXiv 2504.08009, 2025.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.matmul(np.array([[1, 2], [3, 4]]), np.array([[0, 1], [1, 0]]))
    array([[2, 1],
           [4, 3]])
    >>> parprims.matmul(np.array([[1, 2], [3, 4]]), np.array([10, 1]), tile=1)
    array([12, 34])
    >>> ways = np.array([[0.0, 3.0, np.inf], [np.inf, 0.0, 1.0], [5.0, np.inf, 0.0]])
    >>> parprims.matmul(ways, ways, add="minimum", multiply="add")  # lengths of paths of at most two steps
    array([[0., 3., 4.],
           [6., 0., 1.],
           [5., 8., 0.]])

    With functions of your own:

    >>> parprims.matmul(ways, ways, add=lambda p, q: np.minimum(p, q), multiply=lambda p, q: p + q)[0]
    array([0., 3., 4.])

    Batches of matrices, inside a program of JAX:

    >>> import jax
    >>> jax.jit(parprims.matmul)(jax.numpy.ones((5, 2, 3)), jax.numpy.ones((3, 4))).shape
    (5, 2, 4)
    """
    options = {"add": add, "multiply": multiply, "precision": precision, "kernel": kernel, "tile": tile}
    return _MATMUL(others, {"a": a, "b": b}, method, axis_name, **options)


def _multiplied(methods: Methods, method: str, xp: Namespace, p: Product) -> Array:
    """Return the product. A call that names a kernel runs it, or raises MethodRefused."""
    if p.kernel is not None and not isinstance(method, Abstract):
        p, method = p.for_method(method), "kernel"
        reason = departs(method, xp, p) if p.canonical else None
        if reason is not None:
            raise MethodRefused(f"matmul: method 'canonical' refused: {reason}")
    product: Array = methods(method, xp, p)
    return product


def _native_slower(xp: Namespace, p: Product) -> str | None:
    """Return the sentence why the kernel is to be preferred, or None."""
    if crossover.is_integer(p) and _cpu.on_cpu(xp, p.arrays):
        kernel = not native.by_floats(xp, p) and cpu.is_faster_for_integers(xp, p)
        kernel = kernel and cpu.refusal(xp, p) is None
        return f"the kernel multiplies integers of this size faster than {library_title(xp)}" if kernel else None
    narrow = p.precision not in ("highest", "residues") and native.is_narrowed(p)
    if not (narrow or crossover.may_be_faster(p)) or cuda.refusal(xp, p) is not None:
        return None
    if narrow:
        return "PyTorch's settings multiply float32 with fewer bits, so its routine would have to compute in float64"
    return crossover.kernel_faster(xp, p)


def _array_refusal(xp: Namespace, p: Product) -> str | None:
    return lacks_arithmetic(xp, (p.working,))


_ON_CPU = Method(cpu.prepare, cpu.refusal, cpu.slower, derivative_rules.product, quiet=True)
_MATMUL = Primitive(
    name="matmul",
    check=checked,
    methods=Methods(
        "matmul",
        departs,
        native=Method(
            native.prepare,
            native.refusal,
            _native_slower,
            derivative_rules.product_under_autocast,
            eager=native.by_floats,
        ),
        kernel=by_device(
            Method(cuda.prepare, cuda.refusal, derivative=derivative_rules.product),
            _ON_CPU,
            in_programs(_ON_CPU, Method(native.prepare, native.refusal), Method(directly(array))),
        ),
        array=Method(directly(array), _array_refusal, derivative=derivative_rules.product_under_autocast),
    ),
    example=lines(lambda make: ((make(make.side, make.side), make(make.side, make.side)), {})),
    operators=("add", "multiply"),
    state=lambda asked: float32_products(asked["a"]),
    compute=_multiplied,
    node=lambda asked: nodes().matmul(asked),
    rules="product",
    single=True,
    sharded=True,
)
