"""Facts about the processor that a library's own routines depend on."""

from __future__ import annotations

import functools
import platform
import re
from pathlib import Path

_ZEN_4 = (range(0x10, 0x20), range(0x60, 0x80), range(0xA0, 0xB0))
"""The models of AMD's family 25 that are Zen 4. The others are Zen 3, which has no AVX-512."""


@functools.cache
def compresses_slowly() -> bool:
    """Return whether the processor is a Zen 4 of AMD.

    Its instruction of AVX-512 that stores some lanes of a vector, by a mask, takes hundreds of cycles. NumPy sorts by
    this instruction, and takes ten times as long as on other processors.
    """
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = platform.processor()
    return is_zen_4(text)


def is_zen_4(text: str) -> bool:
    """Return whether a processor is a Zen 4, given the text of /proc/cpuinfo, or its description by Windows."""
    family = re.search(r"(?:^cpu family\s*:|Family) (\d+)", text, re.MULTILINE)
    model = re.search(r"(?:^model\s*:|Model) (\d+)", text, re.MULTILINE)
    if "AuthenticAMD" not in text or family is None or model is None or int(family[1]) != 25:
        return False
    return any(int(model[1]) in models for models in _ZEN_4)
