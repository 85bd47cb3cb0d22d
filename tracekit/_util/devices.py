"""Tensors on devices."""

from __future__ import annotations

import torch
from torch import Tensor


def to_device(value: Tensor, device: torch.device) -> Tensor:
    """Moves a tensor to a device; from the CPU to CUDA without waiting for the copy."""
    if value.device.type == "cpu" and device.type == "cuda":
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError("A CUDA graph cannot capture a copy from host memory.")
        return value.pin_memory().to(device, non_blocking=True)
    return value.to(device)
