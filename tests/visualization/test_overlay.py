"""The strip is measured in its own pixels: what changes, where, when one weight changes."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageColor, ImageDraw

from captioner.caption import Caption
from captioner.data.images import Preprocess
from captioner.errors import UserError
from captioner.geometry import Geometry
from captioner.visualization.overlay import (
    OUTLINE,
    Layout,
    draw_strip,
    heat_map,
    is_drawn_here,
    save_picture,
)

GRID = (5, 7)
SIZES = {"landscape": (640, 400), "portrait": (300, 480), "panorama": (900, 200)}
BRIGHT = ImageColor.getrgb(OUTLINE[-1])


def geometry_of(size: tuple[int, int], resize: str) -> Geometry:
    """How a square encoder input shows a photograph of this width and height."""
    return Geometry(*size, Preprocess(resize=resize).view(*size))


def cell_at(x: float, y: float, geometry: Geometry) -> int:
    """The cell whose box holds a pixel of the photograph."""
    boxes = (geometry.cell_box(cell, GRID) for cell in range(GRID[0] * GRID[1]))
    (found,) = (cell for cell, (x1, y1, x2, y2) in enumerate(boxes) if x1 <= x < x2 and y1 <= y < y2)
    return found


def photograph(size: tuple[int, int], seed: int = 0) -> Image.Image:
    noise = np.random.default_rng(seed).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC)


def caption_of(
    words: list[str],
    image: Image.Image | None,
    cells: list[int | None],
    geometry: Geometry | None = None,
    selected: list[list[int]] | None = None,
    grid: tuple[int, int] = GRID,
) -> Caption:
    """A caption whose word t attends to cell `cells[t]` alone; None: to nothing at all."""
    weights = torch.zeros(len(words), grid[0] * grid[1])
    for t, cell in enumerate(cells):
        if cell is not None:
            weights[t, cell] = 1.0
    return Caption(
        text=" ".join(words),
        words=words,
        log_prob=-1.0,
        word_log_probs=torch.full((len(words),), 0.5).log(),
        selection="soft" if selected is None else "sample",
        grid=grid,
        weights=weights,
        selected=None if selected is None else torch.tensor(selected),
        gate=torch.full((len(words),), 0.5),
        geometry=geometry,
        photo=image,
    )


def pixels(image: Image.Image) -> np.ndarray:
    return np.asarray(image).astype(int)


def panels(caption: Caption, strip: Image.Image) -> list[np.ndarray]:
    """Pixels of every panel's photograph, panel 0 first."""
    geometry = caption.geometry
    assert geometry is not None
    layout = Layout.of(caption, geometry)
    width, height = layout.panel
    corners = [layout.corner(index) for index in range(layout.count)]
    return [pixels(strip)[y : y + height, x : x + width] for x, y in corners]


def drawn_box(caption: Caption, cell: int) -> tuple[float, ...]:
    """A cell's box in pixels of a panel, by Geometry alone."""
    geometry = caption.geometry
    assert geometry is not None
    width, height = Layout.of(caption, geometry).panel
    scale = (width / geometry.width, height / geometry.height) * 2
    box = geometry.cell_box(cell, caption.grid)
    return tuple(edge * factor for edge, factor in zip(box, scale, strict=True))


def changed(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.abs(first - second).max(axis=-1)


def extent(mask: np.ndarray) -> tuple[int, int, int, int]:
    """x1, y1, x2, y2 of the true pixels."""
    ys, xs = np.nonzero(mask)
    return xs.min(), ys.min(), xs.max() + 1, ys.max() + 1


@pytest.mark.parametrize("resize", ["squash", "crop", "pad"])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_hot_cell_is_hot_where_geometry_says(size, resize):
    geometry = geometry_of(size, resize)
    # In the middle row and column of a padded photograph, next to the middle in the others.
    cell = 2 * GRID[1] + 3 if resize == "pad" else 1 * GRID[1] + 4
    hot = caption_of(["dog"], photograph(size), [cell], geometry)
    cold = replace(hot, weights=torch.zeros_like(hot.weights))
    heat = changed(panels(hot, draw_strip(hot))[1], panels(cold, draw_strip(cold))[1])
    x1, y1, x2, y2 = drawn_box(hot, cell)
    ys, xs = np.mgrid[0.5 : heat.shape[0], 0.5 : heat.shape[1]]
    inside = (xs > x1) & (xs < x2) & (ys > y1) & (ys < y2)
    far = np.maximum(np.abs(xs - (x1 + x2) / 2) / (x2 - x1), np.abs(ys - (y1 + y2) / 2) / (y2 - y1))
    middle = far < 0.25
    assert heat[middle].min() > 50
    assert heat[~inside].mean() < 0.1 * heat[inside].mean()
    assert heat[far > 2].max() == 0
    left, top, right, bottom = extent(heat > 5)
    assert (left + right) / 2 == pytest.approx((x1 + x2) / 2, abs=3)
    if resize != "pad" or (y1 > 0 and y2 < heat.shape[0]):
        assert (top + bottom) / 2 == pytest.approx((y1 + y2) / 2, abs=3)


@pytest.mark.parametrize("resize", ["squash", "crop", "pad"])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_every_cells_heat_peaks_in_that_cell(size, resize):
    geometry = geometry_of(size, resize)
    shown = 0
    for cell in range(GRID[0] * GRID[1]):
        row, column = divmod(cell, GRID[1])
        x1, y1, x2, y2 = geometry.view
        x = x1 + (column + 0.5) / GRID[1] * (x2 - x1)
        y = y1 + (row + 0.5) / GRID[0] * (y2 - y1)
        if not (0 < x < geometry.width and 0 < y < geometry.height):
            continue
        weights = np.zeros(GRID, np.float32)
        weights[row, column] = 1
        # One pixel of the map to each of the photograph.
        heat = heat_map(weights, geometry, size)
        peak_y, peak_x = np.unravel_index(np.nanargmax(heat), heat.shape)
        assert cell_at(peak_x + 0.5, peak_y + 0.5, geometry) == cell
        assert heat[peak_y, peak_x] == pytest.approx(1, abs=0.01)
        shown += 1
    assert shown >= GRID[1]


@pytest.mark.parametrize("resize", ["squash", "crop", "pad"])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_heat_lands_on_what_the_encoder_saw(size, resize):
    # A lamp in a dark photograph, off the middle; attention goes where the input is bright.
    x, y, radius = 0.55 * size[0], 0.45 * size[1], min(size) / 20
    photo = Image.new("RGB", size)
    ImageDraw.Draw(photo).ellipse((x - radius, y - radius, x + radius, y + radius), fill="white")
    dark = Preprocess((210, 210), resize, mean=(0, 0, 0), std=(1, 1, 1))
    seen, geometry = dark(photo)
    light = seen.mean(0).reshape(5, 42, 7, 30).mean((1, 3)).numpy()
    heat = np.nan_to_num(heat_map(light / light.sum(), geometry, size))
    ys, xs = np.mgrid[0.5 : size[1], 0.5 : size[0]]
    x1, y1, x2, y2 = geometry.view
    # A grid knows where within half a cell.
    assert (heat * xs).sum() / heat.sum() == pytest.approx(x, abs=0.5 * (x2 - x1) / 7)
    assert (heat * ys).sum() / heat.sum() == pytest.approx(y, abs=0.5 * (y2 - y1) / 5)
    peak_y, peak_x = np.unravel_index(heat.argmax(), heat.shape)
    assert cell_at(peak_x + 0.5, peak_y + 0.5, geometry) == cell_at(x, y, geometry)


def test_heat_between_two_cells_is_smooth_and_exact_at_their_centres():
    geometry = geometry_of((70, 50), "squash")
    weights = np.zeros(GRID, np.float32)
    weights[2, 2], weights[2, 3] = 0.25, 0.75
    row = heat_map(weights, geometry, (700, 500))[250]
    assert row[[250, 350]] == pytest.approx([0.25, 0.75], abs=0.01)
    assert np.diff(row[250:350]).min() >= 0
    assert np.abs(np.diff(row)).max() < 0.02
    assert row.min() == 0


def test_what_a_crop_leaves_out_has_no_heat_and_is_pale():
    size = (600, 300)
    geometry = geometry_of(size, "crop")
    weights = np.full(GRID, 1 / 35, np.float32)
    heat = heat_map(weights, geometry, size)
    assert np.isnan(heat[:, :150]).all() and np.isnan(heat[:, 450:]).all()
    assert heat[:, 150:450] == pytest.approx(1 / 35, rel=1e-5)
    black = caption_of(["dog"], Image.new("RGB", size, "black"), [17], geometry)
    panel = panels(black, draw_strip(black))[1]
    assert panel[:, 1].min() > 140 and panel[:, -2].min() > 140
    assert panel[5, panel.shape[1] // 2].max() < 60


def test_padding_takes_its_share_of_the_grid():
    # Half of a 2:1 photograph's input is padding: rows 1 and 2 of 4 show the photograph.
    geometry = geometry_of((400, 200), "pad")
    weights = np.zeros((4, 4), np.float32)
    weights[1] = 1
    heat = heat_map(weights, geometry, (400, 200))
    assert heat[50].min() == pytest.approx(1, abs=0.01)
    assert heat[150].max() == pytest.approx(0, abs=0.01)


def test_word_t_has_map_t():
    image, cells = photograph(SIZES["landscape"]), [0, 34, 6, 17, 28]
    geometry = geometry_of(image.size, "squash")
    caption = caption_of(list("abcde"), image, cells, geometry)
    cold = replace(caption, weights=torch.zeros_like(caption.weights))
    pairs = zip(panels(caption, draw_strip(caption)), panels(cold, draw_strip(cold)), strict=True)
    heats = [changed(hot, unlit) for hot, unlit in pairs]
    assert heats[0].max() == 0
    for t, cell in enumerate(cells):
        x1, y1, x2, y2 = (round(edge) for edge in drawn_box(caption, cell))
        means = [heat[y1 + 5 : y2 - 5, x1 + 5 : x2 - 5].mean() for heat in heats[1:]]
        assert np.argmax(means) == t
        assert sorted(means)[-2] < 1


def test_first_panel_is_the_photograph_itself():
    image = photograph((288, 216))
    caption = caption_of(["dog"], image, [3], geometry_of(image.size, "squash"))
    assert np.array_equal(panels(caption, draw_strip(caption))[0], pixels(image))


@pytest.mark.parametrize("count", [1, 2, 5, 9, 12, 20])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_one_panel_a_word_and_one_for_the_photograph(count, size):
    colour = (10, 60, 200)
    image = Image.new("RGB", size, colour)
    caption = caption_of(["w"] * count, image, [None] * count, geometry_of(size, "squash"))
    strip = draw_strip(caption)
    picture = pixels(strip)
    area = (picture == colour).all(axis=-1).sum()
    muted = panels(caption, strip)[1][0, 0]
    assert not np.array_equal(muted, colour)
    assert (picture == muted).all(axis=-1).sum() == count * area
    assert 0.7 < strip.width / strip.height < 6
    assert strip.width <= 2200


def test_columns_can_be_chosen():
    image = photograph((320, 240))
    caption = caption_of(list("abcdef"), image, [None] * 6, geometry_of(image.size, "squash"))
    one, many, row = (draw_strip(caption, columns=n) for n in (1, 3, 7))
    assert one.width < many.width < row.width
    assert one.height > many.height > row.height
    assert draw_strip(caption, columns=99).size == row.size


@pytest.mark.parametrize(("size", "panel"), [((5000, 1), (420, 64)), ((100, 2000), (64, 420))])
def test_thin_photographs_are_drawn_thicker_with_a_thin_outline(size, panel):
    """A region of 42 x 6.4 pixels has one line around it, not three, and its neighbours stay visible."""
    geometry = geometry_of(size, "squash")
    caption = caption_of(["a"], Image.new("RGB", size, "teal"), [55], geometry, [[55]], grid=(10, 10))
    assert Layout.of(caption, geometry).panel == panel
    strip = draw_strip(caption)
    outlined = panels(caption, strip)[1] == BRIGHT
    left, top, right, bottom = extent(outlined.all(axis=-1))
    across, down = sorted((right - left, bottom - top))
    assert (across, down) == (pytest.approx(8, abs=1), pytest.approx(44, abs=1))
    assert outlined.all(axis=-1).sum() == 2 * (across + down) - 4


@pytest.mark.parametrize("size", [*SIZES.values(), (64, 64), (2000, 1500)])
def test_photographs_keep_their_shape(size):
    caption = caption_of(["a"], None, [None])
    width, height = Layout.of(caption, geometry_of(size, "squash")).panel
    assert width / height == pytest.approx(size[0] / size[1], rel=0.01)
    assert min(width, height) >= 90 and max(width, height) <= 420


@pytest.mark.parametrize("size", [(1, 1), (4000, 30), (30, 4000), (1, 4000)])
@pytest.mark.parametrize("resize", ["squash", "crop", "pad"])
@pytest.mark.parametrize("selected", [None, [[0], [17], [34]]], ids=["soft", "hard"])
def test_extreme_shapes_stay_bounded(size, resize, selected):
    geometry = geometry_of(size, resize)
    image = Image.new("RGB", size, "teal")
    strip = draw_strip(caption_of(["a", "b", "c"], image, [0, 17, 34], geometry, selected))
    assert strip.width <= 2200 and strip.height <= 2200
    if selected:
        assert (pixels(strip) == BRIGHT).all(axis=-1).sum() > 10


@pytest.mark.parametrize("resize", ["squash", "crop", "pad"])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_hard_outlines_what_was_selected_not_what_was_likeliest(size, resize):
    geometry = geometry_of(size, resize)
    likeliest, selected = 1 * GRID[1] + 3, 2 * GRID[1] + 4
    caption = caption_of(["dog"], photograph(size), [likeliest], geometry, [[selected]])
    shown, panel = panels(caption, draw_strip(caption))
    height, width = panel.shape[:2]
    x1, y1, x2, y2 = (round(edge) for edge in drawn_box(caption, selected))
    around = (max(x1 - 2, 0), max(y1 - 2, 0), min(x2 + 2, width), min(y2 + 2, height))
    assert extent((panel == BRIGHT).all(axis=-1)) == around
    assert np.array_equal(panel[y1:y2, x1:x2], shown[y1:y2, x1:x2])
    same = (panel == shown).all(axis=-1)
    same[y1:y2, x1:x2] = False
    assert same.mean() < 0.01


def test_hard_keeps_the_distribution_faint_beneath():
    image = Image.new("RGB", SIZES["landscape"], "grey")
    geometry = geometry_of(image.size, "squash")
    soft = caption_of(["dog"], image, [8], geometry)
    hard = replace(soft, selected=torch.tensor([[26]]))
    cold = replace(soft, weights=torch.zeros_like(soft.weights))
    unlit = panels(cold, draw_strip(cold))[1]
    x1, y1, x2, y2 = (round(edge) for edge in drawn_box(soft, 8))
    strong, faint = (changed(panels(c, draw_strip(c))[1], unlit)[y1:y2, x1:x2].mean() for c in (soft, hard))
    assert 10 < faint < 0.7 * strong


def test_every_selected_region_is_outlined():
    image = photograph(SIZES["landscape"])
    geometry = geometry_of(image.size, "squash")
    caption = caption_of(["a", "b"], image, [0, 0], geometry, [[8, 26], [12, 12]])
    first, second = panels(caption, draw_strip(caption))[1:]
    for panel, cells in ((first, {8, 26}), (second, {12})):
        outlined = (panel == BRIGHT).all(axis=-1)
        for cell in range(35):
            x1, y1, x2, _ = (round(edge) for edge in drawn_box(caption, cell))
            top = outlined[max(y1 - 1, 0), x1:x2]
            assert top.all() == (cell in cells)


def test_selected_padding_is_marked_at_the_photographs_edge():
    image = photograph((400, 200))
    geometry = geometry_of(image.size, "pad")
    caption = caption_of(["a"], image, [0], geometry, [[1]], grid=(8, 8))
    strip = draw_strip(caption)
    x, y = Layout.of(caption, geometry).corner(1)
    left, top, right, bottom = extent((pixels(strip) == BRIGHT).all(axis=-1))
    x1, _, x2, _ = drawn_box(caption, 1)
    assert (left - x, right - x) == pytest.approx((x1 - 2, x2 + 2), abs=1)
    assert (top, bottom) == (y - 2, y + 2)


@pytest.mark.parametrize("noise", [0.0, 1e-3])
def test_even_weights_are_flat(noise):
    image = Image.new("RGB", SIZES["landscape"], "grey")
    caption = caption_of(["of"], image, [None], geometry_of(image.size, "squash"))
    weights = (1 + noise * torch.randn(1, 35, generator=torch.Generator().manual_seed(0))) / 35
    panel = panels(caption, draw_strip(replace(caption, weights=weights)))[1]
    cold = panels(caption, draw_strip(caption))[1]
    assert np.ptp(panel.reshape(-1, 3), axis=0).max() <= 2 * (noise > 0)
    assert 5 < changed(panel, cold).mean() < 80


def test_each_word_is_scaled_by_its_own_largest_weight():
    image = photograph(SIZES["landscape"])
    caption = caption_of(["a", "b"], image, [16, 16], geometry_of(image.size, "squash"))
    weights = caption.weights.clone()
    weights[1] = 0.5 / 34
    weights[1, 16] = 0.5
    first, second = panels(caption, draw_strip(replace(caption, weights=weights)))[1:]
    x1, y1, x2, y2 = drawn_box(caption, 16)
    x, y = round((x1 + x2) / 2), round((y1 + y2) / 2)
    assert np.abs(first[y, x] - second[y, x]).max() <= 2


def test_photograph_stays_visible_under_the_hottest_cell():
    halves = np.zeros((200, 300, 3), np.uint8)
    halves[:, 150:] = 255
    geometry = geometry_of((300, 200), "squash")
    caption = caption_of(["a"], Image.fromarray(halves), [0], geometry, grid=(1, 1))
    row = panels(caption, draw_strip(caption))[1][100]
    assert (row[-5] - row[5]).min() > 30


def test_heat_runs_level_from_an_outer_centre_to_the_edge():
    weights = np.zeros((1, 5), np.float32)
    weights[0, 4] = 1
    row = heat_map(weights, geometry_of((500, 100), "squash"), (500, 100))[50]
    assert row[450:] == pytest.approx(1, abs=0.001)
    assert row[440] > 0.96


@pytest.mark.parametrize("change", ["word", "probability", "gate"])
def test_labels_stand_beneath_their_own_panel(change):
    image = photograph(SIZES["landscape"])
    geometry = geometry_of(image.size, "squash")
    words = ["a", "dog", "runs", "fast"]
    caption = caption_of(words, image, [None] * 4, geometry)
    half = torch.full((4,), 0.5)
    other = half.clone()
    other[2] = 0.25
    changes = {
        "word": {"words": ["a", "dog", "walks", "fast"]},
        "probability": {"word_log_probs": other.log()},
        "gate": {"gate": other},
    }
    before, after = draw_strip(caption), draw_strip(replace(caption, **changes[change]))
    left, top, right, bottom = extent(changed(pixels(before), pixels(after)) > 0)
    x, y, width = Layout.of(caption, geometry).label(3)
    assert x <= left and right <= x + width and y <= top and bottom <= y + 40
    if change == "gate":
        assert (left, right) == pytest.approx((x + width / 4, x + width / 2), abs=1)
    if change == "probability":
        assert left > x + width / 2
    if change == "word":
        assert right < x + width / 2


def test_texts_are_the_caption_the_words_and_their_probabilities(monkeypatch):
    drawn: list[str] = []
    draw_text = ImageDraw.ImageDraw.text

    def text(self, xy, text, *args, **kwargs):
        drawn.append(text)
        draw_text(self, xy, text, *args, **kwargs)

    monkeypatch.setattr(ImageDraw.ImageDraw, "text", text)
    image = photograph((320, 240))
    words = ["a", "dog", "runs"]
    caption = caption_of(words, image, [0, 1, 2], geometry_of(image.size, "squash"))
    draw_strip(replace(caption, word_log_probs=torch.tensor([1.0, 0.829, 0.004]).log()))
    assert drawn[0] == "a dog runs"
    assert drawn[-6:] == ["1.00", "a", "0.83", "dog", "0.00", "runs"]


def test_words_of_other_scripts_are_legible():
    image = photograph((320, 240))
    caption = caption_of(["x"], image, [None], geometry_of(image.size, "squash"))
    strips = {draw_strip(replace(caption, words=[word])).tobytes() for word in "xßλжéœ"}
    assert len(strips) == 6


def test_a_word_too_long_for_its_panel_stays_in_it():
    image = Image.new("RGB", (30, 4000), "white")
    geometry = geometry_of(image.size, "squash")
    caption = replace(caption_of(["a", "b"], image, [None, None], geometry), text="")
    long = replace(caption, words=["a" * 60, "b"])
    layout = Layout.of(caption, geometry)
    left, _, right, _ = extent(changed(pixels(draw_strip(caption)), pixels(draw_strip(long))) > 0)
    x, _, width = layout.label(1)
    assert x <= left and right <= x + width - 20


def test_long_caption_is_wrapped_into_the_title():
    image = photograph((320, 240))
    geometry = geometry_of(image.size, "squash")
    words = [f"word{t}" for t in range(60)]
    caption = caption_of(words, image, [t % 35 for t in range(60)], geometry)
    strip = draw_strip(caption)
    layout = Layout.of(caption, geometry)
    title = [line for line, size in layout.heading if size == layout.heading[0][1]]
    assert len(title) > 1 and " ".join(title) == caption.text
    assert strip.width <= 2200
    margin = pixels(strip)[:, -30:]
    assert margin.min() == 255
    narrow = Layout.of(replace(caption, text="x" * 300), geometry, columns=1)
    assert "".join(line for line, _ in narrow.heading).startswith("x" * 300)


def test_unfinished_caption_is_told_from_a_finished_one():
    image = photograph((320, 240))
    geometry = geometry_of(image.size, "squash")
    caption = replace(caption_of(["a", "dog"], image, [0, 1], geometry), finished=False)
    assert Layout.of(caption, geometry).heading[0][0] == "a dog …"


def test_empty_caption_is_just_the_photograph():
    image = photograph((288, 216))
    caption = caption_of([], image, [], geometry_of(image.size, "squash"))
    strip = pixels(draw_strip(caption))
    height, width = strip.shape[:2]
    assert (width, height) == (288 + 60, 216 + 60)
    assert np.array_equal(strip[30:-30, 30:-30], pixels(image))


def test_same_caption_same_bytes(tmp_path):
    image = photograph(SIZES["portrait"])
    caption = caption_of(["a", "dog"], image, [3, 9], geometry_of(image.size, "crop"), [[4], [20]])
    first = caption.save_overlay(tmp_path / "a.png").read_bytes()
    assert caption.save_overlay(tmp_path / "b.png").read_bytes() == first


def test_without_geometry_the_whole_photograph_was_seen():
    image = photograph(SIZES["portrait"])
    bare = caption_of(["a"], None, [9])
    known = replace(bare, geometry=geometry_of(image.size, "squash"))
    assert draw_strip(bare, image).tobytes() == draw_strip(known, image).tobytes()


def test_the_photograph_may_come_at_another_scale():
    image = photograph((641, 427))
    caption = caption_of(["a"], image, [9], geometry_of(image.size, "crop"))
    whole, small = draw_strip(caption), draw_strip(caption, image.resize((320, 213)))
    assert whole.size == small.size
    assert np.abs(pixels(whole) - pixels(small)).mean() < 2


def test_a_sideways_camera_picture_is_drawn_upright():
    upright = photograph((200, 400))
    sideways = upright.transpose(Image.Transpose.ROTATE_90)
    sideways.getexif()[0x0112] = 6
    caption = caption_of(["a"], None, [9], geometry_of(upright.size, "crop"))
    assert draw_strip(caption, sideways).tobytes() == draw_strip(caption, upright).tobytes()


def test_no_photograph_is_the_users_to_mend():
    with pytest.raises(UserError, match=r"no photograph.*'a dog'.*draw_strip\(caption, image\)"):
        draw_strip(caption_of(["a", "dog"], None, [0, 1]))


def test_another_photograph_is_refused():
    caption = caption_of(["a"], None, [0], geometry_of((640, 480), "squash"))
    with pytest.raises(UserError, match="480 x 640, the captioned one 640 x 480"):
        draw_strip(caption, photograph((480, 640)))


def test_no_columns_is_refused():
    image = photograph((32, 24))
    for columns in (0, "2", 1.5):
        with pytest.raises(UserError, match=f"columns must be at least 1.*, not {columns!r}"):
            draw_strip(caption_of(["a"], image, [0]), columns=columns)


@pytest.mark.parametrize(
    ("name", "format"), [("a.png", "PNG"), ("b.PNG", "PNG"), ("c.jpg", "JPEG"), ("d.webp", "WEBP")]
)
def test_picture_is_saved_in_the_format_of_its_suffix(tmp_path, name, format):
    image = photograph((40, 30))
    path = save_picture(image, tmp_path / "new" / "folder" / name)
    assert path == tmp_path / "new" / "folder" / name
    with Image.open(path) as saved:
        assert (saved.format, saved.size) == (format, (40, 30))
    assert [entry.name for entry in path.parent.iterdir()] == [name]
    assert is_drawn_here(path) == (format == "PNG")
    photograph((40, 30)).save(path)
    assert not is_drawn_here(path)


@pytest.mark.parametrize("name", ["overlay.bmpx", "overlay"])
def test_unknown_suffix_is_refused(tmp_path, name):
    with pytest.raises(UserError, match=rf"unknown picture format .*{name}; use one of \.png"):
        save_picture(photograph((4, 3)), str(tmp_path / "deep" / name))
    assert list(tmp_path.iterdir()) == []


def test_unwritable_place_is_refused(tmp_path):
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "folder.png").mkdir()
    for path in (tmp_path / "file" / "a.png", tmp_path / "folder.png"):
        with pytest.raises(UserError, match="cannot write a picture") as caught:
            save_picture(photograph((4, 3)), path)
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "folder.png"]


def test_a_full_disk_leaves_the_old_picture(tmp_path, monkeypatch):
    path = save_picture(photograph((4, 3)), tmp_path / "a.png")
    old = path.read_bytes()

    def save(self, target, format, **_):
        Path(target).write_bytes(b"half a pict")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", save)
    with pytest.raises(UserError, match="No space left on device"):
        save_picture(photograph((4, 3), seed=1), path)
    assert path.read_bytes() == old
    assert list(tmp_path.iterdir()) == [path]


def test_no_display_is_needed(tmp_path):
    program = """
import sys, torch
from PIL import Image
from captioner.caption import Caption
caption = Caption("a dog", ["a", "dog"], -2.0, torch.tensor([-1.0, -1.0]), "soft", (2, 2),
                  torch.full((2, 4), 0.25), None, torch.ones(2), photo=Image.new("RGB", (40, 30)))
caption.save_overlay("out.png")
assert "matplotlib.pyplot" not in sys.modules and "matplotlib.font_manager" not in sys.modules
"""
    places = {"PYTHONPATH": os.pathsep.join(sys.path), "MPLCONFIGDIR": str(tmp_path)}
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("DISPLAY", "WAYLAND_DISPLAY", "MPLBACKEND")
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment | places,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    with Image.open(tmp_path / "out.png") as strip:
        assert strip.width > 300
