import io
import os
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import EpsImagePlugin, Image

import captioner
from captioner.data.images import Preprocess, find_images, read
from captioner.errors import UserError

RED, WHITE = (255, 0, 0), (255, 255, 255)
PHOTOS = Path(captioner.__file__).parent / "assets" / "photos"


def saved(picture, format="PNG", **save):
    """The bytes of a picture's file."""
    buffer = io.BytesIO()
    picture.save(buffer, format, **save)
    return buffer.getvalue()


def noise(size=64):
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (size, size, 3), dtype=np.uint8))


def pixel(picture, **save):
    """The pixel that `read` gives for a picture that went through a file."""
    found = read(saved(picture, **save))
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
    assert pixel(picture, transparency=b"\xff\x80") == pytest.approx((255, 127, 127), abs=1)
    assert pixel(picture, format="GIF", transparency=1) == WHITE


def test_a_transparent_colour_of_an_rgb_png():
    assert pixel(Image.new("RGB", (4, 4), RED), transparency=RED) == WHITE


def test_one_bit_and_grey():
    assert pixel(Image.new("1", (4, 4), 1)) == WHITE
    assert pixel(Image.new("1", (4, 4), 0)) == (0, 0, 0)
    assert pixel(Image.new("L", (4, 4), 77)) == (77, 77, 77)
    assert pixel(Image.new("L", (4, 4), 77), transparency=77) == WHITE


def test_sixteen_bits_are_scaled_not_clipped():
    half = Image.fromarray(np.full((4, 4), 32768, np.uint16))
    dark = Image.fromarray(np.full((4, 4), 200, np.uint16))
    for format in ("PNG", "TIFF", "PPM"):
        assert pixel(half, format=format) == (128, 128, 128)
        assert pixel(dark, format=format) == (1, 1, 1)
    assert pixel(half, transparency=32768) == WHITE
    assert read(half).getpixel((0, 0)) == (128, 128, 128)


def test_whole_numbers_of_32_bits():
    def grey(level):
        return read(Image.fromarray(np.full((4, 4), level, np.int32))).getpixel((0, 0))[0]

    assert (grey(200), grey(32768)) == (200, 128)
    ramp = read(Image.fromarray(np.array([[-1000, 0, 1000]], np.int32)))
    assert np.asarray(ramp)[0, :, 0].tolist() == [0, 128, 255]


def test_floating_point_greys():
    def greys(*levels):
        picture = read(saved(Image.fromarray(np.array([levels], np.float32)), "TIFF"))
        return np.asarray(picture)[0, :, 0].tolist()

    assert greys(0.0, 0.5, 1.0) == [0, 128, 255]
    assert greys(0.0, 51.0, 255.0) == [0, 51, 255]
    assert greys(-2.0, 0.0, 2.0) == [0, 128, 255]
    assert greys(np.nan, 0.2, 1.0, np.inf, -np.inf) == [0, 51, 255, 255, 0]
    assert greys(-1e30, 1e30) == [0, 255]
    assert greys(np.nan, np.nan) == [0, 0]


def test_cmyk_and_ycbcr():
    inks, luma = Image.new("CMYK", (8, 8), (0, 255, 255, 0)), Image.new("YCbCr", (8, 8), (76, 85, 255))
    assert b"Adobe" in saved(inks, "JPEG")  # a JPEG holds the inks inverted, a TIFF does not
    assert pixel(inks, format="JPEG") == pytest.approx(RED, abs=3)
    assert pixel(inks, format="TIFF") == RED
    assert pixel(luma, format="JPEG") == pytest.approx(RED, abs=4)
    assert pixel(luma, format="TIFF") == pytest.approx(RED, abs=1)
    assert read(luma).getpixel((0, 0)) == pytest.approx(RED, abs=1)


# Where EXIF's orientation puts the left half of a picture of 40 x 20 pixels: left, top, right, bottom.
LEFT_HALF = {
    1: (0, 0, 20, 20),
    2: (20, 0, 40, 20),
    3: (20, 0, 40, 20),
    4: (0, 0, 20, 20),
    5: (0, 0, 20, 20),
    6: (0, 0, 20, 20),
    7: (0, 20, 20, 40),
    8: (0, 20, 20, 40),
}
# The same for its top half.
TOP_HALF = {
    1: (0, 0, 40, 10),
    2: (0, 0, 40, 10),
    3: (0, 10, 40, 20),
    4: (0, 10, 40, 20),
    5: (0, 0, 10, 40),
    6: (10, 0, 20, 40),
    7: (10, 0, 20, 40),
    8: (0, 0, 10, 40),
}


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_exif_orientation_is_applied(format, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    for half, places in ((0, 0, 20, 20), LEFT_HALF), ((0, 0, 40, 10), TOP_HALF):
        picture = Image.new("RGB", (40, 20), WHITE)
        picture.paste(RED, half)
        upright = read(saved(picture, format, exif=exif, quality=95))
        assert upright.size == ((40, 20) if orientation < 5 else (20, 40))
        rows, columns = np.nonzero(np.asarray(upright)[..., 1] < 128)
        box = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
        assert box == places[orientation]
        assert read(upright).tobytes() == upright.tobytes()  # and not turned again
        _, geometry = Preprocess()(upright)
        assert (geometry.width, geometry.height) == upright.size
        assert geometry.view == (0, 0, *upright.size)


def test_sixteen_bits_are_turned_too():
    exif = Image.Exif()
    exif[0x0112] = 6
    levels = np.zeros((2, 4), np.uint16)
    levels[:, :2] = 65535
    upright = np.asarray(read(saved(Image.fromarray(levels), exif=exif)))[..., 0]
    assert upright.tolist() == [[255, 255], [255, 255], [0, 0], [0, 0]]


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize(
    "exif", [b"garbage", b"II*\0\xff\xff\xff\xff", b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x02"]
)
def test_damaged_exif_spoils_nothing(format, exif):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read(saved(Image.new("RGB", (40, 20)), format, exif=b"Exif\0\0" + exif)).size == (40, 20)


@pytest.mark.parametrize("format", ["GIF", "PNG", "TIFF", "WEBP"])
def test_the_first_frame_of_an_animation(format):
    frames = [Image.new("RGB", (4, 4), colour) for colour in (RED, WHITE)]
    extra = {"lossless": True} if format == "WEBP" else {}
    assert pixel(frames[0], format=format, save_all=True, append_images=frames[1:], **extra) == RED


def test_paths_files_and_pictures_give_the_same(tmp_path):
    path = tmp_path / "blume ü.png"
    Image.new("RGB", (5, 3), RED).save(path)
    with open(path, "rb") as file:
        pictures = [read(path), read(str(path)), read(path.read_bytes()), read(file)]
        assert not file.closed
    assert [np.asarray(p).tolist() for p in [*pictures, read(pictures[0])]] == [[[list(RED)] * 5] * 3] * 5


BAD = {
    "empty.jpg": b"",
    "page.jpg": b"<!doctype html><title>404</title>",
    "text.png": b"not a picture",
    "header.png": b"\x89PNG\r\n\x1a\n" + b"\x00" * 20,
    "vector.svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_not_a_picture_is_named_in_one_line(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(BAD[name])
    with pytest.raises(UserError, match=name) as caught:
        read(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "JPEG2000"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_what_is_not_whole_is_named_without_a_warning(tmp_path, format, share):
    whole = saved(noise(), format)
    path = tmp_path / "part.jpg"
    path.write_bytes(whole[: int(len(whole) * share)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserError, match=r"part\.jpg"):
            read(path)
        with path.open("rb") as file, pytest.raises(UserError, match=r"part\.jpg"):
            read(file)


def test_a_picture_that_proves_damaged_after_it_was_opened():
    whole = saved(noise(), "JPEG")
    with pytest.raises(UserError, match="the picture cannot be read"):
        read(Image.open(io.BytesIO(whole[: len(whole) // 2])))


def test_a_name_with_a_line_break_stays_in_one_line(tmp_path):
    with pytest.raises(UserError) as caught:
        read(tmp_path / "two\nlines.jpg")
    assert r"two\nlines.jpg" in str(caught.value) and "\n" not in str(caught.value)


def test_missing_files_and_folders_are_named(tmp_path):
    (tmp_path / "file").touch()
    for absent in (tmp_path / "absent.jpg", tmp_path / "file" / "absent.jpg"):
        with pytest.raises(UserError, match=r"no picture at .*absent\.jpg"):
            read(absent)
    with pytest.raises(UserError, match=rf"{tmp_path.name} is a folder"):
        read(tmp_path)


def header_of_png(width, height):
    """A PNG that claims a size and holds no pixels at all."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("width", "height", "message"),
    [
        (10_000, 10_001, "10000 x 10001 pixels, more than 100,000,000"),
        (20_000, 10_000, "more than 100,000,000 pixels"),
        (65_000, 65_000, "more than 100,000,000 pixels"),
    ],
)
def test_a_bomb_is_refused_by_its_header(tmp_path, width, height, message):
    path = tmp_path / "bomb.png"
    path.write_bytes(header_of_png(width, height))
    limit = Image.MAX_IMAGE_PIXELS
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserError, match=rf"bomb\.png has {message}"):
            read(path)
    assert limit == Image.MAX_IMAGE_PIXELS


def test_the_bound_on_pixels():
    picture = Image.new("RGB", (20, 10))
    assert read(picture, max_pixels=200).size == (20, 10)
    with pytest.raises(UserError, match=r"20 x 10 pixels, more than 199"):
        read(picture, max_pixels=199)
    with pytest.raises(UserError, match=r"more than 178,956,970 pixels"):
        read(header_of_png(20_000, 10_000), max_pixels=10**9)


def test_warnings_of_others_are_left_alone():
    before = list(warnings.filters)
    read(Image.new("RGB", (2, 2)))
    assert warnings.filters == before


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
    with pytest.raises(UserError, match=r"no picture at .*absent"):
        find_images([folder, tmp_path / "absent"])
    with pytest.raises(UserError, match="no pictures given"):
        find_images([])
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(UserError, match=r"empty\.txt is empty"):
        find_images([tmp_path / "empty.txt"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no pictures in the folder"):
        find_images([tmp_path / "empty"])


def marked(width, height, box):
    picture = Image.new("RGB", (width, height), WHITE)
    picture.paste((0, 0, 0), tuple(round(side) for side in box))
    return picture


@pytest.mark.parametrize("resize", ["squash", "crop", "pad"])
@pytest.mark.parametrize("shape", [(320, 224), (224, 320), (601, 333)])
@pytest.mark.parametrize("size", [(224, 224), (128, 160)])
@pytest.mark.parametrize("cell", [18, 31])  # row 2, column 4; row 4, column 3
def test_a_cells_box_is_what_the_encoder_sees_in_that_cell(resize, shape, size, cell):
    """Black out a cell's box on the photograph: the input is black in that cell and white elsewhere."""
    preprocess = Preprocess(size, resize, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    _, geometry = preprocess(Image.new("RGB", shape))
    pixels, _ = preprocess(marked(*shape, geometry.cell_box(cell, (7, 7))))
    height, width = size[0] / 7, size[1] / 7
    top, left = cell // 7 * height, cell % 7 * width
    inside = pixels[:, round(top + 3) : round(top + height - 3), round(left + 3) : round(left + width - 3)]
    assert inside.max() < 0.05
    around = pixels[0, round(top - 6) : round(top + height + 6), round(left - 6) : round(left + width + 6)]
    around = around.clone()
    around[3:-3, 3:-3] = 1
    assert around.min() > 0.95


HOT = {  # region 18 of a grid of 7 x 7 on a photograph of 320 x 224: left, top, right, bottom
    ("squash", (224, 224)): (4 * 320 / 7, 64, 5 * 320 / 7, 96),
    ("crop", (224, 224)): (48 + 4 * 32, 64, 48 + 5 * 32, 96),
    # The input holds the photograph in 157 whole rows, from row 33 on.
    ("pad", (224, 224)): (4 * 320 / 7, (64 - 33) * 224 / 157, 5 * 320 / 7, (96 - 33) * 224 / 157),
    ("squash", (112, 224)): (4 * 320 / 7, 64, 5 * 320 / 7, 96),
    ("crop", (112, 224)): (4 * 320 / 7, 32 + 2 * 160 / 7, 5 * 320 / 7, 32 + 3 * 160 / 7),
    ("pad", (112, 224)): (4 * 64 - 64, 64, 5 * 64 - 64, 96),
}


@pytest.mark.parametrize(("resize", "size"), HOT)
def test_the_exact_box_of_a_hot_cell(resize, size):
    _, geometry = Preprocess(size, resize)(Image.new("RGB", (320, 224)))
    box = geometry.cell_box(18, (7, 7))
    assert box == pytest.approx(HOT[resize, size])


def test_no_crop_reaches_outside_the_photograph_however_it_rounds():
    preprocess = Preprocess((299, 299), "crop")
    for width in range(1, 400):
        for height in (177, 333, 991):
            x1, y1, x2, y2 = preprocess.view(width, height)
            assert 0 <= x1 < x2 <= width and 0 <= y1 < y2 <= height
    assert preprocess(Image.new("RGB", (2374, 177)))[0].shape == (3, 299, 299)


def test_padding_is_the_mean():
    preprocess = Preprocess((224, 224), "pad", mean=(0.2, 0.4, 0.6))
    pixels, _ = preprocess(Image.new("RGB", (320, 224), WHITE))
    assert pixels[:, :33].abs().max() == 0
    assert pixels[:, 35:188].min() > 0.7


def test_shrinking_averages():
    """A board of single black and white pixels is grey: without antialiasing it would alias."""
    board = np.indices((640, 640)).sum(0) % 2 * 255
    pixels, _ = Preprocess((64, 64))(Image.fromarray(board.astype(np.uint8)).convert("RGB"))
    assert pixels.abs().max() < 0.05


@pytest.mark.parametrize("resize", ["squash", "crop", "pad"])
def test_a_picture_of_the_right_size_passes_through_unresampled(resize):
    picture = noise(224)
    pixels, geometry = Preprocess((224, 224), resize, (0.1, 0.2, 0.3), (1.0, 2.0, 4.0))(picture)
    levels = torch.from_numpy(np.array(picture)).permute(2, 0, 1) / 255
    mean, std = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([1.0, 2.0, 4.0])
    expected = (levels - mean[:, None, None]) / std[:, None, None]
    torch.testing.assert_close(pixels, expected)
    assert geometry.view == (0, 0, 224, 224)


@pytest.mark.parametrize("resize", ["squash", "crop", "pad"])
@pytest.mark.parametrize("shape", [(1, 1), (4000, 30), (30, 4000)])
def test_extreme_shapes(resize, shape):
    pixels, geometry = Preprocess((96, 160), resize)(Image.new("RGB", shape, WHITE))
    assert pixels.shape == (3, 96, 160) and pixels.isfinite().all()
    for x1, y1, x2, y2 in (geometry.cell_box(index, (3, 5)) for index in range(15)):
        assert 0 <= x1 <= x2 <= shape[0] and 0 <= y1 <= y2 <= shape[1]


def test_preprocess_as_plain_types_and_back():
    preprocess = Preprocess((96, 160), "pad", (0.1, 0.2, 0.3), (1.0, 2.0, 3.0))
    assert Preprocess.from_dict(preprocess.to_dict()) == preprocess
    with pytest.raises(UserError, match="unknown preprocessing zoom"):
        Preprocess.from_dict({"zoom": 2})
    with pytest.raises(UserError, match="unknown resize zoom"):
        Preprocess.from_dict({"resize": "zoom"})
    with pytest.raises(UserError, match="0 x 224"):
        Preprocess((0, 224))


def test_the_sample_photographs_have_their_sources():
    sources = (PHOTOS / "SOURCES.md").read_text()
    photos = find_images([PHOTOS])
    assert len(photos) == 5
    for photo in photos:
        assert max(read(photo).size) <= 480
        line = next(line for line in sources.splitlines() if f"`{photo.name}`" in line)
        assert "https://creativecommons.org/" in line


def test_an_empty_file_is_said_to_be_empty(tmp_path):
    (tmp_path / "none.jpg").touch()
    with pytest.raises(UserError, match=r"none\.jpg is empty"):
        read(tmp_path / "none.jpg")
    with pytest.raises(UserError, match="a picture of 0 bytes is empty"):
        read(b"")


def test_no_outside_program_is_started(tmp_path, monkeypatch):
    def ghostscript(*_):
        raise AssertionError("Ghostscript was asked")

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", ghostscript)
    path = tmp_path / "drawing.jpg"
    Image.new("RGB", (4, 4), RED).save(path, "EPS")
    with pytest.raises(UserError, match=r"drawing\.jpg is not a picture in a format that can be read"):
        read(path)
    with (
        Image.open(path) as picture,
        pytest.raises(UserError, match=r"drawing\.jpg is EPS, not in a raster format"),
    ):
        read(picture)


def test_a_pipe_that_nobody_writes_to_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.jpg")
    with pytest.raises(UserError, match=r"a\.jpg is a pipe, not a file"):
        read(tmp_path / "a.jpg")


def test_an_address_is_not_downloaded(tmp_path):
    address = "https://example.org/a.jpg"
    (tmp_path / "list.txt").write_text(address)
    with pytest.raises(UserError, match=f"{address} is an address"):
        read(address)
    with pytest.raises(UserError, match=f"{address} is an address"):
        find_images([address])
    with pytest.raises(UserError, match=f"{address} is an address"):
        find_images([tmp_path / "list.txt"])


def test_a_folder_that_may_not_be_read_is_named(tmp_path, monkeypatch):
    """Not by its mode, which does not stop root."""
    (tmp_path / "closed").mkdir()
    Image.new("RGB", (2, 2)).save(tmp_path / "a.png")

    def scandir(path, plain=os.scandir):
        if os.path.basename(path) == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return plain(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(UserError, match=r"closed cannot be read \(Permission denied\)"):
        find_images([tmp_path])


def test_the_encoders_input_is_bounded():
    with pytest.raises(UserError, match=r"1000000 x 1000000 pixels: give from 1 to 4096 a side"):
        Preprocess((1_000_000, 1_000_000))
