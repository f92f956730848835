"""Every kernel where the memory of a GPU ends."""

import contextlib

import numpy as np

import parprims
from tests.support.gpu_calls import arrays, check, every_case, finish


class TestOutOfMemory:
    @every_case
    def test_each_allocation(self, streams, rng, case):
        """Fault 24: whichever allocation of a call fails, it raises, inputs stay, and the next call is right."""
        data = case.make(rng)
        inputs = arrays(streams, data)
        case(*inputs)
        failed = 0
        for at in range(1, 50):
            with self.failing(streams, at) as made:
                try:
                    case(*inputs)
                except Exception as error:
                    failed += 1
                    assert "memory" in str(error).lower(), error  # noqa: PT017  of several types
                    assert isinstance(error, MemoryError | RuntimeError)  # noqa: PT017  PyTorch's is the latter
            if made[0] < at:
                break
            for one, other in zip(inputs, data, strict=True):
                np.testing.assert_array_equal(streams.to_numpy(one), other)
            check(streams, case, data, case(*inputs))
        assert failed >= 1
        assert failed == at - 1

    @contextlib.contextmanager
    def failing(self, gpu, at):
        """Let the library's allocation of that number fail; give how many there were."""
        made = [0]
        if gpu.name == "cupy":
            import cupy

            usual = cupy.cuda.get_allocator()

            def allocate(nbytes):
                made[0] += 1
                if made[0] == at:
                    raise cupy.cuda.memory.OutOfMemoryError(nbytes, 0)
                return usual(nbytes)

            with cupy.cuda.using_allocator(allocate):
                yield made
            return
        import torch
        from torch.utils._python_dispatch import TorchDispatchMode

        class Counting(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                made[0] += 1
                if made[0] == at:
                    raise torch.cuda.OutOfMemoryError("CUDA out of memory")
                return function(*args, **(kwargs or {}))

        with Counting():
            yield made

    def test_nearly_full(self, streams, rng):
        """The same by the device's own refusal: ever more memory, until a large sort succeeds."""
        from tests.primitives.sort.test_sort_kernel import limited

        keys = rng.integers(-(1 << 30), 1 << 30, 1 << 23).astype(np.int32)
        x, failed = streams.asarray(keys), 0
        expected = np.sort(keys)
        for left in range(40):
            finish(streams)
            with limited(streams, (left * 8 + 1) << 20) as error:
                try:
                    y = parprims.sort(x, method="kernel")
                except error:
                    failed += 1
                    continue
            np.testing.assert_array_equal(streams.to_numpy(y), expected)
            break
        assert failed > 1
        np.testing.assert_array_equal(streams.to_numpy(x), keys)
        np.testing.assert_array_equal(streams.to_numpy(parprims.sort(x, method="kernel")), expected)
