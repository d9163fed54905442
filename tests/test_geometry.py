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


@pytest.mark.parametrize("geometry", [WHOLE, MIDDLE, PADDED])
@pytest.mark.parametrize("grid", [(7, 7), (3, 5), (1, 1)])
def test_cell_at_inverts_cell_box(geometry, grid):
    for index, (x1, y1, x2, y2) in enumerate(geometry.cell_boxes(grid)):
        if (x2 - x1) * (y2 - y1) > 0:
            assert geometry.cell_at((x1 + x2) / 2, (y1 + y2) / 2, grid) == index


def test_cell_at_is_none_where_the_input_does_not_show_the_photograph():
    assert MIDDLE.cell_at(47, 100, (7, 7)) is None
    assert MIDDLE.cell_at(48, 100, (7, 7)) == 21
    assert WHOLE.cell_at(320, 100, (7, 7)) is None
    assert PADDED.cell_at(160, 223, (7, 7)) == 38
    assert PADDED.cell_at(160, 224, (7, 7)) is None  # padding, inside the view
    assert PADDED.cell_at(160, -1, (7, 7)) is None
    upright = Geometry(224, 320, (-48.0, 0.0, 272.0, 320.0))
    assert upright.cell_at(223, 160, (7, 7)) == 26
    assert upright.cell_at(224, 160, (7, 7)) is None


def test_a_non_square_grid_is_row_major():
    assert WHOLE.cell_box(5, (2, 4)) == (80, 112, 160, 224)


def test_regions_outside_the_grid_are_refused():
    with pytest.raises(IndexError, match="region 49 of a grid of 7 x 7"):
        WHOLE.cell_box(49, (7, 7))


def test_plain_types_and_back():
    assert Geometry.from_dict(PADDED.to_dict()) == PADDED
