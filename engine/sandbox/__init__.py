"""Where chat templates run: jinja2's immutable sandbox, in which everything has a price.

A budget bounds what a rendering does. Steps stand for time: a round of a loop and a call of a macro
cost as many as their bodies have nodes, comparisons and calls by the size of what they look at.
Bytes stand for memory: every new text or list is paid for, before it is made if it could be much
longer than what it is made of. So no value is without a bound, whichever way it was made: template
code reaches values through operators, literals, calls, filters and tests, and all of them pay.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from types import BuiltinFunctionType
from typing import Any

import markupsafe
from jinja2 import TemplateError, nodes, pass_context
from jinja2.filters import do_round
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from engine.sandbox.budget import GROWTH, Budget, bytes_of
from engine.sandbox.syntax import COMPARE, ITEMS, NEW, ROUND, SLICE, TEXT, Generation, Priced

MAX_INDENT = 16
MAX_DIGITS = 20
MAX_BITS = 1 << 12  # of a number
CALL_STEPS = 8
PIECE_BYTES = 96  # of a short text in a list
FIELD_BYTES = 1000  # what formatting adds to a value: no width has four digits
_FILTERS = (
    "abs attr capitalize count d default dictsort e escape first float forceescape groupby int "
    "items join last length list lower map max min reject rejectattr replace reverse round safe "
    "select selectattr sort string sum title tojson trim truncate unique upper wordcount"
)
FILTERS = frozenset(_FILTERS.split())
# Methods of built-in values. Left out are those that pad, and those that change a value.
_METHODS = (
    "bit_length capitalize casefold copy count endswith find format get index is_integer isalnum "
    "isalpha isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle "
    "isupper items join keys lower lstrip partition removeprefix removesuffix replace rfind rindex "
    "rpartition rsplit rstrip split splitlines startswith strip swapcase title upper "
    "values"
)
METHODS = frozenset(_METHODS.split())
BUILT_IN = (str, bytes, int, float, list, tuple, dict, range, type)
_COMPARING = frozenset({"dictsort", "groupby", "max", "min", "sort", "sum", "unique"})
_CUTTING = frozenset({"list", "rsplit", "sort", "split", "splitlines", "unique", "wordcount"})
_WIDE_FORMAT = re.compile(r"\d{4}|\*|\{[^}]*\{")
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "lteq": operator.le,
    "gt": operator.gt,
    "gteq": operator.ge,
    "in": lambda item, items: item in items,
    "notin": lambda item, items: item not in items,
}


class _Namespace(Namespace):
    """A namespace whose text does not tell what is in it."""

    def __repr__(self) -> str:
        return "<namespace>"


class Sandbox(ImmutableSandboxedEnvironment):
    """The sandbox with what chat templates use; ``budget`` is reset for each rendering."""

    intercepted_binops = frozenset(["+", "-", "*", "/", "//", "**", "%"])

    def __init__(self) -> None:
        self.budget = Budget()
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", Generation],
        )
        del self.globals["lipsum"]
        self.globals["namespace"] = _Namespace
        self.filters |= {"tojson": self._to_json, "round": _round, "safe": str}
        self.filters |= dict.fromkeys(("e", "escape", "forceescape"), _escape)
        self.filters = {name: self._priced(name, self.filters[name]) for name in FILTERS}
        tests: dict[str, Any] = self.tests
        self.tests = {name: self._priced_test(test) for name, test in tests.items()}
        self.filters |= {
            ROUND: self._pay_round,
            ITEMS: self._counted,
            TEXT: self._pay_text,
            NEW: self._pay_new,
            SLICE: self._made,
            COMPARE: self._compare,
        }

    def priced(self, source: str) -> nodes.Template:
        """The parsed template, in which everything pays."""
        tree: nodes.Template = Priced(self).visit(self.parse(source))
        return tree

    def call(self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Every call of a template comes through here."""
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps str.format
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if not isinstance(owner, BUILT_IN) and not isinstance(method, BuiltinFunctionType):
            self._pay_call(args, kwargs)
            made = super().call(__context, __obj, *args, **kwargs)
            return self._pay_new(made) if __obj is dict else self._made(made)
        if name not in METHODS or isinstance(owner, type):
            raise TemplateError(f"the method {name} is not allowed")
        args = self._admitted(name, owner, args, kwargs)
        made = super().call(__context, __obj, *args, **kwargs)
        return self._pay_new(made) if isinstance(owner, str) else self._made(made, owner)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """The operators: what they make is paid for before it is made."""
        for number in (left, right):
            if isinstance(number, int) and number.bit_length() > MAX_BITS:
                raise TemplateError("a number is too large")
        self.budget.step(CALL_STEPS // 2)
        if operator == "**":
            raise TemplateError("powers are not allowed")
        if operator == "%" and isinstance(left, str):
            self._pay_format(left, left.count("%"), right)
        elif operator == "*" and not (_is_number(left) and _is_number(right)):
            text, count = (right, left) if _is_number(left) else (left, right)
            self.budget.make(self.budget.weigh(text) * max(1, int(count)))
        elif operator == "+" and not (_is_number(left) and _is_number(right)):
            self.budget.make(self.budget.weigh(left) + self.budget.weigh(right))
        return super().call_binop(context, operator, left, right)

    def _priced(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        given = 1 if hasattr(function, "jinja_pass_arg") else 0  # a context comes first

        @wraps(function)
        def priced(*args: Any, **kwargs: Any) -> Any:
            first, value, rest = args[:given], args[given], args[given + 1 :]
            if name in _COMPARING and not isinstance(value, str | dict):
                value = self._weighed(value)
            elif name == "join":
                rest = (self._texts(value, *rest[:1], **kwargs), *rest)
                value, rest = rest[0], rest[1:]
            elif name in ("string", "safe"):
                self.budget.room(self.budget.text(value))
            else:
                rest = self._admitted(name, value, rest, kwargs)
            return self._made(function(*first, value, *rest, **kwargs), args[given])

        return priced

    def _priced_test(self, function: Callable[..., Any]) -> Callable[..., Any]:
        given = 1 if hasattr(function, "jinja_pass_arg") else 0

        @wraps(function)
        def priced(*args: Any) -> Any:
            self.budget.step(CALL_STEPS)
            self._pay_comparison(args[given], *args[given + 1 :][:1])
            return function(*args)

        return priced

    def _admitted(
        self, name: str, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, ...]:
        """The arguments of a method or filter, once it is sure that its result can be paid for."""
        self._pay_call((value, *args), kwargs)
        if not isinstance(value, str):
            if name in ("index", "count"):
                self._pay_comparison(args[0], value)
            elif name in ("e", "escape", "forceescape", "title", "trim", "upper", "lower"):
                self.budget.room(GROWTH * self.budget.text(value))
            return args
        if name == "join":
            return (self._texts(args[0], value), *args[1:])
        if name == "format":
            self._pay_format(value, value.count("{"), [*args, *kwargs.values()])
        elif name in _CUTTING:
            by = next((arg for arg in (*args, kwargs.get("sep")) if isinstance(arg, str)), "")
            words = len(value) if name in ("list", "sort", "unique") else len(value) // 2
            self.budget.make(PIECE_BYTES * (value.count(by) if by else words))
        elif name == "replace":
            old, new = [str(arg) for arg in (*args, *kwargs.values()) if isinstance(arg, str)][:2]
            self.budget.room(bytes_of(value) + value.count(old) * bytes_of(new))
        else:
            self.budget.room(GROWTH * bytes_of(value))
        return args

    def _pay_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        looked_at = sum(_length(arg) for arg in (*args, *kwargs.values())) // 64
        self.budget.step(CALL_STEPS + len(args) + len(kwargs) + looked_at)

    def _pay_comparison(self, left: Any, right: Any = None) -> None:
        """Of ``left`` with ``right``, or with each thing in it."""
        many = len(right) if isinstance(right, list | tuple) else 1
        own = 0 if _is_number(left) else self.budget.weigh(left) // 256
        self.budget.step(1 + own * many + _length(right) // 64)

    def _pay_format(self, pattern: str, fields: int, values: Any) -> None:
        if _WIDE_FORMAT.search(pattern):
            raise TemplateError("a format is too wide")
        each = FIELD_BYTES + self.budget.text(values)
        self.budget.make(bytes_of(pattern) + fields * each)

    @pass_context
    def _pay_round(self, context: Context, value: bool, steps: int, nbytes: int) -> bool:
        self.budget.step(steps)
        self.budget.make(nbytes)
        return value

    def _pay_text(self, value: Any) -> Any:
        self.budget.make(self.budget.text(value))
        return value

    def _pay_new(self, value: Any) -> Any:
        self.budget.make(self.budget.weigh(value))
        return value

    def _made(self, value: Any, of: Any = None) -> Any:
        """A result, paid for if it is a new one; if it is an iterator, one that counts."""
        if isinstance(value, Iterator):
            return self._counted(value)
        if value is not of and isinstance(value, str | list | tuple | dict):
            each = 0 if isinstance(value, str) or isinstance(of, list | tuple) else PIECE_BYTES
            self.budget.make(bytes_of(value) + each * len(value))
        return value

    def _counted(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.budget.step(1)
            yield item

    def _weighed(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.budget.step(CALL_STEPS + self.budget.weigh(item) // 16)
            yield item

    def _texts(self, items: Iterable[Any], separator: str = "", **kwargs: Any) -> Iterator[Any]:
        """What is joined, item by item with a separator."""
        between = self.budget.text(kwargs.get("d", separator))
        for item in items:
            self.budget.step(CALL_STEPS)
            self.budget.make(self.budget.text(item) + between)
            yield item

    def _compare(self, left: Any, *pairs: Any) -> Any:
        """A chain of comparisons: operator and right side, one pair after another."""
        result: Any = True
        for name, right in zip(pairs[::2], pairs[1::2], strict=True):
            self._pay_comparison(left, right)
            result = _OPERATORS[name](left, right)
            if not result:
                break
            left = right
        return result

    def _to_json(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """Plain JSON: jinja2's own filter escapes for HTML, which would change the prompt."""
        if indent is not None and not (isinstance(indent, int) and indent <= MAX_INDENT):
            raise TemplateError("the JSON is indented too far")
        if separators and any(len(separator) > MAX_INDENT for separator in separators):
            raise TemplateError("the JSON's separators are too long")
        self.budget.weigh(value)
        encoder = json.JSONEncoder(
            ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )
        pieces = []
        for piece in encoder.iterencode(value):
            self.budget.step(1)
            self.budget.make(bytes_of(piece))
            pieces.append(piece)
        return "".join(pieces)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple | dict) else 0


def _round(value: Any, precision: int = 0, method: Any = "common") -> float:
    if abs(precision) > MAX_DIGITS:
        raise TemplateError("a number is rounded too far")
    return do_round(value, precision, method)


def _escape(value: Any) -> str:
    return str(markupsafe.escape(value))
