import hashlib
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from captioner.data.captions import CaptionedImage, CaptionSet, read_captions
from captioner.data.shapes import COLOURS, GAP, MARGIN, SHAPES, SIDE, SIZES, write_shapes


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CaptionSet]:
    root = tmp_path_factory.mktemp("shapes")
    return root, write_shapes(root, train=60, val=10, test=10, seed=3)


def digests(root: Path) -> dict[str, str]:
    return {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in (root / "images").iterdir()}


def pixels(root: Path, image: CaptionedImage) -> np.ndarray:
    """(SIDE, SIDE, 3)"""
    with Image.open(root / "images" / image.file_name) as picture:
        assert (picture.mode, picture.size) == ("RGB", (SIDE, SIDE))
        return np.asarray(picture).astype(int)


def centre(image: CaptionedImage, noun: str) -> tuple[float, float]:
    [(x1, y1, x2, y2)] = [box["box"] for box in image.boxes if box["word"] == noun]
    return (x1 + x2) / 2, (y1 + y2) / 2


def test_same_seed_same_bytes_other_seed_other_pictures(
    written: tuple[Path, CaptionSet], tmp_path: Path
) -> None:
    root, captions = written
    again = write_shapes(tmp_path / "again", train=60, val=10, test=10, seed=3)
    assert again == captions
    assert digests(tmp_path / "again") == digests(root)
    write_shapes(tmp_path / "other", train=60, val=10, test=10, seed=4)
    assert not set(digests(tmp_path / "other").values()) & set(digests(root).values())


def test_sets_of_any_size_begin_alike(written: tuple[Path, CaptionSet], tmp_path: Path) -> None:
    root, _ = written
    write_shapes(tmp_path, train=5, val=1, test=2, seed=3)
    small = digests(tmp_path)
    assert len(small) == 8
    assert small.items() <= digests(root).items()


def test_no_picture_is_in_two_splits(written: tuple[Path, CaptionSet]) -> None:
    root, captions = written
    assert captions.splits() == {"train": 60, "val": 10, "test": 10}
    assert len(set(digests(root).values())) == 80


def test_the_file_reads_back_with_its_boxes(written: tuple[Path, CaptionSet]) -> None:
    root, captions = written
    assert read_captions(root / "captions.json") == captions


def test_nouns_and_colours_are_unique_in_an_image(written: tuple[Path, CaptionSet]) -> None:
    for image in written[1].images:
        assert len({box["word"] for box in image.boxes} & SHAPES.keys()) == 2
        assert len({box["colour"] for box in image.boxes} & COLOURS.keys()) == 2


def test_five_captions_name_both_objects_from_either_side(
    written: tuple[Path, CaptionSet],
) -> None:
    for image in written[1].images:
        assert len(set(image.captions)) == 5
        names = {f"{box['colour']} {box['word']}" for box in image.boxes}
        ends = {(" ".join(c.split()[:2]), " ".join(c.split()[-2:])) for c in image.captions}
        one, other = names
        assert ends == {(one, other), (other, one)}


def test_relations_are_true_and_the_larger_displacement(written: tuple[Path, CaptionSet]) -> None:
    seen = set()
    for image in written[1].images:
        for caption in image.captions:
            first, second = re.findall("|".join(SHAPES), caption)
            [relation] = re.findall("left|right|above|below", caption)
            (x1, y1), (x2, y2) = centre(image, first), centre(image, second)
            right, down = x2 - x1, y2 - y1
            along, across = (right, down) if relation in ("left", "right") else (down, right)
            assert (along > 0) == (relation in ("left", "above"))
            assert abs(along) >= abs(across) + 16
            seen.add(relation)
    assert seen == {"left", "right", "above", "below"}


def test_boxes_bound_the_objects_pixels(written: tuple[Path, CaptionSet]) -> None:
    root, captions = written
    for image in captions.images:
        picture = pixels(root, image)
        for box in image.boxes:
            x1, y1, x2, y2 = box["box"]
            assert x2 - x1 == y2 - y1
            assert x2 - x1 in SIZES
            # A corner's tip is mixed with the ground, so the plain colour begins up to 4 pixels in.
            near = np.abs(picture - COLOURS[box["colour"]]).max(axis=2) <= 40
            rows, columns = np.nonzero(near)
            assert (columns.min() >= x1) and (columns.max() < x2)
            assert (rows.min() >= y1) and (rows.max() < y2)
            assert columns.min() <= x1 + 4
            assert columns.max() >= x2 - 5
            assert rows.min() <= y1 + 4
            assert rows.max() >= y2 - 5


def test_objects_do_not_touch(written: tuple[Path, CaptionSet]) -> None:
    for image in written[1].images:
        (a, b, c, d), (e, f, g, h) = (box["box"] for box in image.boxes)
        assert max(e - c, a - g, f - d, b - h) >= GAP


def test_the_ground_is_light_and_varies(written: tuple[Path, CaptionSet]) -> None:
    root, captions = written
    tints = []
    for image in captions.images:
        corner = pixels(root, image)[:MARGIN].reshape(-1, 3)
        assert corner.min() >= 200
        assert len(np.unique(corner, axis=0)) > 1
        tints.append(tuple(corner.mean(axis=0).round()))
    assert len(set(tints)) > 70


def test_an_empty_split_is_left_out(tmp_path: Path) -> None:
    assert write_shapes(tmp_path, train=1, val=0, test=0).splits() == {"train": 1}
