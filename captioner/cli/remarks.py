"""Lightning's remarks about what is meant here, and its advertisements."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

MEANT = (
    # A frozen encoder stays in evaluation mode, and batches come ready from the feature store.
    "Found .* in eval mode",
    ".*does not have many workers",
    "LightningCLI's args parameter",
    "Checkpoint directory .* exists",
    ".*LeafSpec.* is deprecated",
)


@contextmanager
def without_remarks() -> Iterator[None]:
    """Leave these out of what a run says."""
    log = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    log.addFilter(is_no_tip)
    try:
        with warnings.catch_warnings():
            for remark in MEANT:
                warnings.filterwarnings("ignore", remark)
            yield
    finally:
        log.removeFilter(is_no_tip)


def is_no_tip(record: logging.LogRecord) -> bool:
    return "Tip: For seamless cloud" not in record.getMessage()
