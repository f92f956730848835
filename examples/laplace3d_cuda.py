"""The CUDA forms of laplace3d: the templates of its two .cu files, and how CuPy launches them."""

import dataclasses
import math
import pathlib

FILES = (pathlib.Path(__file__).with_name(f"{name}.cu") for name in ("laplace3d", "laplace3d_times"))
TEXT = "\n".join(file.read_text() for file in FILES)


@dataclasses.dataclass(frozen=True)
class Form:
    """One instantiation. A block writes `cells` (z, y, x) of the grid by `sweeps` sweeps at once.

    The first block along an axis and the last write `margin` cells more each. `resident` blocks are to fit a
    multiprocessor.
    """

    kind: str
    name: str
    threads: int
    cells: tuple[int, int, int]
    margin: tuple[int, int, int] = (0, 0, 0)
    sweeps: int = 1
    shared_bytes: int = 0
    resident: int = 1
    vector: int = 1

    def call(self, u: str, v: str, sizes: str, planes: str = "") -> str:
        """Return the CUDA statement, for the form's own number of planes or another."""
        last = "" if self.kind == "boxes" else f", {planes or self.cells[0]}"
        return f"{self.name}({u}, {v}, {{{sizes}}}{last});"

    def grid(self, shape: tuple[int, int, int]) -> int:
        """Return the number of blocks."""
        return math.prod(max(1, -(-(n - 2 * m) // c)) for n, m, c in zip(shape, self.margin, self.cells, strict=True))

    def fits(self, shape: tuple[int, int, int]) -> bool:
        """Return whether rows divide into the vectors that are read at once."""
        return shape[2] % self.vector == 0

    def balanced(self, shape: tuple[int, int, int], processors: int) -> "Form":
        """Return the form with the number of planes for which the last of equal blocks should end first."""
        if not self.shared_bytes:
            return self

        def rounds(planes: int) -> int:
            blocks = dataclasses.replace(self, cells=(planes, *self.cells[1:])).grid(shape)
            return -(-blocks // (self.resident * processors)) * (planes + 2 * self.sweeps)

        planes = min({-(-shape[0] // pieces) for pieces in range(1, 33)}, key=rounds)
        return dataclasses.replace(self, cells=(planes, *self.cells[1:]))

    def text(self) -> str:
        """Return the whole CUDA source of a kernel of this form."""
        return f"""{TEXT}
extern "C" __global__ void __launch_bounds__({self.threads}, {self.resident})
kernel(const float* u, float* v, long long nz, long long ny, long long nx) {{
    {self.call("u", "v", "nz, ny, nx")}
}}
"""


def columns(width: int, depth: int, vector: int = 1, rows: int = 1, resident: int = 1, planes: int = 128) -> Form:
    name, cells = f"sweep_marching<{width}, {depth}, {vector}, {rows}>", (planes, depth * rows, width * vector)
    return Form("columns", name, width * depth, cells, resident=resident, vector=vector)


def boxes(width: int, depth: int, height: int) -> Form:
    return Form("boxes", f"sweep_boxes<{width}, {depth}, {height}>", width * depth * height, (height, depth, width))


def several(sweeps: int, warps: int, rows: int, slots: int = 3, resident: int = 1) -> Form:
    name, height = f"sweep_times<{sweeps}, {warps}, {rows}, {slots}>", warps * rows
    written, margin = (128, height - 2 * sweeps, 120), (0, sweeps, 4)
    nbytes = 512 * (slots * height + 4 * sweeps * warps + 1)
    kind = "columns" if sweeps == 1 else f"{sweeps} sweeps at once"
    return Form(kind, name, 32 * warps, written, margin, sweeps, nbytes, resident, 4)


FORMS = (
    *(several(1, *sizes) for sizes in ((16, 4), (16, 4, 4), (8, 4, 3, 2))),
    *(several(2, *sizes) for sizes in ((16, 4, 2), (12, 5), (8, 8), (16, 3), (8, 4, 2, 2))),
    *(several(3, *sizes) for sizes in ((12, 4), (12, 4, 4), (8, 6))),
    *(several(4, *sizes) for sizes in ((8, 4), (8, 4, 4))),
    *(columns(*sizes) for sizes in ((16, 16), (32, 8))),
    *(columns(*sizes, 4, 1, 3) for sizes in ((32, 8), (128, 2), (256, 1))),
    columns(128, 4, 4, 1, 2),
    *(columns(*sizes, 4, 2, 2) for sizes in ((32, 8), (64, 4), (128, 2), (256, 1))),
    *(boxes(*sizes) for sizes in ((4, 4, 4), (8, 8, 8), (16, 8, 8), (16, 4, 4), (32, 4, 4), (64, 4, 2))),
)


def sweeps_by(form: Form, count: int, shape: tuple[int, int, int]):
    """Return a function that makes `count` sweeps of a CuPy array: another form makes the sweeps that are left over."""
    import cupy

    processors = cupy.cuda.Device().attributes["MultiProcessorCount"]

    def kernel_of(form):
        form = form.balanced(shape, processors)
        kernel = cupy.RawKernel(form.text(), "kernel", options=("-std=c++17",))
        if form.shared_bytes > 48 << 10:  # more than a kernel may have unasked
            kernel.max_dynamic_shared_size_bytes = form.shared_bytes
        return form, kernel

    launches = count // form.sweeps * [kernel_of(form)]
    if left := count % form.sweeps:
        launches.append(kernel_of(next(one for one in FORMS if one.sweeps == left and one.fits(shape))))

    def sweeps(u):
        old, new, spare = u, cupy.empty_like(u), cupy.empty_like(u)
        for one, kernel in launches:
            kernel((one.grid(u.shape),), (one.threads,), (old, new, *u.shape), shared_mem=one.shared_bytes)
            old, new = new, spare if old is u else old
        return old

    return sweeps
