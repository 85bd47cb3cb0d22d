"""Untrusted models: nothing that a model brings along is run, and nothing is installed for it.

transformers runs code of a model only where it is told to, and torch reads weights from a pickle
without its code. TransformerLens installs a package by pip where the processor of a model for
images or sound lacks it. Here each of these is one error that says what to do.
"""

from __future__ import annotations

import pickle
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import RLock, get_ident
from typing import Any

from tracekit.errors import UnsupportedModelError

_LOCK = RLock()


@contextmanager
def nothing_installed(name: object) -> Iterator[None]:
    """Within the block, this thread starts no command that installs a package.

    If one was to be started, the end of the block refuses the model: the library that asks for it
    may go on without.
    """
    original, owner = subprocess.Popen.__init__, get_ident()
    asked_for: list[str] = []

    def start(process: Any, command: Any, *args: Any, **kwargs: Any) -> None:
        words = command.split() if isinstance(command, str) else list(map(str, command))
        if get_ident() == owner and "install" in words:
            asked_for.extend(_packages(words))
            raise FileNotFoundError("tracekit installs nothing")
        original(process, command, *args, **kwargs)

    with _LOCK:
        subprocess.Popen.__init__ = start  # type: ignore[method-assign]
        try:
            yield
        finally:
            subprocess.Popen.__init__ = original  # type: ignore[method-assign]
    if asked_for:
        packages = " ".join(dict.fromkeys(asked_for))
        raise UnsupportedModelError(
            f"The model {name} asks for {packages} to be installed, as models for images or "
            f"sound do. Give a model of text alone, or install {packages} yourself."
        )


def _packages(words: Sequence[str]) -> list[str]:
    return [word for word in words[words.index("install") + 1 :] if not word.startswith("-")]


def refusal(name: object, error: BaseException) -> UnsupportedModelError | None:
    """The error for a model that would run code when it is loaded; None for other failures."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, pickle.UnpicklingError):
            return UnsupportedModelError(
                f"The weights of {name} hold Python objects, which could run code when they are "
                "read. Give weights in safetensors."
            )
        if "trust_remote_code" in str(cause) or "contains custom code" in str(cause):
            return UnsupportedModelError(
                f"The model {name} brings code of its own, which is not run. Give a model whose "
                "architecture transformers has itself, or pass trust_remote_code=True if you trust "
                "that code."
            )
        cause = cause.__cause__ or cause.__context__
    return None
