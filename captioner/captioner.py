"""`Captioner`: a photograph in, a caption out, with where the model looked for each word.

Encode the photographs once, then ask for captions as often as you like:

    regions = captioner.encode(photos)
    for selection in ("soft", "sample", "argmax"):
        captions = captioner.decode(regions, selection)
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, overload

import torch
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from captioner.attention.scoring import region_places
from captioner.attention.selection import selection_rule
from captioner.bounds import Bounds
from captioner.caption import Caption
from captioner.data import images
from captioner.data.images import Preprocess
from captioner.decoding.beam import Hypothesis, beam_search
from captioner.errors import UserError, kind_of
from captioner.files import path_of, read_json, replacing, write_json
from captioner.geometry import Geometry
from captioner.model.decoder import Decoder, Memory
from captioner.model.encoder import Encoder
from captioner.model.regions import Regions
from captioner.text.tokenizer import detokenize
from captioner.text.vocabulary import Vocabulary

Photo: TypeAlias = str | Path | bytes | BinaryIO | Image.Image | Tensor

ASSETS = Path(__file__).parent / "assets"
CONFIG, VOCABULARY, WEIGHTS = "config.json", "vocabulary.json", "model.safetensors"
FORMAT = 2
DECODING = {
    "beam_size": Bounds(1, 100, whole=True),
    "max_length": Bounds(1, 1000, whole=True),
    "length_penalty": Bounds(0, 10),
    "seed": Bounds(-(2**63), 2**63, whole=True),
}


class Captioner(nn.Module):
    """Encoder, decoder, vocabulary and preprocessing of one model.

    Args:
        encoder: photographs to regions.
        decoder: regions to words.
        vocabulary: the words of the decoder's outputs.
        preprocess: how photographs become the encoder's input.
        selection: name of the selection rule for captions where none is asked for.
        trained_with: name of the rule that the decoder was trained with.
    """

    def __init__(
        self,
        encoder: Encoder,
        decoder: Decoder,
        vocabulary: Vocabulary,
        preprocess: Preprocess,
        selection: str = "soft",
        trained_with: str | None = None,
    ) -> None:
        super().__init__()
        if len(vocabulary) != decoder.output.out_features:
            raise UserError(
                f"the vocabulary has {len(vocabulary)} words, the decoder's weights are for "
                f"{decoder.output.out_features}: use the vocabulary that the decoder was trained with"
            )
        self.encoder, self.decoder = encoder, decoder
        self.vocabulary, self.preprocess = vocabulary, preprocess
        self.selection, self.trained_with = selection, trained_with or selection

    @property
    def device(self) -> torch.device:
        return self.decoder.output.weight.device

    def encode(self, photos: Sequence[Photo]) -> Regions:
        """Read and encode photographs: paths, bytes, files, PIL images, or tensors (3, H, W).

        Tensors hold 0 to 255 as uint8, or 0 to 1 as floats. A photograph that has a path is not kept.

        Raises:
            UserError: a photograph that cannot be read, by name.
        """
        if not isinstance(photos, list | tuple):
            raise UserError(f"encode takes a list of photographs, not {kind_of(photos)}")
        if not photos:
            raise UserError("there is no photograph to encode: give at least one")
        prepared: list[tuple[Tensor, Geometry]] = []
        kept: list[Image.Image | Path] = []
        for photo in photos:
            picture = open_photo(photo)
            prepared.append(self.preprocess(picture))
            kept.append(Path(photo).absolute() if isinstance(photo, str | Path) else picture)
        pixels = torch.stack([pixels for pixels, _ in prepared])
        with torch.inference_mode():
            features, grid = self.encoder(pixels.to(self.decoder.output.weight))
        return Regions(
            features,
            grid,
            geometries=[geometry for _, geometry in prepared],
            photos=kept,
            sources=[str(photo) if isinstance(photo, str | Path) else None for photo in photos],
            seeds=[fingerprint(tensor) for tensor in pixels],
        )

    def decode(
        self,
        regions: Regions,
        selection: str | None = None,
        beam_size: int = 3,
        max_length: int = 20,
        length_penalty: float = 0.7,
        seed: int = 0,
    ) -> list[Caption]:
        """The best caption of each photograph under a selection rule.

        Args:
            selection: a rule's name; None is the model's own.
            beam_size: 1 is greedy, 100 the most.
            max_length: the most words of a caption.
            length_penalty: power of the length that log-probabilities are divided by, 0 to 10.
            seed: of random rules; the same photograph and seed give the same caption in any batch.

        Raises:
            UserError: an unknown rule, or a number out of range.
        """
        if not isinstance(regions, Regions):
            raise UserError(f"decode takes what encode gives, not {kind_of(regions)}: encode the photographs")
        numbers = (beam_size, max_length, length_penalty, seed)
        for (name, bounds), number in zip(DECODING.items(), numbers, strict=True):
            bounds.check(name, number)
        if regions.features.shape[-1] != self.decoder.region_size:
            raise UserError(
                f"the model wants regions of {self.decoder.region_size} numbers, encoder "
                f"{self.encoder.name!r} gave {regions.features.shape[-1]}: train it again with this version"
            )
        if not regions.features.isfinite().all():
            raise UserError(
                "there are regions with numbers that are not finite: encode the photographs again"
            )
        if not isinstance(selection, str | None):
            raise UserError(f"selection is a rule's name, not {kind_of(selection)}: give one such as sample")
        rule = selection_rule(selection or self.selection)
        seeds = regions.seeds or [fingerprint(features.half()) for features in regions.features]
        self.eval()
        found = beam_search(
            self.decoder,
            self.read(regions),
            rule,
            beam_size=beam_size,
            max_length=max_length,
            length_penalty=length_penalty,
            seeds=[(photo + int(seed) * 0x9E3779B1) % 2**63 for photo in seeds],
        )
        return [self.compose(hypotheses[0], regions, i, rule.name) for i, hypotheses in enumerate(found)]

    @torch.inference_mode()
    def read(self, regions: Regions) -> Memory:
        """What the decoder reads of the regions, once for all captions."""
        here = self.decoder.output.weight
        mask = None if regions.mask is None else regions.mask.to(here.device)
        return self.decoder.read(regions.features.to(here), region_places(*regions.grid).to(here), mask)

    @overload
    def caption(self, photos: Photo, **settings: Any) -> Caption: ...
    @overload
    def caption(self, photos: Sequence[Photo], **settings: Any) -> list[Caption]: ...
    def caption(
        self, photos: Photo | Sequence[Photo], batch_size: int = 16, **settings: Any
    ) -> Caption | list[Caption]:
        """Caption one photograph, or a list or generator of them; settings as for `decode`."""
        Bounds(1, whole=True).check("batch_size", batch_size)
        if isinstance(photos, Generator):
            photos = list(photos)
        if not isinstance(photos, list | tuple):
            return self.decode(self.encode([photos]), **settings)[0]  # type: ignore[list-item]
        captions: list[Caption] = []
        for first in range(0, len(photos), batch_size):
            captions += self.decode(self.encode(photos[first : first + batch_size]), **settings)
        return captions

    def compose(self, hypothesis: Hypothesis, regions: Regions, i: int, selection: str) -> Caption:
        """The result for photograph i."""
        words = self.vocabulary.decode(hypothesis.words)
        return Caption(
            text=detokenize(words),
            words=words,
            log_prob=hypothesis.log_prob,
            word_log_probs=hypothesis.word_log_probs,
            selection=selection,
            grid=regions.grid,
            weights=hypothesis.weights,
            selected=hypothesis.selected,
            gate=hypothesis.gate,
            heads=hypothesis.heads,
            finished=hypothesis.finished,
            geometry=regions.geometries[i] if regions.geometries else None,
            photo=regions.photos[i] if regions.photos else None,
            source=regions.sources[i] if regions.sources else None,
        )

    def save(self, folder: str | Path, half: bool = False, **notes: Any) -> Path:
        """Write the model to a folder: JSON and safetensors, nothing that runs on loading.

        The encoder's weights are left out where they are the library's own.

        Args:
            half: store float16.
            notes: plain values to keep in the configuration, such as how it was trained.
        """
        folder = path_of(folder, "a model is saved in a folder")
        folder.mkdir(parents=True, exist_ok=True)
        own_encoder = not self.encoder.has_library_weights
        parts = {"decoder": self.decoder} | ({"encoder": self.encoder} if own_encoder else {})
        tensors = {
            f"{part}.{key}": half_if(half and part == "decoder", t)  # an encoder keeps its fingerprint
            for part, module in parts.items()
            for key, t in module.state_dict().items()
        }
        encoder = self.encoder.to_dict()
        if own_encoder:
            encoder["weights"] = None
        config = {
            "format": FORMAT,
            "selection": self.selection,
            "trained_with": self.trained_with,
            "encoder": encoder,
            "encoder_fingerprint": None if own_encoder else self.encoder.library_fingerprint,
            "preprocess": self.preprocess.to_dict(),
            "vocabulary_fingerprint": self.vocabulary.fingerprint(),
            "decoder": {**self.decoder.architecture, "gist": self.decoder.gist},
            "region_size": self.decoder.region_size,
            **notes,
        }
        self.vocabulary.save(folder / VOCABULARY)
        with replacing(folder / WEIGHTS) as partial:
            save_file(tensors, partial)
            partial.chmod(0o644)  # safetensors makes it private
        write_json(config, folder / CONFIG)
        return folder

    @classmethod
    def load(cls, model: str | Path = "flickr8k-hard", device: str | torch.device | None = None) -> Captioner:
        """Load an embedded model by name, or one that `save` wrote, by its folder.

        Args:
            device: where it runs; None is the GPU where there is one.

        Raises:
            UserError: no such model or device, or files that do not belong together.
        """
        folder = find_model(model)
        try:
            config = dict(read_json(folder / CONFIG))
            tensors = load_file(folder / WEIGHTS)
        except (OSError, ValueError, TypeError, SafetensorError) as error:
            raise UserError(f"the model {folder} cannot be read ({error}): copy it again") from None
        if config.get("format") != FORMAT:
            raise UserError(
                f"the model {folder} has format {config.get('format')!r}, this version reads {FORMAT}"
            )
        vocabulary = Vocabulary.load(folder / VOCABULARY)
        damaged = [name for name, tensor in tensors.items() if not tensor.isfinite().all()]
        if damaged:
            raise UserError(
                f"the weights {folder / WEIGHTS} are damaged ({damaged[0]} is not finite): copy the model "
                "again, or train it again with a lower model.learning_rate"
            )
        try:
            captioner = build(config, tensors, vocabulary, folder)
        except (KeyError, TypeError, AttributeError, RuntimeError) as error:
            reason = str(error).strip().splitlines()[0]
            raise UserError(
                f"{folder / CONFIG} and {folder / WEIGHTS} do not fit together "
                f"({type(error).__name__}: {reason}): copy the model again"
            ) from None
        return move(captioner, device)


def build(
    config: dict[str, Any], tensors: dict[str, Tensor], vocabulary: Vocabulary, folder: Path
) -> Captioner:
    """The model of a configuration, with its weights."""
    rows = len(tensors["decoder.output.weight"])
    if rows != len(vocabulary):
        raise UserError(
            f"{folder / VOCABULARY} has {len(vocabulary)} words, {folder / WEIGHTS} has {rows}: "
            "use the files of one model together"
        )
    if vocabulary.fingerprint() != config["vocabulary_fingerprint"]:
        raise UserError(
            f"the words of {folder / VOCABULARY} are not those that {folder / WEIGHTS} was trained with: "
            "use the files of one model together"
        )
    encoder = Encoder(**config["encoder"])
    expected = config["encoder_fingerprint"]
    if expected and encoder.library_fingerprint != expected:
        raise UserError(
            f"the model {folder} was trained on other weights of encoder {encoder.name!r} "
            f"({expected}) than are installed ({encoder.library_fingerprint})"
        )
    own = {key: value.float() if value.is_floating_point() else value for key, value in tensors.items()}
    captioner = Captioner(
        encoder,
        build_decoder(config, own, len(vocabulary), folder),
        vocabulary,
        Preprocess.from_dict(config["preprocess"]),
        selection=config["selection"],
        trained_with=config["trained_with"],
    )
    keys = captioner.load_state_dict(own, strict=False)
    lost = keys.missing_keys if expected is None else []  # the encoder's own come with the library
    if lost or keys.unexpected_keys:
        raise UserError(
            f"{folder / WEIGHTS} does not fit {folder / CONFIG}: "
            f"{len(lost)} tensors missing, {len(keys.unexpected_keys)} too many"
        )
    return captioner.eval()


def build_decoder(config: dict[str, Any], tensors: dict[str, Tensor], words: int, folder: Path) -> Decoder:
    """The decoder of a configuration, made of these very tensors; sizes that do not fit take no memory."""
    with torch.device("meta"):
        decoder = Decoder(words, config["region_size"], **config["decoder"])
    for name, expected in decoder.state_dict().items():
        found = tensors.get(f"decoder.{name}")
        if found is None or found.shape != expected.shape:
            shape = "missing" if found is None else tuple(found.shape)
            raise UserError(
                f"{folder / WEIGHTS} does not fit {folder / CONFIG}: decoder.{name} is {shape}, not "
                f"{tuple(expected.shape)}: copy the model again"
            )
    decoder.load_state_dict({name: tensors[f"decoder.{name}"] for name in decoder.state_dict()}, assign=True)
    return decoder


def move(captioner: Captioner, device: str | torch.device | None) -> Captioner:
    """The captioner on a device; None is the GPU where there is one."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        if torch.device(device).type == "meta":
            raise TypeError("it keeps no numbers")
        return captioner.to(device)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"no device {device!r} here ({reason}): give cpu, or cuda for a GPU") from None


def half_if(half: bool, tensor: Tensor) -> Tensor:
    return (tensor.half() if half and tensor.is_floating_point() else tensor).cpu().contiguous()


def find_model(model: str | Path) -> Path:
    """The folder of a model: one of the embedded models' names, or a path."""
    path = path_of(model, "a model is a name or a folder")
    for folder in (ASSETS / path, path):
        if (folder / CONFIG).is_file():
            return folder
    raise UserError(
        f"no model {str(model)!r}: give a folder that `captioner fit` wrote, or one of "
        f"{', '.join(embedded_models()) or 'the embedded models'}"
    )


def model_files(model: str | Path) -> list[Path]:
    """The files of a model, by its name or folder."""
    folder = find_model(model)
    return [folder / name for name in (CONFIG, VOCABULARY, WEIGHTS)]


def embedded_models() -> list[str]:
    """Names of the models that come with the package."""
    return sorted(config.parent.name for config in ASSETS.glob(f"*/{CONFIG}"))


def open_photo(photo: Photo) -> Image.Image:
    """A photograph as an upright RGB picture."""
    if isinstance(photo, Tensor):
        return open_tensor(photo)
    return images.read(photo)


def open_tensor(photo: Tensor) -> Image.Image:
    if photo.is_meta or photo.is_nested:
        raise UserError("a photograph's tensor must hold numbers, of one size: give a plain tensor (3, H, W)")
    if photo.ndim != 3 or photo.shape[0] not in (1, 3) or photo.numel() == 0:
        raise UserError(f"a photograph's tensor is (3, H, W), not {tuple(photo.shape)}")
    levels = photo.detach().cpu().to_dense()
    if levels.dtype != torch.uint8:
        # Resizing overshoots 0 and 1 by a little; what lies far off was never scaled.
        scaled = levels.is_floating_point() and bool((levels.float() - 0.5).abs().lt(1).all())
        if not scaled:
            raise UserError(
                f"a photograph's tensor holds 0 to 255 as uint8, or 0 to 1 as floats, not this "
                f"{photo.dtype}: convert it with .to(torch.uint8), or divide by 255"
            )
        levels = (levels.float().clamp(0, 1) * 255).round().byte()
    return Image.fromarray(levels.expand(3, -1, -1).permute(1, 2, 0).numpy())


def fingerprint(tensor: Tensor) -> int:
    """A number that tells photographs apart whatever batch they come in."""
    return zlib.crc32(tensor.cpu().contiguous().numpy().tobytes())
