"""A model's own settings from a model spec or an experiment, read with clear errors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias

from fedping.protocol.errors import InvalidSettings, did_you_mean

Setting: TypeAlias = bool | int | float | str


class Settings:
    """Settings by name; finally, :meth:`refuse_others` reports those that were never read.

    ``margin`` and ``epsilon`` come from the model spec. Every method raises
    :class:`fedping.protocol.errors.InvalidSettings` for a value of the wrong kind or out of range, and for a missing
    value without a default.
    """

    def __init__(self, model: str, given: Mapping[str, Setting], margin: float = 10.0, epsilon: float = 1.0) -> None:
        self.model, self.margin, self.epsilon = model, margin, epsilon
        self._given = dict(given)
        self._asked: list[str] = []

    def whole(self, name: str, default: int | None = None, least: int = 1) -> int:
        """Return an integer of at least ``least``."""
        value = self._value(name, default, "a whole number, such as 10")
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self._odd(name, value, f"a whole number of at least {least}")
        return value

    def wholes(self, name: str, default: int) -> tuple[int, ...]:
        """Return integers of at least 1: a single one, or at most 100 in a text, such as "128, 64"."""
        value = self._value(name, default, "a whole number, such as 10")
        parts = value.split(",") if isinstance(value, str) else [value]
        try:
            found = tuple(int(part) for part in parts)
        except (TypeError, ValueError, OverflowError):
            found = ()
        if not found or len(found) > 100 or min(found) < 1 or any(isinstance(part, bool | float) for part in parts):
            raise self._odd(name, value, 'a whole number of at least 1, or several in a text, such as "128, 64"')
        return found

    def number(self, name: str, default: float | None = None, least: float = 0.0) -> float:
        """Return a finite number of at least ``least``."""
        value = self._value(name, default, "a number, such as 0.1")
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < least:
            raise self._odd(name, value, f"a number of at least {least:g}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """Return true or false."""
        value = self._value(name, default, "")
        if not isinstance(value, bool):
            raise self._odd(name, value, "true or false")
        return value

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """Return one of the choices; the first by default."""
        value = self._value(name, choices[0], "")
        if value not in choices:
            raise self._odd(name, value, " or ".join(f"'{choice}'" for choice in choices))
        return str(value)

    def text(self, name: str, default: str | None = None, example: str = "text") -> str:
        """Return a text."""
        value = self._value(name, default, example)
        if not isinstance(value, str):
            raise self._odd(name, value, f"a text, such as {example}")
        return value

    def has(self, name: str) -> bool:
        """Return whether a setting is given."""
        return name in self._given

    def refuse_others(self) -> None:
        """Raise if a setting was given that the model doesn't have."""
        for name in self._given:
            if name not in self._asked:
                there = did_you_mean(name, self._asked) or f"; it has {', '.join(self._asked) or 'none'}"
                raise InvalidSettings(f"the model '{self.model}' has no setting '{name}'{there}")

    def _value(self, name: str, default: Setting | None, example: str) -> Setting:
        self._asked.append(name)
        value = self._given.get(name, default)
        if value is None:
            raise InvalidSettings(f"the model '{self.model}' needs the setting '{name}': {example}")
        return value

    def _odd(self, name: str, value: Setting, wanted: str) -> InvalidSettings:
        return InvalidSettings(f"the setting '{name}' of the model '{self.model}' is {value!r}; set it to {wanted}")
