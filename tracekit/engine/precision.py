"""Precision of the matrix products while a mask is learned."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch
from typing_extensions import assert_never

from tracekit.errors import ConfigError

Precision = Literal["float32", "tf32", "bfloat16"]
PRECISIONS = ("float32", "tf32", "bfloat16")


def check_precision(precision: str) -> None:
    """Refuses an unknown precision."""
    if precision not in PRECISIONS:
        raise ConfigError(f"Unknown precision {precision!r}. Use one of {', '.join(PRECISIONS)}.")


@contextmanager
def products_in(precision: Precision, device: torch.device) -> Iterator[None]:
    """Within, float32 matrix products on CUDA are TensorFloat-32 if `precision` is `tf32`.

    A setting of the whole process, read when a product is computed: it must span the backward
    pass too, and is put back afterwards.
    """
    if precision != "tf32" or device.type != "cuda":
        yield
        return
    products = torch.backends.cuda.matmul
    # Reading the older of the two settings fails where the newer one was used.
    name, value = (
        ("fp32_precision", "tf32") if hasattr(products, "fp32_precision") else ("allow_tf32", True)
    )
    before = getattr(products, name)
    setattr(products, name, value)
    try:
        yield
    finally:
        setattr(products, name, before)


def autocast(precision: Precision, device: torch.device) -> Any:
    """Context for a forward pass: matrix products in bfloat16 if `precision` says so."""
    if precision == "bfloat16":
        return torch.autocast(device.type, torch.bfloat16)
    if precision in ("float32", "tf32"):
        return nullcontext()
    assert_never(precision)
