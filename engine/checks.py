"""Kernels of a model are checked on the user's own GPU before they are used: each way to run one
computes a small case, whose outcome is known from the NumPy references (engine/cases.py). A way
that is wrong here, or that cannot be compiled, is never taken; if no way of a kernel is right,
plans are made of simpler kernels. What was found is remembered by adapter and kernels."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from engine.backends.base import Device, persistent_tensors
from engine.cases import (
    Attend,
    Case,
    Lookup,
    Product,
    Spec,
    apart,
    content,
    expected,
    file_of,
)
from engine.errors import OctavoError, as_octavo_error
from engine.ops.gate import Act
from engine.plan import Call, Plan, Tensor, Traits, Weight
from engine.shaders import fingerprint
from engine.weights.loading import shard_jobs

TOLERANCE = {"f32": 1e-4, "q16": 2e-3, "q8": 4e-2}  # of the largest value, by activations
HALF_TOLERANCE = 4e-3  # where keys and values are rounded to halves
FAILED = "failed"  # the key of trials in which the GPU was lost
PLAIN = ""  # the only way of a kernel that has no variants
Plans = Mapping[str, Plan]
Wrong = dict[str, list[str]]  # ways that are wrong, by `_key` of a case


class Notebook(Protocol):
    """What the engine's host remembers from one visit to the next."""

    async def recall(self, key: str) -> str:
        """What was remembered under ``key``, or an empty text."""
        ...

    async def remember(self, key: str, value: str) -> None:
        """Remember a text for later visits."""
        ...


async def right_plans(
    device: Device,
    build: Callable[[Traits], Plans],
    traits: Traits,
    notebook: Notebook | None = None,
) -> tuple[Plans, Traits]:
    """The plans of a model, of kernels that are right on a GPU, and the traits that they are made
    for. Whatever was on the device is freed, if anything had to be checked. Software adapters are
    not checked: their kernels are those of the tests. OctavoError gpu.wrong if nothing is right."""
    if traits.kind != "webgpu" or traits.software:
        return build(traits), traits
    notes = await _Notes.of(traits, notebook)
    while True:
        plans = build(traits)
        cases = {case: call for plan in plans.values() for case, call in _cases_of(plan)}
        new = [case for case in cases if _key(case, traits) not in notes.wrong]
        if new:
            await _check(device, new, traits, notes)
        wrong = {case: notes.wrong[_key(case, traits)] for case in cases}
        hopeless = [cases[c] for c, ways in wrong.items() if set(ways) >= set(_ways(cases[c]))]
        if not hopeless:
            return {name: _right(plan, wrong) for name, plan in plans.items()}, traits
        traits = _simpler(traits, hopeless)


def _ways(call: Call) -> Iterable[str]:
    return call.variants or [PLAIN]


def _key(case: Case, traits: Traits) -> str:
    kind = f"{traits.subgroup} {traits.barriers} {traits.activations} {traits.workgroup_bytes}"
    return f"{case.name} {kind}"


def _simpler(traits: Traits, hopeless: Iterable[Call]) -> Traits:
    """Of which kernels plans are made if some are wrong in every way."""
    shaders = [call.shader for call in hopeless if call.shader]
    if traits.subgroup and any(shader.enable for shader in shaders):
        return replace(traits, subgroup=0)
    if traits.activations != "f32" and any("_int" in shader.name for shader in shaders):
        return replace(traits, activations="f32")
    if traits.barriers:
        return replace(traits, barriers=False, subgroup=0)
    raise OctavoError("gpu.wrong", hint="Use device=auto or device=cpu.")


def _right(plan: Plan, wrong: Mapping[Case, list[str]]) -> Plan:
    """The same plan without the ways that are wrong."""
    cases = {id(call): case for case, call in _cases_of(plan)}
    return replace(
        plan,
        calls=tuple(
            _without(call, wrong[cases[id(call)]]) if id(call) in cases else call
            for call in plan.calls
        ),
    )


def _without(call: Call, ways: list[str]) -> Call:
    variants = {name: v for name, v in call.variants.items() if name not in ways}
    if len(variants) == len(call.variants):
        return call
    return replace(call.varied(next(iter(variants))), variants=variants)


def _cases_of(plan: Plan) -> Iterable[tuple[Case, Call]]:
    """The case of each call that has one."""
    for call in plan.calls:
        spec = _spec(call)
        if spec:
            case = Case(spec, plan.tokens > 1)
            if case.name in expected():
                yield case, call


def _spec(call: Call) -> Spec | None:
    args, shader = call.args, call.shader
    weight = args.get("w")
    if call.op == "linear" and isinstance(weight, Weight) and shader:
        acts: dict[str, Act] = {"act_silu": "silu", "act_gelu": "gelu"}
        act = next((acts[piece] for piece in shader.lib if piece in acts), None)
        flags = {name: name in args for name in ("bias", "residual")}
        if "parts" in args:
            return Product(weight.quant, bias=flags["bias"], residual=flags["residual"], joins=True)
        # The norm of a gate, or of what adds a bias, is fused or not: as the case is.
        norm = "norm" in args or act is not None or flags["bias"]
        return Product(weight.quant, norm, **flags, act=act)
    if call.op == "embed" and isinstance(weight, Weight):
        return Lookup(weight.quant)
    if call.op in ("attention", "attention_tile", "attention_split") and shader:
        dim = shader.consts["HEAD_DIM"]
        heads = shader.overrides.get("Q_HEADS", 0) // shader.consts["KV_HEADS"]
        group = shader.consts.get("GROUP", heads)
        bytes = args["k_pool"].dtype == "u32"
        return Attend(dim, int(group), bool(shader.overrides["WINDOW"]), bytes)
    return None


@dataclass(frozen=True)
class _Trial:
    """One way to compute a case, on buffers that all ways of it share."""

    case: Case
    way: str
    plan: Plan
    y: Tensor


@dataclass
class _Notes:
    """What is known of an adapter and these kernels: ways that are ``wrong``, and whether the GPU
    was ``lost`` in a check. Then trials are run one by one, to see in which."""

    notebook: Notebook | None
    place: str
    wrong: Wrong
    lost: bool = False

    @classmethod
    async def of(cls, traits: Traits, notebook: Notebook | None) -> _Notes:
        """What is remembered."""
        place = f"checks {fingerprint()} {traits.name}"
        kept = json.loads((await notebook.recall(place) if notebook else "") or "{}")
        return cls(notebook, place, kept.get("wrong", {}), kept.get("lost", False))

    async def keep(self) -> None:
        """Remember it."""
        if self.notebook:
            kept = {"wrong": self.wrong, "lost": self.lost}
            await self.notebook.remember(self.place, json.dumps(kept))


async def _check(device: Device, cases: list[Case], traits: Traits, notes: _Notes) -> None:
    """Note the wrong ways of cases. The device is empty afterwards."""
    trials = [trial for i, case in enumerate(cases) for trial in _trials(i, case, traits)]
    failed = notes.wrong.pop(FAILED, [])
    bad = [trial for trial in trials if trial.plan.name in failed]
    rest = [trial for trial in trials if trial not in bad]
    try:
        together = None if notes.lost else await _tried(device, rest)
        if together is None:
            for trial in rest:
                device.clear()
                found = await _tried(device, [trial])
                bad += [trial] if found is None else found
        else:
            bad += together
    except Exception as error:
        if as_octavo_error(error).code == "gpu.lost":
            # The next load, on another device, goes on from here.
            if notes.lost:
                failed = [*failed, trial.plan.name]
            notes.wrong, notes.lost = notes.wrong | {FAILED: failed}, True
            await notes.keep()
        raise
    finally:
        device.clear()
    notes.wrong |= {_key(case, traits): [] for case in cases}
    for trial in bad:
        notes.wrong[_key(trial.case, traits)].append(trial.way)
    notes.lost = False
    await notes.keep()


async def _tried(device: Device, trials: list[_Trial]) -> list[_Trial] | None:
    """Those that are wrong; None if something cannot be compiled, and nothing is known."""
    try:
        return await _run(device, trials)
    except Exception as error:
        if as_octavo_error(error).code in ("gpu.lost", "memory.device"):
            raise
        return None


def _trials(index: int, case: Case, traits: Traits) -> Iterable[_Trial]:
    plan, y = case.plan(traits)

    def own(name: str) -> str:
        return f"{index}.{name}"

    # What is checked comes last; what it is computed from may have variants, too.
    ways = next((call.variants for call in plan.calls[::-1] if call.variants), None) or [PLAIN]
    y = replace(y, name=own(y.name))
    for way in ways:
        calls = tuple(
            apart(call.varied(way) if way in call.variants else call, own) for call in plan.calls
        )
        name = f"{_key(case, traits)}: {way}".replace(",", "")  # which divides names in a run
        yield _Trial(case, way, replace(plan, name=name, calls=calls), y)


async def _run(device: Device, trials: list[_Trial]) -> list[_Trial]:
    """Those trials that are wrong."""
    plans = [trial.plan for trial in trials]
    tensors = persistent_tensors(plans)
    await device.allocate(tensors.values())
    weights = [t for t in tensors.values() if isinstance(t, Weight)]
    gguf, data = file_of(weights)
    if weights:
        await device.upload(data, shard_jobs(gguf, weights, [len(data)])[0])
        device.finish_upload()
    await device.compile(plans, lambda *_: None)
    wrong = []
    for trial in trials:
        for tensor in persistent_tensors([trial.plan]).values():
            if not isinstance(tensor, Weight):
                name = tensor.name.partition(".")[2]
                device.write(tensor, content(replace(tensor, name=name), trial.case))
        await device.run([trial.plan.name], trial.case.tokens, 1, 0, 0)
        values = array("f", await device.read(trial.y))
        if not _same(values[:: trial.case.stride], expected()[trial.case.name], _tolerance(trial)):
            wrong.append(trial)
    return wrong


def _tolerance(trial: _Trial) -> float:
    if trial.case.attends:
        return HALF_TOLERANCE
    terms = [call.shader.consts.get("TERMS", 0) for call in trial.plan.calls if call.shader]
    return TOLERANCE[{0: "f32", 1: "q8", 2: "q16"}[max(terms)]]


def _same(got: array[float], want: array[float], tolerance: float) -> bool:
    scale = max(map(abs, want))
    if len(got) != len(want):
        return False
    # Not `max`: what is not a number is never close.
    return all(abs(a - b) <= tolerance * scale for a, b in zip(got, want, strict=True))
