from __future__ import annotations
from dataclasses import asdict, dataclass
from typing import Any, Literal
import numpy as np
import torch
from PIL import Image
from captioner.geometry import Geometry

def read(source: Any, max_pixels: int = 100_000_000) -> Image.Image:
    return source if isinstance(source, Image.Image) else Image.open(source).convert("RGB")

@dataclass(frozen=True)
class Preprocess:
    size: tuple[int, int] = (224, 224)
    resize: Literal["squash", "crop", "pad"] = "squash"
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)

    def __call__(self, image):
        w, h = image.size
        if (h, w) != self.size:
            image = image.resize(self.size[::-1], Image.BICUBIC)
        x = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).float() / 255
        x = (x - torch.tensor(self.mean)[:, None, None]) / torch.tensor(self.std)[:, None, None]
        return x, Geometry(w, h, (0.0, 0.0, float(w), float(h)))

    def to_dict(self):
        return {"size": list(self.size), "resize": self.resize, "mean": list(self.mean), "std": list(self.std)}

    @classmethod
    def from_dict(cls, d):
        return cls(tuple(d["size"]), d["resize"], tuple(d["mean"]), tuple(d["std"]))
