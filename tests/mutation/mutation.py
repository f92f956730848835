"""A change of a kernel that a test on the emulator must notice: see run.py."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Mutation:
    """One change: ``old`` stands in the file once and becomes ``new``; ``tests`` are to catch it.

    ``equivalent`` says why no test can.
    """

    file: str
    old: str
    new: str
    tests: str
    equivalent: str = ""

    @property
    def name(self) -> str:
        """The line that changes, and what it becomes."""
        before, after = self.old.splitlines(), self.new.splitlines()
        changed = [one.strip() for one in before if one not in after] or [before[0].strip()]
        becomes = [one.strip() for one in after if one not in before]
        return f"{self.file}: {' '.join(changed)} -> {' '.join(becomes) or 'nothing'}"


def dropped(file: str, line: str, tests: str, equivalent: str = "", *, after: str = "", before: str = "") -> Mutation:
    """Return the mutation that leaves out a statement, of several like it the one between two texts."""
    return Mutation(file, f"{after}{line}{before}", f"{after}{before}", tests, equivalent)
