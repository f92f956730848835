"""The CUDA forms of laplace3d: which templates of laplace3d.cu there are, and how CuPy launches them."""

import dataclasses
import math
import pathlib

TEXT = pathlib.Path(__file__).with_suffix("").with_name("laplace3d.cu").read_text()


@dataclasses.dataclass(frozen=True)
class Form:
    """One instantiation. A block writes `cells` (z, y, x) of the grid by `sweeps` sweeps at once."""

    kind: str
    name: str
    threads: int
    cells: tuple[int, int, int]
    sweeps: int = 1
    shared_bytes: int = 0
    vector: int = 1

    def call(self, u: str, v: str, sizes: str, planes: str = "") -> str:
        """Return the CUDA statement, for the form's own number of planes or another."""
        last = "" if self.kind == "boxes" else f", {planes or self.cells[0]}"
        return f"{self.name}({u}, {v}, {{{sizes}}}{last});"

    def grid(self, shape: tuple[int, int, int]) -> int:
        """Return the number of blocks."""
        return math.prod(-(-n // cells) for n, cells in zip(shape, self.cells, strict=True))

    def fits(self, shape: tuple[int, int, int]) -> bool:
        """Return whether rows divide into the vectors that are read at once."""
        return shape[2] % self.vector == 0

    def text(self) -> str:
        """Return the whole CUDA source of a kernel of this form."""
        return f"""{TEXT}
extern "C" __global__ void __launch_bounds__({self.threads}, 1)
kernel(const float* u, float* v, long long nz, long long ny, long long nx) {{
    {self.call("u", "v", "nz, ny, nx")}
}}
"""


def columns(width: int, depth: int, vector: int = 1, planes: int = 128) -> Form:
    name, cells = f"sweep_marching<{width}, {depth}, {vector}>", (planes, depth, width * vector)
    return Form("columns", name, width * depth, cells, vector=vector)


def boxes(width: int, depth: int, height: int) -> Form:
    return Form("boxes", f"sweep_boxes<{width}, {depth}, {height}>", width * depth * height, (height, depth, width))


def several(sweeps: int, width: int, depth: int, rows: int, planes: int = 256) -> Form:
    written = (planes, depth * rows - 2 * sweeps, width - 2 * sweeps)
    name = f"sweep_times<{sweeps}, {width}, {depth}, {rows}>"
    return Form(f"{sweeps} sweeps at once", name, width * depth, written, sweeps, 8 * sweeps * width * depth * rows)


FORMS = (
    *(columns(*sizes) for sizes in ((8, 8), (16, 16), (32, 8), (32, 16), (32, 32), (64, 4), (128, 4))),
    *(columns(*sizes, 4) for sizes in ((8, 16), (16, 16), (32, 4), (32, 8), (64, 4), (128, 2))),
    *(boxes(*sizes) for sizes in ((4, 4, 4), (8, 8, 8), (16, 8, 8), (16, 4, 4), (32, 4, 4), (64, 4, 2))),
    *(several(sweeps, *sizes) for sweeps in (2, 3, 4) for sizes in ((32, 8, 4), (64, 4, 8), (64, 8, 4))),
)


def sweeps_by(form: Form, count: int):
    """Return a function that makes `count` sweeps of a CuPy array: what a form leaves over is swept by columns."""
    import cupy

    def kernel_of(form):
        kernel = cupy.RawKernel(form.text(), "kernel", options=("-std=c++17",))
        if form.shared_bytes > 48 << 10:  # more than a kernel may have unasked
            kernel.max_dynamic_shared_size_bytes = form.shared_bytes
        return form, kernel

    launches = count // form.sweeps * [kernel_of(form)]
    launches += count % form.sweeps * [kernel_of(columns(32, 8))]

    def sweeps(u):
        old, new, spare = u, cupy.empty_like(u), cupy.empty_like(u)
        for one, kernel in launches:
            kernel((one.grid(u.shape),), (one.threads,), (old, new, *u.shape), shared_mem=one.shared_bytes)
            old, new = new, spare if old is u else old
        return old

    return sweeps
