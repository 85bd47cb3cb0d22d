"""Versions of what numbers depend on: results save them, and bug reports name them."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

__version__ = "0.1.0"
"""Of this source, also in a checkout; a build takes it from here."""
_DECISIVE = ("torch", "transformer-lens", "transformers")
_SHOWN = (*_DECISIVE, "numpy", "safetensors", "huggingface-hub", "pandas", "plotly", "pydantic")


def versions(packages: tuple[str, ...] = _DECISIVE) -> dict[str, str]:
    """Versions of Python, tracekit and some packages: those that numbers depend on."""
    by_package = {"python": platform.python_version(), "tracekit": __version__}
    for package in packages:
        try:
            by_package[package] = version(package)
        except PackageNotFoundError:
            by_package[package] = "unknown"
    return by_package


def show_versions() -> None:
    """Prints versions, platform and devices, for a bug report."""
    import torch

    devices = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    facts = {
        **versions(_SHOWN),
        "platform": platform.platform(),
        "devices": ", ".join(devices) or f"CPU, {torch.get_num_threads()} threads",
    }
    for name, value in facts.items():
        print(f"{name:16} {value}")  # noqa: T201
