"""Plans of kernels that a test writes as C++ statements. The library's own kernels call function templates."""

import dataclasses
from typing import Any

from parprims._cuda.plan import Launch, Number, Plan


@dataclasses.dataclass(frozen=True)
class TextLaunch(Launch):
    """A launch of a kernel that consists of the statements of ``body``."""

    body: str = ""

    @property
    def statements(self) -> str:
        return self.body


def text_plan(
    source: str, body: str, inputs: int, outputs: Any, integers: tuple[int, ...], grid: int, block: int, **options: Any
) -> Plan:
    """Return the plan of one launch, in whose body the integers are n0, n1, ..."""
    sizes = ("shared_bytes", "resident_blocks", "unbound_registers", "own_instructions")
    own = {name: options.pop(name) for name in sizes if name in options}
    numbers = tuple(Number(f"n{at}", value) for at, value in enumerate(integers))
    launch = TextLaunch(source, options.pop("name", ""), (), (), grid, block, **own, body=body)
    return Plan((launch,), inputs, outputs, numbers, **options)


def body_of(plan: Plan) -> str:
    """Return the statements of the only launch."""
    return plan.launches[0].statements


def with_body(plan: Plan, *bodies: str) -> Plan:
    """Return a plan with other statements, of a launch for each."""
    launches = tuple(dataclasses.replace(plan.launches[0], body=body) for body in bodies)
    return dataclasses.replace(plan, launches=launches)


def with_integer(plan: Plan, value: int) -> Plan:
    """Return a plan with another value of its only integer."""
    return dataclasses.replace(plan, numbers=(Number("n0", value),))
