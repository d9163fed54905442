"""What all tests share."""

import os
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]


def pytest_configure() -> None:
    torch.set_num_threads(2)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data sets that do not come with the repository."""
    folder = Path(os.environ.get("CAPTIONER_SHARED_DATA") or ROOT.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no data sets at {folder} (CAPTIONER_SHARED_DATA names another folder)")
    return folder
