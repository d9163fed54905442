"""The numbers that a setting may be."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from captioner.errors import UserError


@dataclass(frozen=True)
class Bounds:
    """From `least` to `most`, both among them unless `above` or `below` says otherwise.

    Attributes:
        above, below: `least`, `most` is not among them.
        whole: whole numbers only.
    """

    least: float
    most: float = math.inf
    above: bool = False
    below: bool = False
    whole: bool = False

    def __contains__(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, Integral if self.whole else Real):
            return False
        number: Any = value  # a whole one may be too large for a float
        if not isinstance(value, Integral) and not math.isfinite(number):
            return False
        low = self.least < number if self.above else self.least <= number
        high = number < self.most if self.below else number <= self.most
        return bool(low and high)

    def __str__(self) -> str:
        if self.most == math.inf:
            return f"{'above' if self.above else 'at least'} {self.least}"
        low = f"above {self.least}" if self.above else f"from {self.least}"
        return f"{low} to {'below ' if self.below else ''}{self.most}"

    def check(self, name: str, value: object) -> None:
        """Refuse a value that is not among them, by the setting's name.

        Raises:
            UserError: it is not.
        """
        if value not in self:
            kind = " and a whole number" if self.whole and isinstance(value, str | float) else ""
            raise UserError(f"{name} must be {self}{kind}, not {value!r}")


def check_all(bounds: Mapping[str, Bounds], settings: Mapping[str, object], prefix: str = "") -> None:
    """Refuse settings that are out of their bounds; None, which leaves a thing out, is not."""
    for name, allowed in bounds.items():
        if settings.get(name) is not None:
            allowed.check(prefix + name, settings[name])
