"""What arguments must not be."""

import contextlib
import dataclasses
import inspect
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import parprims
from tests.fuzz.draw import BAD_OPERATORS, Draw, Opaque, Plain, dask_array
from tests.fuzz.values import Call, described

NO_ARRAYS: dict[str, Callable[[Draw], Any]] = {
    "None": lambda _: None,
    "object": lambda _: STRANGER,
    "opaque": lambda _: Opaque(),
    "text": lambda _: "text",
    "bytes": lambda _: b"text",
    "list": lambda _: [1.0, 2.0],
    "dict": lambda _: {},
    "set": lambda _: {1},
    "type": lambda _: np.ndarray,
    "generator": lambda _: (i for i in range(3)),
    "masked": lambda _: np.ma.masked_array([1.0, 2.0, 3.0], [0, 1, 0]),
    "matrix": lambda _: np.array([[1.0, 2.0]]).view(np.matrix),
    "recarray": lambda _: np.rec.array([(1, 2.0)], dtype=[("a", int), ("b", float)]),
    "structured": lambda _: np.zeros(3, dtype=[("a", int), ("b", float)]),
    "objects": lambda _: np.array([1, 2, None], dtype=object),
    "strings": lambda _: np.array(["a", "b"]),
    "new strings": lambda _: np.array(["a", "b"], dtype=np.dtypes.StringDType()),
    "datetime": lambda _: np.array(["2020", "2021"], dtype="datetime64[s]"),
    "timedelta": lambda _: np.array([1, 2], dtype="timedelta64[s]"),
    "void": lambda _: np.zeros(2, dtype="V5"),
    "subclass": lambda _: np.arange(3.0).view(Plain),
    "dask": lambda _: dask_array(),
    "sparse": lambda d: sparse(d),
    "library": lambda d: of_its_library(d),
}


def sparse(_: Draw) -> Any:
    """Return a sparse matrix of SciPy, where there is one."""
    try:
        from scipy.sparse import csr_array
    except ImportError:
        return None
    return csr_array(np.eye(3))


def of_its_library(d: Draw) -> Any:
    """Return an array of the backend that is none of ours."""
    name = d.backend.name.partition("-")[0]
    if name == "torch":
        import torch

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return d.one(
                (
                    lambda: torch.eye(3).to_sparse(),
                    lambda: torch.eye(3).to_sparse_csr(),
                    lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
                    lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
                    lambda: torch.zeros(3).to(torch.float8_e4m3fn),
                    lambda: torch.zeros(3, dtype=torch.complex32),
                    lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
                    lambda: torch.ones(3).as_subclass(type("Own", (torch.Tensor,), {})),
                )
            )()
    if name == "jax":
        import jax

        return d.one((lambda: jax.random.key(0), lambda: jax.random.split(jax.random.key(0), 3)))()
    return None


FLAGS = (
    "keepdims", "exclusive", "reverse", "include_initial", "descending", "stable", "periodic", "transpose",
    "return_residual", "return_status", "return_last",
)  # fmt: skip


@dataclasses.dataclass
class Made:
    """A value that is made anew for every call."""

    make: Callable[[Draw], Any]


class Stranger:
    """An object of which only its name is known, the same in every run."""

    def __repr__(self) -> str:
        return "a stranger"


STRANGER = Stranger()
OPAQUE = Opaque()
WRONG_OPTIONS: dict[str, tuple[Any, ...]] = {
    "axis": (
        "0", 1.5, [0, 0], 10**30, -(10**30), 7, STRANGER, np.array([0, 0]), math.nan, True, (0, 0), {}, np.float64(0),
        1j, OPAQUE, (0, "a"),
    ),
    "dtype": (
        "floaty", 3, "float23", STRANGER, np.array(1.0), str, "datetime64[s]", "O", np.dtype([("a", int)]), (), [], {},
        ("float32", "float32", "float32"), object, b"float32", OPAQUE,
    ),
    "initial": (
        "text", STRANGER, [1.0], {}, (1, 2, 3, 4), (), np.str_("a"), np.datetime64("2020"), 10**400, OPAQUE, b"1",
        np.ma.masked_array([1.0, 2.0], [0, 1]), Made(lambda d: d.plain(np.zeros((3, 1, 2, 3, 9), dtype=np.float32))),
    ),
    "method": (
        "bogus", None, 3, ["array"], {}, np.array(["array"]), b"array", STRANGER, ("auto",), "", "Array", OPAQUE,
        np.array(["auto", "array"]),
    ),
    "op": (
        "bogus", 3, None, [], {}, STRANGER, b"add", "welford", "affine", np.array(1), *BAD_OPERATORS,
    ),
    "add": ("bogus", 3, None, [], "affine"),
    "multiply": ("bogus", 3, None, [], "affine"),
    "pivot": ("bogus", 3, None, ["auto"], np.array(["auto", "none"])),
    "precision": ("bogus", 3, None, ["tf32"], np.array(["tf32", "a"])),
    "kernel": ("bogus", 3, ["naive"], np.array(["naive", "a"]), {}),
    "rtol": ("text", -1.0, math.nan, [0.1], STRANGER, True, 1j, np.array([1.0]), {}),
    "tile": ("4", 1.5, (1, 2), 0, -3, [1, 2], {}, (1, 2, "a"), True, np.array([1.0, 2.0, 3.0]), STRANGER),
}  # fmt: skip
WRONG_FLAGS: tuple[Any, ...] = (
    "yes", None, 1, 0.0, np.array(True), np.array([True, False]), [], STRANGER, math.nan, OPAQUE, "",
    Made(lambda d: d.plain(np.array([True]))),
)  # fmt: skip


def array_places(call: Call) -> list[tuple[int, str]]:
    """Return where a call has arrays among its arguments, and by which name errors call them."""
    names = {
        "linear_recurrence": ("a", "b"),
        "matmul": ("a", "b"),
        "vecdot": ("x1", "x2"),
        "solve_tridiagonal": ("lower", "diag", "upper", "rhs"),
        "map_reduce": ("", "arrays", "arrays", "arrays"),
        "sort_by_key": ("keys", "values", "values", "values"),
        "check_associative": ("", "examples"),
    }.get(call.function)
    if names is None:
        parameters = inspect.signature(getattr(parprims, call.function)).parameters.values()
        names = tuple(one.name for one in parameters if one.kind is one.POSITIONAL_ONLY)
    return [(at, name) for at, name in enumerate(names[: len(call.args)]) if name]


def spoil(d: Draw, call: Call) -> None:
    """Make a call a hostile one."""
    places = array_places(call)
    parameters = inspect.signature(getattr(parprims, call.function)).parameters
    options = [name for name in parameters if name in WRONG_OPTIONS or name in FLAGS]
    if d.chance(0.45):
        at, name = d.one(places)
        what = d.one(tuple(NO_ARRAYS))
        moved = call.function == "sort_by_key" and at > 0
        if moved and what in (
            "recarray",
            "structured",
            "objects",
            "strings",
            "new strings",
            "datetime",
            "timedelta",
            "void",
        ):
            what = "masked"
        if call.function == "lfilter" and name in ("b", "a") and what == "list":  # which it takes, as SciPy does
            what = "dict"
        value = NO_ARRAYS[what](d)
        if isinstance(call.args[at], tuple) and d.chance(0.7):  # only a component
            value = (call.args[at][0], value)
        if call.function == "solve_tridiagonal" and at < 3 and value is None:
            value = "text"
        call.args[at] = value
        call.wrong.add(name)
        call.hostile.append(f"{name} is {what}")
        if len(places) > 1:  # of two libraries either may be named
            call.wrong |= {other for _, other in places}
        return
    if d.chance(0.15):
        at, name = d.one(places)
        if wrong_array(d, call, at, name):
            return
    name = d.one(options)
    if call.function == "check_associative" and name == "op":
        call.args[0] = value = d.one(("bogus", 3, None, [], STRANGER, "affine"))
        call.wrong |= {"op", "examples"}
        call.hostile.append(f"op is {described(value)}")
        return
    value = d.one(WRONG_FLAGS if name in FLAGS else WRONG_OPTIONS[name])
    value = value.make(d) if isinstance(value, Made) else value
    if name == "num_segments" and value is None and call.function != "segment_reduce":  # where it is left out
        value = -1
    if isinstance(call.args[0], tuple) and isinstance(value, str) and value == "affine":
        value = "bogus"
    if name == "op" and call.function in ("reduce", "scan"):
        call.args[1:] = [value]
    else:
        call.options[name] = value
    if name in ("op", "add", "multiply"):
        # Where nothing is combined an operator returns nothing wrong; one of other elements is wrong of x, or a.
        shapes = [() if isinstance(x, type) else shape_of(x) or () for x in call.args]
        call.may_refuse |= any(value is one for one in BAD_OPERATORS) and any(
            {0, 1} & set(shape or (0,)) for shape in shapes
        )
        call.wrong |= {"x", "a", "arrays"} if isinstance(value, str) else set()
    if name == "dtype" and isinstance(value, tuple) and not value:
        call.wrong.add("dtype")
    call.wrong.add(name)
    if name == "offsets":  # beside them, axis is one integer
        call.wrong.add("axis")
    call.hostile.append(f"{name} is {described(value)}")
    if name == "op" and "initial" in call.options:  # whose dtype goes by the operator
        call.wrong.add("initial")


def shape_of(x: Any) -> tuple[int, ...] | None:
    """Return the shape of an argument, or None: a class has none, and a nested tensor does not say."""
    with contextlib.suppress(AttributeError, RuntimeError, TypeError):
        return tuple(x.shape)
    return None


_FILTERS = ("lfilter", "sosfilt")
"""The functions whose coefficients may be NumPy's beside a signal of any library."""


def wrong_array(d: Draw, call: Call, at: int, name: str) -> bool:
    """Replace an array by one that is right in itself but not here; return whether there is such."""
    way = d.one(("library", "dtype", "shape", "dimensions"))
    if any(one.endswith(f"has another {way}") for one in call.hostile):  # two that are changed alike may be right
        return False
    places = array_places(call)
    others = {other for _, other in places}
    rest = [x for i, x in enumerate(call.args) if i != at]
    # An array of NumPy without dimensions is a number to every library.
    if way == "library" and any(shape_of(x) for x in rest) and call.function not in ("map_reduce", *_FILTERS):
        if d.backend.name in ("numpy", "emulated"):
            import array_api_strict

            call.args[at] = array_api_strict.asarray([1.0, 2.0])
        else:
            call.args[at] = np.array([1.0, 2.0])
    elif way == "dtype" and call.function in ("sort", "argsort", "max", "min"):
        call.args[at] = d.plain(np.array([1j, 2.0], dtype=np.complex64))
    elif way == "dtype" and call.function == "solve_tridiagonal":
        call.args[at] = d.plain(np.array([1, 2], dtype=np.int32))
    elif way == "dimensions" and call.function in ("matmul", "vecdot", "sort", "argsort", "cumulative_sum"):
        call.args[at] = d.plain(np.array(1.0, dtype=np.float32))
    elif way == "shape" and call.function in (
        "matmul",
        "vecdot",
        "linear_recurrence",
        "solve_tridiagonal",
        "map_reduce",
    ):
        if not any(set(shape_of(x) or ()) - {1} for x in rest):
            return False
        call.args[at] = d.plain(np.zeros((2, 3, 97, 89, 97), dtype=np.float32)[:1, :1])
        others |= {"coefficients"}
    else:
        return False
    call.wrong |= others | {"axis"}
    call.hostile.append(f"{name} has another {way}")
    return True
