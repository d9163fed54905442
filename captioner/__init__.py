"""Image captioning with soft and hard attention (Show, Attend and Tell, arXiv 1502.03044).

    import captioner

    model = captioner.load("flickr8k-hard")
    caption = model.caption("dog.jpg", selection="argmax", beam_size=3)
    caption.save_overlay("dog.png")

Importing this package does not import torch: its names come in when they are first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from captioner.caption import Caption
    from captioner.captioner import Captioner
    from captioner.errors import UserError

__version__ = "0.1.0"

__all__ = ["Caption", "Captioner", "UserError", "__version__", "load"]

HOMES = {
    "Caption": "captioner.caption",
    "Captioner": "captioner.captioner",
    "UserError": "captioner.errors",
}


def load(model: str | Path = "flickr8k-hard", device: str | torch.device | None = None) -> Captioner:
    """Load an embedded model by name, or a model that `captioner fit` wrote, by its folder.

    Args:
        device: where it runs; None is the GPU where there is one.

    Raises:
        UserError: no such model or device, or files that do not belong together.
    """
    from captioner.captioner import Captioner

    return Captioner.load(model, device)


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
