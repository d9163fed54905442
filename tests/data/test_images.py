import io
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from captioner.data.images import Preprocess, find_images, read
from captioner.errors import UserError

RED, WHITE = (255, 0, 0), (255, 255, 255)


def pixel(picture, **save):
    """The pixel that `read` gives for a picture that went through a file."""
    buffer = io.BytesIO()
    picture.save(buffer, save.pop("format", "PNG"), **save)
    found = read(buffer.getvalue())
    assert found.mode == "RGB"
    return found.getpixel((0, 0))


def test_a_fully_transparent_red_is_white():
    assert pixel(Image.new("RGBA", (4, 4), (255, 0, 0, 0))) == WHITE


def test_half_transparent_red_is_pink():
    assert pixel(Image.new("RGBA", (4, 4), (255, 0, 0, 128))) == pytest.approx((255, 127, 127), abs=1)


def test_grey_with_alpha():
    assert pixel(Image.new("LA", (4, 4), (0, 0))) == WHITE
    assert pixel(Image.new("LA", (4, 4), (90, 255))) == (90, 90, 90)


def test_palettes_with_and_without_transparency():
    picture = Image.new("P", (4, 4), 1)
    picture.putpalette([0, 0, 255, 255, 0, 0])
    assert pixel(picture) == RED
    assert pixel(picture, transparency=1) == WHITE
    assert pixel(picture, transparency=0) == RED
    assert pixel(picture, format="GIF", transparency=1) == WHITE


def test_a_transparent_colour_of_an_rgb_png():
    assert pixel(Image.new("RGB", (4, 4), RED), transparency=RED) == WHITE


def test_one_bit_and_grey():
    assert pixel(Image.new("1", (4, 4), 1)) == WHITE
    assert pixel(Image.new("1", (4, 4), 0)) == (0, 0, 0)
    assert pixel(Image.new("L", (4, 4), 77)) == (77, 77, 77)


def test_sixteen_bits_are_scaled_not_clipped():
    levels = np.full((4, 4), 32768, np.uint16)
    assert pixel(Image.fromarray(levels)) == (128, 128, 128)
    assert pixel(Image.fromarray(levels), format="TIFF") == (128, 128, 128)
    assert pixel(Image.fromarray(np.full((4, 4), 100, np.uint16))) == (0, 0, 0)


def test_floating_point_greys():
    assert pixel(Image.fromarray(np.full((4, 4), 0.5, np.float32)), format="TIFF") == (128,) * 3
    assert pixel(Image.fromarray(np.full((4, 4), 51.0, np.float32)), format="TIFF") == (51,) * 3


def test_cmyk_and_ycbcr():
    assert pixel(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), format="JPEG") == pytest.approx(RED, abs=3)
    assert pixel(Image.new("YCbCr", (8, 8), (76, 85, 255)), format="JPEG") == pytest.approx(RED, abs=4)


def test_exif_orientation_is_applied():
    picture = Image.new("RGB", (40, 20), WHITE)
    picture.paste(RED, (0, 0, 20, 20))
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: show it rotated by 90 degrees clockwise
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", exif=exif, quality=95)
    upright = read(buffer.getvalue())
    assert upright.size == (20, 40)
    assert upright.getpixel((10, 5)) == pytest.approx(RED, abs=8)
    assert upright.getpixel((10, 35)) == pytest.approx(WHITE, abs=8)
    _, geometry = Preprocess()(upright)
    assert (geometry.width, geometry.height) == (20, 40)


def test_the_first_frame_of_an_animation():
    frames = [Image.new("RGB", (4, 4), colour) for colour in (RED, WHITE)]
    assert pixel(frames[0], format="GIF", save_all=True, append_images=frames[1:]) == RED


def test_paths_files_and_pictures_give_the_same(tmp_path):
    path = tmp_path / "blume ü.png"
    Image.new("RGB", (5, 3), RED).save(path)
    with open(path, "rb") as file:
        pictures = [read(path), read(str(path)), read(path.read_bytes()), read(file)]
    assert [np.asarray(p).tolist() for p in [*pictures, read(pictures[0])]] == [[[list(RED)] * 5] * 3] * 5


def whole_jpeg():
    buffer = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(buffer, "JPEG")
    return buffer.getvalue()


BAD = {
    "half.jpg": whole_jpeg()[: len(whole_jpeg()) // 2],
    "empty.jpg": b"",
    "page.jpg": b"<!doctype html><title>404</title>",
    "text.png": b"not a picture",
    "header.png": b"\x89PNG\r\n\x1a\n" + b"\x00" * 20,
    "vector.svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_not_a_whole_picture_is_named_in_one_line(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(BAD[name])
    with pytest.raises(UserError, match=name) as caught:
        read(path)
    assert "\n" not in str(caught.value)


def test_missing_files_and_folders_are_named(tmp_path):
    with pytest.raises(UserError, match=r"no picture at .*absent\.jpg"):
        read(tmp_path / "absent.jpg")
    with pytest.raises(UserError, match="folder"):
        read(tmp_path)


def test_a_bomb_is_refused_before_it_is_decoded(tmp_path):
    path = tmp_path / "bomb.png"
    Image.new("1", (20_000, 10_001)).save(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserError, match=r"bomb\.png .*pixels"):
            read(path)
    with pytest.raises(UserError, match=r"20 x 10 pixels, more than 100"):
        read(Image.new("RGB", (20, 10)), max_pixels=100)


def test_find_images(tmp_path):
    (tmp_path / "photos" / "deep").mkdir(parents=True)
    for name in ("b.jpg", "a.PNG", "deep/c.webp"):
        Image.new("RGB", (2, 2)).save(tmp_path / "photos" / name)
    (tmp_path / "photos" / "notes.md").write_text("no picture")
    (tmp_path / "list.txt").write_text("photos/b.jpg\n\nphotos/a.PNG\n")
    folder = tmp_path / "photos"
    assert find_images([folder]) == [folder / "a.PNG", folder / "b.jpg", folder / "deep/c.webp"]
    assert find_images([tmp_path / "list.txt", folder / "b.jpg"]) == [
        *(folder / "b.jpg", folder / "a.PNG", folder / "b.jpg")
    ]
    for bad in ([tmp_path / "absent"], []):
        with pytest.raises(UserError):
            find_images(bad)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no pictures in the folder"):
        find_images([tmp_path / "empty"])


def marked(width, height, box):
    picture = Image.new("RGB", (width, height), WHITE)
    picture.paste((0, 0, 0), tuple(round(side) for side in box))
    return picture


@pytest.mark.parametrize("resize", ["squash", "crop", "pad"])
@pytest.mark.parametrize("shape", [(320, 224), (224, 320), (601, 333)])
def test_a_cells_box_is_what_the_encoder_sees_in_that_cell(resize, shape):
    """Black out a cell's box on the photograph: the input is black in that cell and white elsewhere."""
    preprocess = Preprocess((224, 224), resize)
    _, geometry = preprocess(Image.new("RGB", shape))
    pixels, _ = preprocess(marked(*shape, geometry.cell_box(24, (7, 7))))
    cell = pixels[:, 96:128, 96:128]
    assert cell[:, 3:-3, 3:-3].max() < -0.9
    around = pixels[0, 90:134, 90:134].clone()
    around[3:-3, 3:-3] = 1
    assert around.min() > 0.9


def test_a_picture_of_the_right_size_passes_through_unresampled():
    noise = np.random.default_rng(0).integers(0, 255, (224, 224, 3), dtype=np.uint8)
    pixels, geometry = Preprocess()(Image.fromarray(noise))
    expected = (torch.from_numpy(noise).permute(2, 0, 1) / 255 - 0.5) / 0.5
    torch.testing.assert_close(pixels, expected)
    assert geometry.view == (0, 0, 224, 224)


@pytest.mark.parametrize("resize", ["squash", "crop", "pad"])
@pytest.mark.parametrize("shape", [(1, 1), (4000, 30), (30, 4000)])
def test_extreme_shapes(resize, shape):
    pixels, geometry = Preprocess((96, 160), resize)(Image.new("RGB", shape, WHITE))
    assert pixels.shape == (3, 96, 160) and pixels.isfinite().all()
    assert len(geometry.cell_boxes((3, 5))) == 15


def test_preprocess_as_plain_types_and_back():
    preprocess = Preprocess((96, 160), "pad", (0.1, 0.2, 0.3), (1.0, 2.0, 3.0))
    assert Preprocess.from_dict(preprocess.to_dict()) == preprocess
    with pytest.raises(UserError, match="unknown preprocessing zoom"):
        Preprocess.from_dict({"zoom": 2})
