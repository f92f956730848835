"""The text that is generated for CUDA kernels of reductions. `reduce.cuda` divides the work and launches."""

from __future__ import annotations

import dataclasses
from typing import Any

from parprims import _cuda
from parprims._core.arrays import Namespace, dtype_bits, dtype_name, is_jax, mode
from parprims._core.memo import Memo
from parprims._operators.function_key import lasting_key
from parprims._operators.languages import C_TYPES, CUDA, Language, register_type
from parprims._operators.operator import BUILT_IN
from parprims._operators.tracing import operator_struct, state_size
from parprims._primitives.reduce.call import Reduction
from parprims._primitives.reduce.traced import Traced, dtype_names, traced

FILE, CONSTANT = "_primitives/reduce/kernels/reduce.cu", "_primitives/reduce/kernels/constant.cuh"
"""The files of the kernels, and of inputs with one element for a whole line."""

# ---- Specialisation ---------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Specialisation:
    """The key of generated kernels: an operator, a map, and the dtypes of the inputs.

    Parameters
    ----------
    code : Traced
        The map and the operator as device code.
    outputs : tuple of str
        The dtypes of the arrays that the kernel writes: all components, or only the last.
    functions : tuple
        The functions, where only their identity distinguishes the specialisation.
    positions : bool
        Whether the last component is the position, which no array holds.
    like : Specialisation, optional
        The specialisation that represents all those that differ in captured numbers alone.
    rounds_products : bool
        Whether products are rounded before they are added: otherwise copies of one operator may round in different
        places, and a segment by offsets would differ from a line.
    """

    code: Traced
    outputs: tuple[str, ...]
    functions: tuple[Any, ...] = ()
    positions: bool = False
    like: Specialisation | None = None
    rounds_products: bool = False

    @property
    def arrays(self) -> tuple[str, ...]:
        """The dtypes of the input arrays."""
        return self.code.inputs[: len(self.code.inputs) - self.positions]

    @property
    def itemsizes(self) -> tuple[int, ...]:
        """The bytes of an element of each input array."""
        return tuple([dtype_bits(name) // 8 for name in self.arrays])

    @property
    def register_bytes(self) -> int:
        """The bytes of the registers that a State takes."""
        return sum(-(-dtype_bits(name) // 32) * 4 for name in self.code.states)

    @property
    def scratch_bytes(self) -> int:
        """The bytes of scratch for a State, which is stored as whole words."""
        return max(self.register_bytes, -(-state_size(self.code.states) // 4) * 4)

    def definitions(self) -> str:
        """Return the CUDA text that kernels for all layouts of the inputs share: Op, Map and Outputs."""
        code = self.code
        members = (
            (register_type(state), expression) for state, expression in zip(code.states, code.codes, strict=True)
        )
        return "\n".join(
            (
                operator_struct("Op", code.states, code.combined, commutative=code.op.commutative),
                "struct Map {",
                "    struct Raw {",
                *(f"        {C_TYPES[name]} x{index};" for index, name in enumerate(code.inputs)),
                "    };",
                "    static DEVICE Op::State element(const Raw& raw) {",
                *(
                    f"        const {register_type(name)} x{index} = value(raw.x{index});"
                    for index, name in enumerate(code.inputs)
                ),
                *(f"        {line}" for line in code.lines),
                f"        return {{{', '.join(f'ops::cast<{kind}>({code})' for kind, code in members)}}};",
                "    }",
                "};",
                "struct Outputs {",
                *(f"    {C_TYPES[name]}* y{index};" for index, name in enumerate(self.outputs)),
                "    template <class Visit>",
                "    DEVICE void each(const Visit& visit) const {",
                *(
                    f"        visit(y{index}, &Op::State::v{index + len(code.states) - len(self.outputs)});"
                    for index in range(len(self.outputs))
                ),
                "    }",
                "};",
            )
        )

    def source(self, vectorized: tuple[bool, ...], constant: tuple[bool, ...]) -> str:
        """Return the CUDA text of the kernels.

        ``vectorized`` flags the inputs that are read as vectors, ``constant`` those with one element for a whole line.
        """
        # Not the View of scans: a reduction reads elements by index, never in descending vectors, stores nothing
        # strided, and needs three strides in place of four, which leaves registers for its loads.
        kinds = [
            f"ConstantInput<{C_TYPES[name]}>"
            if is_constant
            else f"StridedInput<{C_TYPES[name]}, {'true' if is_vector else 'false'}>"
            for name, is_vector, is_constant in zip(self.arrays, vectorized, constant, strict=True)
        ]
        if self.positions:
            kinds.append(f"Positions<{C_TYPES[self.code.inputs[-1]]}>")
        return "\n".join(
            (
                *(["// with --fmad=false"] if self.rounds_products else []),
                _cuda.device_source(FILE, *[CONSTANT] * any(constant)),
                self.definitions(),
                "struct Inputs {",
                "    using Raw = Map::Raw;",
                "    static DEVICE Op::State element(const Raw& raw) { return Map::element(raw); }",
                *(f"    {kind} x{index};" for index, kind in enumerate(kinds)),
                "    template <class Visit>",
                "    DEVICE void each(const Visit& visit) const {",
                *(f"        visit(x{index}, &Raw::x{index});" for index in range(len(kinds))),
                "    }",
                "};",
            )
        )


def specialise(xp: Namespace, r: Reduction, inputs: tuple[str, ...], language: Language = CUDA) -> Specialisation:
    """Return the specialisation for the dtypes of inputs; raise Untraceable if there is none."""
    code = traced(xp, r, inputs, language)
    if r.positions is not None:
        return Specialisation(code, (dtype_name(r.positions),), positions=True)
    # If an initial element follows, results keep the working dtype.
    results = code.results if r.initial is None else code.states
    return Specialisation(code, results, rounds_products=_rounds_products(r))


def _rounds_products(r: Reduction) -> bool:
    """Return whether the call is canonical, and its map or operator may have products: sums alone have none."""
    return r.canonical and (r.fn is not None or r.op is not BUILT_IN["add"])


_specialisations: Memo[Specialisation] = Memo()


def specialised(xp: Namespace, r: Reduction) -> Specialisation:
    """Return the specialisation of a call, from the cache if possible; raise Untraceable if it has none."""
    fn, names = lasting_key(r.fn), dtype_names(r)
    rest = (xp, mode(xp), names, r.single, r.dtypes, r.initial is None, r.positions, _rounds_products(r))
    lasts = r.operation is not None and fn is not None
    known: Any = (r.operation, fn, *rest)
    cached = _specialisations.get(known) if lasts else None
    if cached is not None:
        return cached
    special = specialise(xp, r, names)
    if not lasts or special.code.captured:
        # The functions' variables may have changed, so the key holds the translation that they gave. JAX may call the
        # functions again later, so on JAX the key also holds their ids, and the specialisation keeps them alive.
        if is_jax(xp):
            special = dataclasses.replace(special, functions=(r.fn, r.op.combine))
        key = (special.definitions(), special.code.structure, special.code.single, *map(id, special.functions), *rest)
        like = _specialisations.get(key) or _specialisations.keep(key, special)
        special = like if like.code.captured == special.code.captured else dataclasses.replace(special, like=like)
    return _specialisations.keep(known, special) if lasts else special
