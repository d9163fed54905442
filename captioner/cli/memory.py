"""Faster memory for tensors on the CPU."""

from __future__ import annotations

import ctypes
import sys

# Parameters of glibc's mallopt(3).
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4


def keep_freed_memory() -> None:
    """Let glibc keep freed memory for the next tensors.

    By default every tensor of some size is fresh from the kernel, which fills it with zeros, and goes
    back when it is freed: that can be more than half of the time of encoding on a CPU.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # another libc
        return
    mallopt(M_MMAP_MAX, 0)
    mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    mallopt(M_TOP_PAD, 64 * 2**20)
