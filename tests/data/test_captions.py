import json
from pathlib import Path
from typing import Any

import pytest

from captioner.data.captions import CaptionedImage, CaptionSet, read_captions
from captioner.errors import UserError


def write(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def coco(*images: dict[str, Any]) -> dict[str, Any]:
    """COCO's layout of images given with their captions."""
    return {
        "images": [{k: v for k, v in i.items() if k != "captions"} for i in images],
        "annotations": [
            {"image_id": i["id"], "caption": caption} for i in images for caption in i["captions"]
        ],
    }


def karpathy(name: str, split: str, number: int, **more: Any) -> dict[str, Any]:
    return {
        "filename": name,
        "imgid": number,
        "split": split,
        "sentences": [{"raw": f"{name} one ."}, {"raw": f"{name} two ."}],
        **more,
    }


def test_minimal_coco_is_training_data(tmp_path: Path) -> None:
    content = coco({"id": 7, "file_name": "b.jpg", "captions": ["A dog.", "A cat."]})
    captions = read_captions(write(tmp_path / "c.json", content))
    assert captions.images == [CaptionedImage(7, "b.jpg", ("A dog.", "A cat."), "train")]
    assert captions.dropped == {}


def test_an_images_own_split_comes_before_the_one_asked_for(tmp_path: Path) -> None:
    content = coco(
        {"id": 1, "file_name": "a.jpg", "split": "test", "captions": ["A dog."]},
        {"id": 2, "file_name": "b.jpg", "captions": ["A cat."]},
    )
    path = write(tmp_path / "captions_train2017.json", content)
    assert read_captions(path, split="val").splits() == {"test": 1, "val": 1}
    assert read_captions(path).splits() == {"test": 1, "train": 1}


@pytest.mark.parametrize(
    ("file", "image", "split"),
    [
        ("captions_val2017.json", "000000000042.jpg", "val"),
        ("captions_train2014.json", "COCO_train2014_000000000042.jpg", "train"),
        ("captions.json", "COCO_val2014_000000000042.jpg", "val"),
        ("captions.json", "test2017/000000000042.jpg", "test"),
        ("val.json", "latest20.jpg", "train"),
    ],
)
def test_split_from_a_file_name(tmp_path: Path, file: str, image: str, split: str) -> None:
    content = coco({"id": 42, "file_name": image, "captions": ["A dog."]})
    assert read_captions(write(tmp_path / file, content)).images[0].split == split


def test_karpathy_files_of_coco(tmp_path: Path) -> None:
    content = {
        "dataset": "coco",
        "images": [
            karpathy("COCO_val2014_01.jpg", "restval", 0, filepath="val2014", cocoid=391895),
            karpathy("COCO_train2014_02.jpg", "train", 1, filepath="train2014", cocoid=522418),
            karpathy("COCO_val2014_03.jpg", "test", 2, filepath="val2014", cocoid=184613),
        ],
    }
    captions = read_captions(write(tmp_path / "dataset_coco.json", content))
    assert captions.splits() == {"train": 2, "test": 1}
    assert [image.id for image in captions.split("train")] == [391895, 522418]
    assert captions.split("restval") == captions.split("train")
    assert captions.images[0].file_name == "val2014/COCO_val2014_01.jpg"
    assert captions.images[0].captions == ("COCO_val2014_01.jpg one .", "COCO_val2014_01.jpg two .")


def test_karpathy_files_of_flickr_have_no_folder(tmp_path: Path) -> None:
    content = {"images": [karpathy("a.jpg", "val", 0), karpathy("b.jpg", "test", 1)]}
    captions = read_captions(write(tmp_path / "dataset_flickr8k.json", content))
    assert [(i.id, i.file_name, i.split) for i in captions.images] == [
        (0, "a.jpg", "val"),
        (1, "b.jpg", "test"),
    ]


@pytest.mark.parametrize("number", [1, 6, 7])
def test_any_number_of_captions(tmp_path: Path, number: int) -> None:
    texts = [f"caption {i}" for i in range(number)]
    content = coco({"id": 1, "file_name": "a.jpg", "captions": texts})
    assert read_captions(write(tmp_path / "c.json", content)).images[0].captions == tuple(texts)


def test_what_is_dropped_is_counted(tmp_path: Path) -> None:
    content = coco(
        {"id": 1, "file_name": "a.jpg", "captions": ["", "A dog.", " \n", " . "]},
        {"id": 2, "file_name": "none.jpg", "captions": []},
        {"id": 3, "file_name": "empty.jpg", "captions": ["!"]},
    )
    content["annotations"].append({"image_id": 99, "caption": "A stray dog."})
    captions = read_captions(write(tmp_path / "c.json", content))
    assert captions.images == [CaptionedImage(1, "a.jpg", ("A dog.",))]
    assert captions.dropped == {
        "empty captions": 4,
        "images without captions": 2,
        "captions of unknown images": 1,
    }


def test_karpathy_counts_what_is_dropped_too(tmp_path: Path) -> None:
    bare = karpathy("b.jpg", "train", 1) | {"sentences": []}
    content = {"images": [karpathy("a.jpg", "train", 0), bare]}
    assert read_captions(write(tmp_path / "k.json", content)).dropped == {"images without captions": 1}


def test_a_caption_is_one_line_of_any_length(tmp_path: Path) -> None:
    long = " ".join(["word"] * 200)
    broken = "a\ndog\r\nruns\u2028and\x0bjumps\x85 "
    content = coco({"id": 1, "file_name": "a.jpg", "captions": [long, broken]})
    captions = read_captions(write(tmp_path / "c.json", content)).images[0].captions
    assert captions == (long, "a dog runs and jumps")


def test_saved_and_read_again_alike(tmp_path: Path) -> None:
    boxes = ({"word": "circle", "colour": "red", "box": [1, 2.5, 30, 40]},)
    captions = CaptionSet(
        [
            CaptionedImage(1, "train2017/a.jpg", ("A café.", "猫"), "val", boxes),
            CaptionedImage("x", "b.jpg", ("One.",) * 7, "restval"),
        ],
        {"empty captions": 3},
    )
    path = tmp_path / "captions_val2017.json"
    captions.save(path)
    assert read_captions(path) == captions
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_saved_file_is_of_cocos_layout(tmp_path: Path) -> None:
    path = tmp_path / "captions.json"
    CaptionSet([CaptionedImage(5, "a.jpg", ("A dog.", "A cat."), "val")]).save(path)
    content = json.loads(path.read_text())
    assert content["images"] == [{"id": 5, "file_name": "a.jpg", "split": "val"}]
    assert content["annotations"] == [
        {"id": 1, "image_id": 5, "caption": "A dog."},
        {"id": 2, "image_id": 5, "caption": "A cat."},
    ]


def test_a_failed_save_leaves_the_old_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "captions.json"
    captions = CaptionSet([CaptionedImage(1, "a.jpg", ("A dog.",))])
    captions.save(path)
    with pytest.raises(TypeError):
        CaptionSet([CaptionedImage(1, "a.jpg", (object(),))]).save(path)  # type: ignore[arg-type]
    assert read_captions(path) == captions


def test_an_unknown_split_names_those_there_are() -> None:
    captions = CaptionSet([CaptionedImage(1, "a.jpg", ("a",)), CaptionedImage(2, "b.jpg", ("b",), "val")])
    with pytest.raises(UserError, match=r"no split 'dev': choose from train \(1\), val \(1\)"):
        captions.split("dev")


GOOD = {"id": 1, "file_name": "a.jpg"}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ([], "holds no captions"),
        ({}, "holds no captions"),
        (5, "holds no captions"),
        ({"images": [GOOD]}, "holds no captions"),
        ({"images": [GOOD], "annotations": [{"image_id": 1, "bbox": [0, 0, 1, 1]}]}, "no captions"),
        ({"images": [GOOD], "annotations": [{"caption": "A dog."}]}, "image_id"),
        ({"images": [{"id": 1}], "annotations": [{"image_id": 1, "caption": "A."}]}, "file_name"),
        ({"images": [GOOD], "annotations": [{"image_id": 1, "caption": None}]}, "None is not text"),
        (coco({"id": 1, "file_name": 5, "captions": ["A."]}), "5 is not text"),
        ({"images": [GOOD], "annotations": [{"image_id": "1", "caption": "A."}]}, "no image with"),
        ({"images": [GOOD, GOOD], "annotations": [{"image_id": 1, "caption": "A."}]}, "the id 1"),
        ({"images": [{"sentences": [{"raw": "A."}]}]}, "imgid"),
    ],
)
def test_a_bad_file_is_named_in_one_line(tmp_path: Path, content: Any, reason: str) -> None:
    path = write(tmp_path / "c.json", content)
    with pytest.raises(UserError, match=reason) as raised:
        read_captions(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe{}", b"a.jpg#0\tA dog."])
def test_what_is_not_json_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "c.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"c\.json is not JSON"):
        read_captions(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"absent\.json cannot be read \(No such file"):
        read_captions(tmp_path / "absent.json")


def test_a_byte_order_mark_is_no_matter(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    content = coco({"id": 1, "file_name": "a.jpg", "captions": ["A dog."]})
    path.write_text(json.dumps(content), encoding="utf-8-sig")
    assert read_captions(path).splits() == {"train": 1}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"split": 3}, "split 3 of a.jpg is not text"),
        ({"split": ["train"]}, r"split \['train'\] of a.jpg is not text"),
        ({"id": float("nan")}, "id None of a.jpg is neither a whole number nor text"),
        ({"id": 1.5}, "id 1.5 of a.jpg is neither"),
        ({"id": [1]}, "unhashable"),
        ({"boxes": [{"word": "dog", "box": [0, 0, float("inf"), 1]}]}, "of a.jpg is not a word and"),
        ({"boxes": [{"word": "dog", "box": [0, 0, 1, 10**400]}]}, "of a.jpg is not a word and"),
        ({"boxes": [{"word": "dog", "box": [0, 0, 1]}]}, "of a.jpg is not a word and"),
        ({"boxes": [{"box": [0, 0, 1, 1]}]}, "KeyError: 'word'"),
    ],
)
def test_ids_and_splits_of_a_wrong_type_are_named(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    image = {"id": 1, "file_name": "a.jpg", "captions": ["A dog."]} | changes
    with pytest.raises(UserError, match=message):
        read_captions(write(tmp_path / "c.json", coco(image)))


def test_boxes_are_somewhere(tmp_path: Path) -> None:
    image = {
        "id": 1,
        "file_name": "a.jpg",
        "captions": ["A."],
        "boxes": [{"word": "a", "box": [0, 0, 12, 9]}],
    }
    path = write(tmp_path / "c.json", coco(image))
    assert read_captions(path).images[0].boxes == ({"word": "a", "box": [0, 0, 12, 9]},)
    path.write_text(path.read_text().replace("12", "1e999"))
    with pytest.raises(UserError, match=r"inf, 9\]} of a\.jpg is not a word and"):
        read_captions(path)


@pytest.mark.parametrize("number", [[1], {"a": 1}, None, 1.5])
def test_karpathys_ids_of_a_wrong_type_are_named(tmp_path: Path, number: Any) -> None:
    content = {"images": [karpathy("a.jpg", "val", number)]}
    with pytest.raises(UserError, match=r"id .* of a.jpg is neither"):
        read_captions(write(tmp_path / "k.json", content))


@pytest.mark.parametrize("content", ["3", "null", "true", '"text"', "[]", "[1]"])
def test_plain_values_are_no_captions(tmp_path: Path, content: str) -> None:
    path = tmp_path / "c.json"
    path.write_text(content)
    with pytest.raises(UserError, match="holds no captions"):
        read_captions(path)


def test_deep_nesting_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text("[" * 100_000)
    with pytest.raises(UserError, match=r"is not JSON \(nested too deeply\)"):
        read_captions(path)


def test_a_split_in_other_letters_is_suggested(tmp_path: Path) -> None:
    image = {"id": 1, "file_name": "a.jpg", "split": "Train", "captions": ["A dog."]}
    captions = read_captions(write(tmp_path / "c.json", coco(image)))
    with pytest.raises(UserError, match=r"no split 'train': did you mean 'Train', of Train \(1\)\?"):
        captions.split("train")
