"""Trees of tensors with trailing axes of several shapes: derivatives, torch.func, and torch.compile."""

from typing import Any, NamedTuple

import pytest

import parprims

torch = pytest.importorskip("torch")


class Affine(NamedTuple):
    """The map x -> matrix x + offset."""

    matrix: Any
    offset: Any


def compose(earlier, later):
    offset = torch.einsum("nij,nj->ni", later.matrix, earlier.offset) + later.offset
    return Affine(later.matrix @ earlier.matrix, offset)


def compose_lists(earlier, later):
    return [*compose(Affine(*earlier), Affine(*later))]


def compose_dicts(earlier, later):
    found = compose(Affine(earlier["m"], earlier["v"][0]), Affine(later["m"], later["v"][0]))
    return {"m": found.matrix, "v": (found.offset, None)}


KINDS = {
    "NamedTuple": (Affine, compose, lambda x: x.offset),
    "list": (lambda m, v: [m, v], compose_lists, lambda x: x[1]),
    "dict": (lambda m, v: {"m": m, "v": (v, None)}, compose_dicts, lambda x: x["v"][0]),
}


def data(n=6, side=2):
    generator = torch.Generator().manual_seed(n)
    shapes = (n, side, side), (n, side)
    return [torch.rand(shape, generator=generator, dtype=torch.float64).sub(0.5).requires_grad_() for shape in shapes]


def loop(matrices, offsets):
    """Return the offsets of a scan, one element after another."""
    state, found = torch.zeros_like(offsets[0]), []
    for matrix, offset in zip(matrices, offsets, strict=True):
        state = matrix @ state + offset
        found.append(state)
    return torch.stack(found)


@pytest.fixture(params=KINDS)
def called(request):
    """Return a function that calls `scan` or `reduce` on matrices and offsets, and returns the offsets."""
    make, op, offset = KINDS[request.param]

    def called(function, matrices, offsets, **options):
        return offset(function(make(matrices, offsets), op, axis=0, **options))

    return called


@pytest.mark.once
class TestDerivatives:
    def test_backward(self, called):
        matrices, offsets = data()
        weights = torch.arange(12.0, dtype=torch.float64).reshape(6, 2)
        expected = torch.autograd.grad((loop(matrices, offsets) * weights).sum(), (matrices, offsets))
        for method in ("auto", "array", "kernel"):
            try:
                found = called(parprims.scan, matrices, offsets, method=method)
            except parprims.MethodRefused as refusal:
                assert method == "kernel"
                assert "CUDA" in str(refusal) or "Numba" in str(refusal)  # noqa: PT017
                continue
            torch.testing.assert_close(found, loop(matrices, offsets))
            torch.testing.assert_close(torch.autograd.grad((found * weights).sum(), (matrices, offsets)), expected)
        total = called(parprims.reduce, matrices, offsets)
        torch.testing.assert_close(total, loop(matrices, offsets)[-1])

    def test_of_derivatives(self, called):
        for function in (parprims.scan, parprims.reduce):
            assert torch.autograd.gradgradcheck(lambda m, v: called(function, m, v), tuple(data(3)))  # noqa: B023

    def test_torch_func(self, called):
        matrices, offsets = data()
        many = torch.stack([offsets, -offsets]).detach()
        for function, at in ((parprims.scan, slice(None)), (parprims.reduce, -1)):
            found = torch.func.vmap(lambda v: called(function, matrices.detach(), v))(many)  # noqa: B023
            torch.testing.assert_close(found, torch.stack([loop(matrices.detach(), v)[at] for v in many]))
            by_matrix = torch.func.grad(lambda m: called(function, m, many[0]).sum())(matrices.detach())  # noqa: B023
            expected = torch.func.grad(lambda m: loop(m, many[0])[at].sum())(matrices.detach())  # noqa: B023
            torch.testing.assert_close(by_matrix, expected)


@pytest.mark.once
class TestCompiled:
    @pytest.mark.parametrize("function", [parprims.scan, parprims.reduce])
    def test_one_graph(self, called, function):
        """torch.compile reads the operator; the program has the values and the derivatives of the eager call."""
        torch._dynamo.reset()
        program = torch.compile(lambda *xs: called(function, *xs), backend="aot_eager", fullgraph=True)
        for n in (6, 7):
            matrices, offsets = data(n)
            expected, found = called(function, matrices, offsets), program(matrices, offsets)
            torch.testing.assert_close(found, expected)
            by = [torch.autograd.grad(one.sum(), (matrices, offsets)) for one in (found, expected)]
            torch.testing.assert_close(*by)

    def test_wrong_calls(self, called):
        torch._dynamo.reset()
        matrices, offsets = data()
        with pytest.raises(Exception, match="equal length along axis 0"):
            torch.compile(lambda m, v: called(parprims.scan, m, v), backend="eager")(matrices, offsets[:3].detach())
        with pytest.raises(Exception, match="method 'kernel' refused"):
            torch.compile(lambda m, v: called(parprims.scan, m, v, method="kernel"), backend="eager")(matrices, offsets)

    @pytest.mark.parametrize("exclusive", [False, True])
    def test_initial(self, called, exclusive):
        torch._dynamo.reset()
        matrices, offsets = data()
        del called

        def run(matrices, offsets):
            start = Affine(torch.eye(2, dtype=torch.float64), 0.5)
            options = {"axis": 0, "initial": start, "exclusive": exclusive, "reverse": True}
            return parprims.scan(Affine(matrices, offsets), compose, **options).offset

        torch.testing.assert_close(
            torch.compile(run, backend="eager", fullgraph=True)(matrices, offsets), run(matrices, offsets)
        )
