import pytest

from captioner.geometry import Geometry

WHOLE = Geometry(320, 224, (0.0, 0.0, 320.0, 224.0))
MIDDLE = Geometry(320, 224, (48.0, 0.0, 272.0, 224.0))
PADDED = Geometry(320, 224, (0.0, -48.0, 320.0, 272.0))


def test_a_cell_of_a_squashed_photograph():
    assert WHOLE.cell_box(10, (7, 7)) == pytest.approx((3 * 320 / 7, 32, 4 * 320 / 7, 64))


def test_a_cell_of_a_cropped_photograph():
    assert MIDDLE.cell_box(10, (7, 7)) == pytest.approx((48 + 3 * 32, 32, 48 + 4 * 32, 64))


def test_a_cell_of_a_padded_photograph_is_clipped_to_it():
    height = 320 / 7
    assert PADDED.cell_box(7, (7, 7)) == pytest.approx((0, 0, height, 2 * height - 48))
    assert PADDED.cell_box(24, (7, 7)) == pytest.approx(
        (3 * height, 3 * height - 48, 4 * height, 4 * height - 48)
    )
    left, top, right, bottom = PADDED.cell_box(0, (7, 7))
    assert (right - left) * (bottom - top) == 0


def test_a_non_square_grid_is_row_major():
    assert WHOLE.cell_box(5, (2, 4)) == (80, 112, 160, 224)


def test_regions_outside_the_grid_are_refused():
    with pytest.raises(IndexError, match="region 49 of a grid of 7 x 7"):
        WHOLE.cell_box(49, (7, 7))


def test_plain_types():
    assert PADDED.to_dict() == {"width": 320, "height": 224, "view": [0, -48, 320, 272]}
