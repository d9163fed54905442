"""The feature store: every photograph's region features on disk, encoded once, read by memory map.

A folder with `features.f16` (N, L, D) and `store.json`, which says what the rows are and which encoder,
weights, layer and preprocessing made them. It is written as `NAME.partial` and renamed when complete, so
a store that can be opened is whole; a writer that was killed goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from captioner.data import images
from captioner.data.images import Preprocess
from captioner.errors import UserError
from captioner.files import read_json, write_json
from captioner.model.encoder import Encoder

OnBadImage = Literal["raise", "skip", "report"]
ROWS, INDEX, PROGRESS, PLAN = "features.f16", "store.json", "progress.u8", "plan.json"
DONE = 1


def store_key(encoder: Encoder, preprocess: Preprocess) -> dict[str, Any]:
    """What the features depend on; a store with another key is stale."""
    key = {
        "encoder": encoder.name,
        "layer": encoder.layer,
        "stride": encoder.stride,
        "weights": encoder.fingerprint(),
        "preprocess": preprocess.to_dict(),
    }
    # Stores that were made before there was a choice have no grid in their key.
    return key if encoder.grid is None else key | {"grid": list(encoder.grid)}


class FeatureStore:
    """Region features by file name, read through the page cache: any number of processes share them.

    Attributes:
        rows: the row of each readable photograph, by its file name.
        bad: why each of the others could not be read.
        grid: rows and columns of the encoder's grid.
        size: D, the size of a feature vector.
        key: what made the features, see `store_key`.

    Raises:
        UserError: no store there, or one that another encoder or preprocessing made.
    """

    def __init__(self, root: str | Path, key: dict[str, Any] | None = None) -> None:
        self.root = Path(root)
        index = read_index(self.root)
        self.key: dict[str, Any] = index["key"]
        self.grid: tuple[int, int] = (index["grid"][0], index["grid"][1])
        self.size: int = index["size"]
        self.bad: dict[str, str] = index["bad"]
        self.rows: dict[str, int] = {
            name: row for row, name in enumerate(index["names"]) if name not in self.bad
        }
        if key is not None and key != self.key:
            raise stale(self.root, self.key, key)
        shape = (len(index["names"]), self.grid[0] * self.grid[1], self.size)
        self.features = open_rows(self.root, shape, "r")

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, name: object) -> bool:
        return name in self.rows

    def __getitem__(self, name: str) -> np.ndarray:
        """(L, D) float16 features of one photograph."""
        if name not in self.rows:
            raise UserError(
                f"the feature store {self.root} has no features of {name}: run `captioner prepare` again"
            )
        return self.features[self.rows[name]]

    def batch(self, names: Sequence[str]) -> Tensor:
        """(B, L, D) float32 features of several photographs."""
        stacked = np.stack([self[name] for name in names])
        return torch.from_numpy(stacked).float()


def write_features(
    root: str | Path,
    encoder: Encoder,
    preprocess: Preprocess,
    folder: Path,
    names: Sequence[str],
    batch_size: int = 32,
    workers: int = 1,
    on_bad_image: OnBadImage = "raise",
) -> FeatureStore:
    """Encode the photographs `folder / name` into a store, going on where an earlier run stopped.

    Raises:
        UserError: a photograph cannot be read and `on_bad_image` is `raise`, or none can be, or the disk
            is full.
    """
    root = Path(root).resolve()  # a link to another disk stays one, and the unfinished store lies there too
    grid, size = encoder.measure(preprocess.size)
    index = {
        "key": store_key(encoder, preprocess),
        "grid": list(grid),
        "size": size,
        "names": list(names),
        "photographs": state_of_files(folder, names),
    }
    if is_complete(root, index):
        store = FeatureStore(root)
        if store.bad and on_bad_image == "raise":
            raise UserError(next(iter(store.bad.values())))
        return store
    if root.exists() and not (root / INDEX).is_file():
        raise UserError(f"{root} is not a feature store and would be replaced: choose another --out")
    partial = open_partial(root, index)
    features = open_rows(partial, (len(names), grid[0] * grid[1], size), "r+")
    progress = np.memmap(partial / PROGRESS, np.uint8, "r+", shape=(len(names),))
    todo = [row for row in range(len(names)) if progress[row] != DONE]
    bad: dict[str, str] = {}
    loader = DataLoader(
        Pictures(folder, names, todo, preprocess),
        batch_size=batch_size,
        num_workers=workers,
        collate_fn=collate,
    )
    with progress_bar("encoding photographs", len(names)) as advance, torch.inference_mode():
        advance(len(names) - len(todo))
        for rows, pixels, errors in loader:
            if errors and on_bad_image == "raise":
                raise UserError(next(iter(errors.values())))
            bad.update(errors)
            if rows:
                encoded, _ = encoder(pixels.to(encoder.device))
                features[rows] = encoded.cpu().half().numpy()
                features.flush()
                progress[rows] = DONE
            advance(len(rows) + len(errors))
    if not progress.any():
        del features, progress
        discard(partial)
        raise UserError(
            f"not one of {len(names)} photographs can be read; the first: {next(iter(bad.values()))}"
        )
    index["bad"] = bad
    write_json(index, partial / INDEX, indent=None)
    del features, progress
    replaced = root.with_name(root.name + ".replaced")
    shutil.rmtree(replaced, ignore_errors=True)  # of a writer that was killed here
    with suppress(FileNotFoundError):
        root.rename(replaced)
    partial.rename(root)
    shutil.rmtree(replaced, ignore_errors=True)
    for name in (PROGRESS, PLAN):  # only now: a writer that is killed before goes on from them
        (root / name).unlink()
    return FeatureStore(root)


def state_of_files(folder: Path, names: Sequence[str]) -> str:
    """A hash of the photographs' sizes and times: it changes when one of them does."""
    digest = hashlib.sha256()
    for name in names:
        file = (folder / name).stat()
        digest.update(f"{name} {file.st_size} {file.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def is_complete(root: Path, index: dict[str, Any]) -> bool:
    """Whether the store is there already, of these photographs, by this encoder."""
    if not (root / INDEX).is_file():
        return False
    found = read_index(root)
    return {name: found.get(name) for name in index} == index


class Pictures(Dataset):
    """Photographs as the encoder wants them; one that cannot be read is given as its error."""

    def __init__(
        self, folder: Path, names: Sequence[str], rows: Sequence[int], preprocess: Preprocess
    ) -> None:
        self.folder, self.names, self.rows, self.preprocess = folder, names, rows, preprocess

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, item: int) -> tuple[int, str, Tensor | str]:
        row = self.rows[item]
        name = self.names[row]
        try:
            pixels, _ = self.preprocess(images.read(self.folder / name))
        except UserError as error:
            return row, name, str(error)
        return row, name, pixels


def collate(
    items: list[tuple[int, str, Tensor | str]],
) -> tuple[list[int], Tensor | None, dict[str, str]]:
    """Rows, pixels (B, 3, S, S') of the readable photographs, and the errors of the others by name."""
    good = [(row, pixels) for row, _, pixels in items if isinstance(pixels, Tensor)]
    errors = {name: error for _, name, error in items if isinstance(error, str)}
    rows = [row for row, _ in good]
    # Right in shared memory; copied there, every batch would leave a hole in the heap that no other fits.
    return rows, default_collate([pixels for _, pixels in good]) if good else None, errors


def read_index(root: Path) -> dict[str, Any]:
    try:
        index = read_json(root / INDEX)
        if not {"key", "grid", "size", "names", "bad"} <= set(index):
            raise ValueError("something is missing")
        return index
    except FileNotFoundError:
        raise UserError(f"no feature store at {root}: make one with `captioner prepare`") from None
    except (OSError, ValueError, TypeError) as error:
        raise UserError(
            f"the feature store {root} cannot be read ({error}): remove it and run `captioner prepare`"
        ) from None


def open_rows(root: Path, shape: tuple[int, int, int], mode: Literal["r", "r+"]) -> np.memmap:
    file = root / ROWS
    expected = 2 * shape[0] * shape[1] * shape[2]
    if not file.is_file() or file.stat().st_size != expected:
        raise UserError(
            f"the feature store {root} is damaged ({ROWS} is not {expected} bytes): "
            "remove it and run `captioner prepare`"
        )
    return np.memmap(file, np.float16, mode, shape=shape)


def unfinished(root: Path) -> Path:
    """Where a store lies until it is whole."""
    return root.with_name(root.name + ".partial")


def open_partial(root: Path, index: dict[str, Any]) -> Path:
    """The unfinished store beside `root`: an earlier one of the same content, or a new empty one."""
    partial = unfinished(root)
    rows, (height, width) = len(index["names"]), index["grid"]
    needed = 2 * rows * height * width * index["size"]
    lengths = {ROWS: needed, PROGRESS: rows}
    if partial.exists():
        if goes_on(partial, index, lengths):
            return partial
        remove_unfinished(partial)
    exists = next(folder for folder in root.parents if folder.exists())
    free = shutil.disk_usage(exists).free
    if needed > free:
        raise UserError(
            f"{root.parent} has {amount(free)} free, the features need {amount(needed)}: "
            "choose another folder or free some space"
        )
    partial.mkdir(parents=True)
    try:
        write_json(index, partial / PLAN, indent=None)
        for name, length in lengths.items():
            with open(partial / name, "wb") as file:
                # Taken now: a disk that is full later would end the writing through the map by a signal.
                os.posix_fallocate(file.fileno(), 0, length)
    except OSError as error:
        discard(partial)
        error.filename = error.filename or str(root)
        raise
    return partial


def discard(partial: Path) -> None:
    """Remove an unfinished store that nobody can go on from, and its folder if that was made for it."""
    shutil.rmtree(partial)
    with suppress(OSError):
        partial.parent.rmdir()


def goes_on(partial: Path, index: dict[str, Any], lengths: dict[str, int]) -> bool:
    """Whether an unfinished store is of the same content, and has all its files."""
    files = {name: partial / name for name in lengths}
    if not all(file.is_file() and file.stat().st_size == lengths[name] for name, file in files.items()):
        return False
    try:
        return read_json(partial / PLAN) == index
    except (OSError, ValueError):  # cut off, or not there
        return False


def remove_unfinished(partial: Path) -> None:
    """Remove an unfinished store; anything else of that name is somebody's own."""
    if not partial.is_dir() or (any(partial.iterdir()) and not (partial / PLAN).is_file()):
        raise UserError(
            f"{partial} is not an unfinished feature store and would be replaced: "
            "move it, or choose another --out"
        )
    shutil.rmtree(partial)


def amount(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


def differences(found: dict[str, Any], wanted: dict[str, Any]) -> str:
    """What alone differs between two keys (see `store_key`) or other settings, with both values."""
    found, wanted = (key | key.get("preprocess", {}) | {"preprocess": None} for key in (found, wanted))
    return ", ".join(
        f"{name} {found.get(name)!r} instead of {wanted.get(name)!r}"
        for name in wanted | found
        if found.get(name) != wanted.get(name)
    )


def stale(root: Path, found: dict[str, Any], wanted: dict[str, Any]) -> UserError:
    return UserError(
        f"the feature store {root} was made with {differences(found, wanted)}: "
        "run `captioner prepare` again, or use the model that it was made for"
    )


@contextmanager
def progress_bar(title: str, total: int) -> Iterator[Any]:
    """A progress bar on standard error; yields the function that moves it on."""
    from rich.console import Console

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=total)
        yield lambda amount: progress.advance(task, amount)
