"""What `debug` prints."""

from __future__ import annotations

from collections.abc import Sequence

from engine.host.debug.comparison import Element, Seen
from engine.inspecting import name_of


def heading(compares: bool) -> str:
    """Of a table."""
    columns = (
        f"{'call':<44}{'tensor':<22}{'shape':>14}{'min':>11}{'max':>11}{'mean':>11}{'rms':>11}"
    )
    return columns + (f"{'difference':>12}{'end to end':>12}" if compares else "")


def row(seen: Seen) -> str:
    """A line of the table; a mark where something differs, or is not finite."""
    it = seen.summary
    numbers = "".join(f"{_short(value):>11}" for value in (it.low, it.high, it.mean, it.rms))
    line = f"{_place(seen):<44}{seen.tensor.name[:21]:<22}{_shape(seen.shape):>14}{numbers}"
    for element in (seen.own, seen.whole):
        line += f"{_short(element.difference):>12}" if element else ""
    line += f"  {it.not_finite} of {it.count} not finite" if it.not_finite else ""
    return line + ("  DIFFERS" if seen.differs else "")


def first_difference(seen: Seen) -> list[str]:
    """All that is known of it."""
    assert seen.own
    own = seen.own
    part = seen.allowed / max(seen.largest, 1e-6)
    lines = [
        f"First tensor that differs: {seen.tensor.name} ({seen.arg}), "
        f"{_shape(seen.shape)}, {seen.tensor.dtype}",
        *_about(seen),
        f"  worst element: {_element(own)}",
        f"  allowed: {_short(seen.allowed)} ({_short(part)} of the largest wanted value, "
        f"{_short(seen.largest)})",
        "  (wanted is what the reference computes from the inputs that the device had)",
    ]
    if seen.whole:
        lines.append(f"  end to end, references alone: {_element(seen.whole)}")
    return lines


def first_not_finite(seen: Seen) -> list[str]:
    """Where it is."""
    it = seen.summary
    return [
        f"First value that is not finite: {seen.tensor.name} ({seen.arg}) "
        f"{list(seen.bad or ())}, {it.not_finite} of {it.count} in {_shape(seen.shape)}",
        *_about(seen),
    ]


def closing(seen: Sequence[Seen]) -> str:
    """If nothing differs: how much of what is allowed was needed, and the end of the chain."""
    ratios = [(it.own.difference / it.allowed, it) for it in seen if it.own and it.allowed]
    text = f"{len(seen)} tensors: nothing differs"
    if ratios:
        most, it = max(ratios, key=lambda pair: pair[0])
        text += f"; {it.tensor.name} is nearest to it, with {most:.0%} of what is allowed"
    ends = [it for it in seen if it.whole and it.tensor.name == "logits"]
    for it in ends:
        assert it.whole
        text += (
            f"\nEnd to end, logits of {it.step.plan.name}: {_short(it.whole.difference)} "
            f"beside {_short(it.largest)}, the largest"
        )
    return text


def _about(seen: Seen) -> list[str]:
    """Which call it is, and those whose results only it can show."""
    call, plan = seen.call, seen.step.plan
    where = "outside of the layers" if call.layer is None else f"layer {call.layer}"
    lines = [
        f"  call {seen.index + 1} of {len(plan.calls)} of {plan.name}: {call.label}",
        f"  {where}, op {call.op}, {name_of(call)}, {seen.step.tokens} tokens",
    ]
    read = {call.args[arg].name for arg in call.args}
    for other in plan.calls[: seen.index]:
        if read & {other.args[arg].name for arg in other.private}:
            lines.append(f"  or {other.label} before it, whose result only this call reads")
    return lines


def _place(seen: Seen) -> str:
    layer = "  -" if seen.call.layer is None else f"{seen.call.layer:>3}"
    return f"{seen.step.plan.name[:7]:<8}{seen.index + 1:>3}{layer} {seen.call.label}"[:43]


def _element(it: Element) -> str:
    return (
        f"{list(it.index)}: got {it.got:.7g}, wanted {it.wanted:.7g}, "
        f"difference {_short(it.difference)}"
    )


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _short(value: float) -> str:
    return f"{value:.4g}"
