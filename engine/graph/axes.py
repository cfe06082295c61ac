"""Sizes that depend on symbolic axes: polynomials with whole coefficients.

    2*batch*sequence + 1

A size is an int where it can be; whatever has no value as a polynomial (a quotient that leaves a
rest, a comparison that depends on the axes) raises UndeterminedError, and is computed when the axes
have sizes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from engine.errors import OctavoError, shown

MAX_TEXT = 1000  # characters of an expression
MAX_TERMS = 64
MAX_DEGREE = 16
MAX_FACTOR = 1 << 64
_AXIS = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,99}")
_NUMBER = re.compile(r"-?[0-9]{1,18}")

Monomial = tuple[str, ...]  # axes, sorted; one that is squared is there twice


class UndeterminedError(Exception):
    """The value depends on the sizes of axes."""


@dataclass(frozen=True)
class Expression:
    """A sum of products of axes that is no int; axes are whole numbers from 0 on."""

    terms: tuple[tuple[Monomial, int], ...]

    def __add__(self, other: Size) -> Size:
        total = Counter(dict(self.terms))
        for monomial, factor in _terms(other):
            total[monomial] += factor
        return _size(total)

    __radd__ = __add__

    def __neg__(self) -> Size:
        return self * -1

    def __sub__(self, other: Size) -> Size:
        return self + other * -1

    def __rsub__(self, other: Size) -> Size:
        return -self + other

    def __mul__(self, other: Size) -> Size:
        total: Counter[Monomial] = Counter()
        for left, a in self.terms:
            for right, b in _terms(other):
                total[tuple(sorted((*left, *right)))] += a * b
        return _size(total)

    __rmul__ = __mul__

    def __floordiv__(self, other: Size) -> Size:
        """The quotient, if there is no rest: the first terms divided, as with numbers."""
        divisor = _terms(other)
        if not divisor:
            raise UndeterminedError
        below, factor = divisor[0]
        quotient: Size = 0
        rest: Size = self
        while first := _terms(rest):
            monomial, coefficient = first[0]
            left = Counter(monomial)
            left.subtract(below)
            if coefficient % factor or min(left.values(), default=0) < 0:
                raise UndeterminedError
            part = _size({tuple(sorted(left.elements())): coefficient // factor})
            quotient += part
            rest -= part * other
        return quotient

    def __rfloordiv__(self, other: int) -> Size:
        raise UndeterminedError

    def __mod__(self, other: Size) -> int:
        _ = self // other
        return 0

    def __rmod__(self, other: int) -> int:
        raise UndeterminedError

    def __lt__(self, other: Size) -> bool:
        return sign(self - other) < 0

    def __le__(self, other: Size) -> bool:
        return not self > other

    def __gt__(self, other: Size) -> bool:
        return sign(self - other) > 0

    def __ge__(self, other: Size) -> bool:
        return not self < other

    def __bool__(self) -> bool:
        return sign(self) != 0

    def __str__(self) -> str:
        return " + ".join(_term_text(monomial, factor) for monomial, factor in self.terms)


Size = int | Expression
Shape = tuple[Size, ...]


def axis(name: str) -> Expression:
    """The size of an axis."""
    return Expression((((name,), 1),))


def _terms(size: Size) -> tuple[tuple[Monomial, int], ...]:
    return size.terms if isinstance(size, Expression) else ((((), size),) if size else ())


def _size(total: Mapping[Monomial, int]) -> Size:
    """The sum of terms, as an int if it has no axis."""
    left = {monomial: factor for monomial, factor in total.items() if factor}
    if len(left) > MAX_TERMS or any(map(_is_too_large, left.items())):
        raise UndeterminedError
    if not left.keys() - {()}:
        return left.get((), 0)
    # Products first, the number last.
    return Expression(tuple(sorted(left.items(), key=lambda term: (-len(term[0]), term[0]))))


def _is_too_large(term: tuple[Monomial, int]) -> bool:
    """Whether a term is none of a shape: a graph may square what is squared, again and again."""
    monomial, factor = term
    return len(monomial) > MAX_DEGREE or abs(factor) > MAX_FACTOR


def _term_text(monomial: Monomial, factor: int) -> str:
    parts = [*([] if factor == 1 and monomial else [str(factor)]), *monomial]
    return "*".join(parts)


def sign(size: Size) -> int:
    """1, 0 or -1; UndeterminedError if it depends on the axes."""
    factors = dict(_terms(size))
    if not factors:
        return 0
    number = factors.pop((), 0)
    if number > 0 and all(f > 0 for f in factors.values()):
        return 1
    if number < 0 and all(f < 0 for f in factors.values()):
        return -1
    raise UndeterminedError


def same(a: Any, b: Any) -> bool:
    """Whether two values are equal; UndeterminedError if it depends on the axes."""
    if isinstance(a, Expression) or isinstance(b, Expression):
        return sign(a - b) == 0
    return bool(a == b)


def product(sizes: Iterable[Size]) -> Size:
    """The number of elements of a shape."""
    return prod(sizes)


def concrete(shape: Iterable[Size]) -> tuple[int, ...]:
    """A shape that depends on no axes; else UndeterminedError."""
    sizes = tuple(shape)
    if any(isinstance(size, Expression) for size in sizes):
        raise UndeterminedError
    return sizes  # type: ignore[return-value]


def is_concrete(shape: Iterable[Size]) -> bool:
    """Whether a shape depends on no axes."""
    return not any(isinstance(size, Expression) for size in shape)


def value_of(size: Size, sizes: Mapping[str, Size]) -> Size:
    """The size where ``sizes`` says what its axes are; OctavoError graph.invalid if it does not."""
    if isinstance(size, int):
        return size
    missing = {name for monomial, _ in size.terms for name in monomial} - sizes.keys()
    if missing:
        raise OctavoError("graph.invalid", f"Nobody says how long {sorted(missing)} are.")
    result: Size = 0
    for monomial, factor in size.terms:
        result += factor * product(sizes[name] for name in monomial)
    return result


def axes_of(size: Size) -> set[str]:
    """The names of the axes that a size depends on."""
    return {name for monomial, _ in _terms(size) for name in monomial}


def parse_size(text: object) -> Size:
    """An int, or an expression as ``str`` writes it; else OctavoError graph.invalid."""
    if type(text) is int:
        return text
    if not isinstance(text, str) or len(text) > MAX_TEXT:
        raise OctavoError("graph.invalid", f"{shown(text)} is not a size.")
    result: Size = 0
    try:
        for term in text.split("+"):
            result += product(_factor(part.strip(), text) for part in term.split("*"))
    except UndeterminedError:
        raise OctavoError("graph.invalid", f"{shown(text)} is too long for a size.") from None
    return result


def _factor(part: str, text: str) -> Size:
    if _NUMBER.fullmatch(part):
        return int(part)
    if _AXIS.fullmatch(part):
        return axis(part)
    raise OctavoError("graph.invalid", f"{shown(text)} is not a size.")
