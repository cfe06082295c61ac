"""What is done when a model's GPU is lost: it is loaded anew, after pauses that grow. While the
browser gives no GPU, that is waited for; in the end the CPU takes its place, if it may."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from engine.backends.base import Device
from engine.config import LoadConfig
from engine.errors import OctavoError, as_octavo_error
from engine.loader import Host

T = TypeVar("T")
Opened = tuple[Device, str]  # and why it is not the GPU
Open = Callable[[LoadConfig], Awaitable[Opened]]

BACK_OFF = (0.0, 1.0, 2.0, 4.0)  # seconds after so many losses in a row; one more is too many
PATIENCE_SECONDS = 60.0  # that a browser which gives no GPU is asked again
ASK_SECONDS = 1.0  # between two requests
TOO_OFTEN = "The GPU was lost again and again, so the CPU computes the answers."
NOT_GIVEN = "The GPU was lost and the browser gives no other one, so the CPU computes the answers."
WRONG = "This GPU computes wrong numbers, so the CPU computes the answers."
REFUSED = "The GPU cannot load this model ({}), so the CPU computes the answers."


@dataclass(frozen=True)
class News:
    """How a recovery stands: before the next try it is ``paused``, or there is no GPU and it is
    ``waiting`` for one, or the model is ``loading``, or ``ready`` on ``device``."""

    state: Literal["paused", "waiting", "loading", "ready"]
    losses: int  # in a row
    device: dict[str, Any] | None = None

    def to_wire(self) -> dict[str, Any]:
        """The news as they cross to the page."""
        about = {"state": self.state, "losses": self.losses}
        return about | ({"device": self.device} if self.device else {})


Tell = Callable[[News], None]


class _GivenUpError(OctavoError):
    """There is no GPU to go on with, and nothing else would do."""

    def __init__(self, message: str) -> None:
        hint = "Load the model again, or use device=auto or device=cpu."
        super().__init__("gpu.lost", message, hint)


@dataclass
class Recovery:
    """Of one model. ``losses`` of its devices, without a token in between; ``fallen`` says why the
    CPU has taken their place for good."""

    losses: int = 0
    fallen: str = ""

    def works(self) -> None:
        """The model made a token."""
        self.losses = 0

    async def load(
        self, attempt: Callable[[Open], Awaitable[T]], host: Host, config: LoadConfig, tell: Tell
    ) -> T:
        """The outcome of the first ``attempt`` to load the model, on the device that it is given
        the opener of, in which the device is not lost.

        Where any device will do, the CPU has what the GPU cannot load. Raises OctavoError gpu.lost
        if a GPU is not to be hoped for and ``config`` wants one, and what the attempt raises."""

        async def open_device(config: LoadConfig) -> Opened:
            return await self._open(host, config, tell)

        while True:
            await self._pause(config, tell)
            try:
                return await attempt(open_device)
            except Exception as error:
                failure = as_octavo_error(error)
                # The CPU cannot be lost.
                given_up = self.fallen or isinstance(error, _GivenUpError)
                if given_up or not failure.code.startswith("gpu."):
                    raise
                if failure.code == "gpu.lost":
                    self.losses += 1
                elif config.device == "auto":  # for this model
                    why = REFUSED.format(failure.message.rstrip("."))
                    self.fallen = WRONG if failure.code == "gpu.wrong" else why
                else:
                    raise

    async def _pause(self, config: LoadConfig, tell: Tell) -> None:
        if self.losses > len(BACK_OFF) and not self.fallen:
            self._give_up(config, TOO_OFTEN)
        if not self.losses or self.fallen:
            return
        seconds = BACK_OFF[self.losses - 1]
        if seconds:
            tell(News("paused", self.losses))
            await asyncio.sleep(seconds)
        tell(News("loading", self.losses))

    def _give_up(self, config: LoadConfig, reason: str) -> None:
        """From now on the CPU computes, or whoever asks next begins anew."""
        if config.device == "auto":
            self.fallen = reason
            return
        self.losses = 0
        raise _GivenUpError(reason.partition(", so ")[0] + ".")

    async def _open(self, host: Host, config: LoadConfig, tell: Tell) -> Opened:
        if not (self.losses or self.fallen):
            return await host.open_device(config)
        since = host.now()
        while not self.fallen:
            device = await self._ask(host, config)
            if device:
                return device, ""
            if host.now() - since >= PATIENCE_SECONDS:
                self._give_up(config, NOT_GIVEN)
            elif not self.fallen:
                tell(News("waiting", self.losses))
                await asyncio.sleep(ASK_SECONDS)
        device, _ = await host.open_device(replace(config, device="cpu"))
        return device, self.fallen

    async def _ask(self, host: Host, config: LoadConfig) -> Device | None:
        """A GPU like the one that was lost, or None while the browser gives none."""
        try:
            device, _ = await host.open_device(replace(config, device="gpu"))
        except Exception as error:
            code = as_octavo_error(error).code
            if code == "gpu.unavailable":
                return None
            if code != "gpu.wrong" or config.device != "auto":
                raise
            self.fallen = WRONG
            return None
        if device.traits.software and config.device == "auto":
            # The browser computes in place of a GPU that crashed; the CPU's own kernels are faster.
            device.close()
            return None
        return device
