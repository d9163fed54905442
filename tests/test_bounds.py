import math

import numpy as np
import pytest

from captioner.bounds import Bounds, check_all
from captioner.errors import UserError


@pytest.mark.parametrize(
    ("bounds", "inside", "outside"),
    [
        (Bounds(0, 1), [0, 1, 0.5, np.float32(0.5)], [-0.1, 1.1, math.nan, True, "0.5", None]),
        (Bounds(0, 1, below=True), [0, 0.999], [1, 1.0]),
        (Bounds(0, above=True), [1e-9, 5], [0, -1, math.inf, math.nan]),
        (Bounds(1, whole=True), [1, 10**400], [0, -(10**400), math.inf]),
        (Bounds(0, 5), [0, 5], [10**400]),
        (Bounds(1, 3, whole=True), [1, 3, np.int64(2)], [0, 4, 2.0, "2", True]),
    ],
)
def test_what_is_within(bounds, inside, outside):
    assert all(value in bounds for value in inside)
    assert not any(value in bounds for value in outside)


def test_the_message_says_what_and_where():
    check_all({"size": Bounds(1, whole=True)}, {"size": None}, "model.")
    with pytest.raises(UserError, match=r"^model\.size must be at least 1, not 0$"):
        check_all({"size": Bounds(1, whole=True)}, {"size": 0}, "model.")
    with pytest.raises(UserError, match=r"^x must be above 0 to below 2, not 2$"):
        Bounds(0, 2, above=True, below=True).check("x", 2)
