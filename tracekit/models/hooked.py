"""A hooked model: the interface that every part of tracekit uses.

`TransformerBridge` (3.9 and 4.x, wraps the Hugging Face model and computes its numbers) and
`HookedTransformer` (3.9) of TransformerLens share it. One thread at a time has a model alone.

Hooks see activations only. A pass of a generation goes on from a cache of keys and values: it may
read the prompt, a part of it, or one new token. The model's own call says which (`Pass`).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock, RLock, get_ident
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from tracekit._util.files import json_digest
from tracekit._util.threads import limit_threads
from tracekit.errors import ConfigError, UnsupportedModelError
from tracekit.models.architectures import SCORED_HOOKS, make_patterns_editable, residual_hook

_LIBRARIES = ("tracekit", "transformer_lens", "transformers", "accelerate", "peft", "torch")
"""Packages whose hooks are part of a model."""
_HOOKS = [
    f"{prefix}_{name}_hooks"
    for prefix in ("", "_global")
    for name in ("forward", "forward_pre", "backward", "backward_pre", "post_accumulate_grad")
]
"""Attributes that hold hooks, of modules and of parameters."""
_SAMPLED = 8
_registering = Lock()
_RUNS_ELSEWHERE = (
    "The model runs in another thread while it is traced, where hooks would act in its passes too. "
    "Let one end before the other begins, or give the other thread a copy of the model."
)
_CACHES = ("past_key_values", "past_kv_cache_entry", "cache_params")
"""Arguments that bring a cache to a pass; a block of a HookedTransformer gets its own part."""

Hook = tuple[str, Callable[..., Tensor]]
"""Name of a hook point, and a function from its activation to what replaces it."""


@runtime_checkable
class HookedModel(Protocol):
    """The part of `TransformerBridge` and `HookedTransformer` that tracekit uses."""

    cfg: Any
    """Sizes: `n_layers`, `n_heads`, `d_model`, `d_mlp`, `d_vocab`."""
    training: bool

    @property
    def hook_dict(self) -> Mapping[str, Any]:
        """Hook points by name."""
        ...

    def run_with_hooks(
        self, input: Any, *, fwd_hooks: Sequence[tuple[str, Callable[..., Tensor]]], **kwargs: Any
    ) -> Any:
        """Runs the model with hooks that may replace activations."""
        ...

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """All parameters."""
        ...

    def train(self, mode: bool = True) -> Any:
        """Sets training mode."""
        ...


def model_name(model: HookedModel) -> str:
    """Short name for titles and messages: the one given to `load_model`, or one from its origin."""
    given = getattr(model.cfg, "tracekit_name", None)
    if given is not None:
        return given
    name = str(getattr(model.cfg, "model_name", "") or type(model).__name__)
    return short_name(name, is_on_hub=revision_of(model) is not None)


def short_name(name: str, *, is_on_hub: bool) -> str:
    """Last part of a path or a hub name; revisions such as `refs/pr/1` are kept whole."""
    name, at, revision = name.partition("@") if is_on_hub else (name, "", "")
    return (Path(name).name or name) + at + revision


def weights_digest(model: HookedModel) -> str:
    """Digest of all weights: equal for equal weights in one dtype, on any device.

    It covers shapes, a sample and the sum of bits of every parameter; of a model with hooks, pruned
    weights or parts of somebody's own, some logits too. Empty if weights lie on a disk; else all of
    them are read once.
    """
    parameters = list(model.parameters())
    if any(parameter.is_meta for parameter in parameters):
        return ""
    with torch.no_grad():
        prints: dict[str, Any] = {str(n): _fingerprint(each) for n, each in enumerate(parameters)}
    if (logits := getattr(model.cfg, "tracekit_logits", None)) is not None:
        prints["logits"] = list(logits)
    return json_digest(prints)


def _fingerprint(parameter: Tensor) -> list[Any]:
    flat = parameter.detach().flatten()
    whole = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()]
    bits = flat.view(whole)
    return [
        *parameter.shape,
        str(parameter.dtype),
        bits.sum(dtype=torch.int64).item(),
        bits[:: max(1, len(bits) // _SAMPLED)].tolist(),
    ]


def revision_of(model: HookedModel) -> str | None:
    """Commit of the hub's repository that a model was loaded from; None if from elsewhere."""
    return getattr(model.cfg, "tracekit_revision", None)


def foreign_hooks(model: HookedModel) -> list[str]:
    """Names everything on which other code left hooks: hook points, modules, parameters."""
    # If a hook point has several names, the last one is the usual one.
    names: dict[Any, str] = {point: name for name, point in model.hook_dict.items()}
    seen: set[Any] = set()
    for whole in reversed(_wrapped_models(model)):
        for name, module in getattr(whole, "named_modules", lambda seen: ())(seen):
            plain = name or type(module).__name__
            names.setdefault(module, plain)
            for of_module, parameter in module._parameters.items():
                if parameter is not None:
                    names.setdefault(parameter, f"{plain}.{of_module}")
    names[torch.nn.modules.module] = "all modules"
    return [plain_name(name) for owner, name in names.items() if has_foreign_hooks(owner)]


def plain_name(name: str) -> str:
    """The name of a module or weight without what a bridge puts around it."""
    return re.sub(r"\._?original_component", "", name)


def has_foreign_hooks(owner: Any) -> bool:
    """Whether other code left hooks at a module or parameter, or at all modules."""
    # A bridge hands getattr on to the module that it wraps.
    get = partial(getattr, owner) if isinstance(owner, Tensor) else vars(owner).get
    by_attribute = [get(name, None) or {} for name in _HOOKS]
    return any(is_foreign(hook) for hooks in by_attribute for hook in hooks.values())


def is_foreign(hook: Any) -> bool:
    """Whether a hook was made by neither tracekit nor the libraries that it uses."""
    while True:
        names = getattr(getattr(hook, "__code__", None), "co_freevars", ())
        inner = next((name for name in ("hook", "full_hook") if name in names), None)
        if isinstance(hook, partial):
            hook = hook.func
        elif inner is not None and str(hook.__module__).startswith("transformer_lens"):
            # A hook point wraps the function that it is given, one on gradients twice.
            hook = hook.__closure__[names.index(inner)].cell_contents
        else:
            break
    made_in = str(getattr(hook, "__module__", None) or type(hook).__module__)
    return made_in.partition(".")[0] not in _LIBRARIES


def device_of(model: HookedModel | torch.nn.Module) -> torch.device:
    """Device of the model's first parameter, where its tokens go."""
    return next(iter(model.parameters())).device


def dtype_of(model: HookedModel | torch.nn.Module) -> torch.dtype:
    """Floating type of the model's first parameter."""
    return next(iter(model.parameters())).dtype


def is_quantized(model: HookedModel | torch.nn.Module) -> bool:
    """Whether weights are held in 4 or 8 bits."""
    return bool(getattr(getattr(model, "original_model", model), "is_quantized", False))


def is_exact(model: HookedModel | torch.nn.Module) -> bool:
    """Whether the model computes in float32 or float64, with weights of that type."""
    return dtype_of(model) in (torch.float32, torch.float64) and not is_quantized(model)


def is_close(value: Tensor, expected: Tensor, tolerance: float) -> bool:
    """Whether values differ from expected ones by at most a share of the largest of these."""
    difference = (value.float() - expected.float()).abs().max()
    return bool(difference <= tolerance * expected.float().abs().max())


def has_processed_weights(model: HookedModel) -> bool:
    """Whether TransformerLens folded or centred the weights, which changes activations."""
    if getattr(model, "_weights_processed", False):
        return True
    # A HookedTransformer whose norms are folded into the weights behind them.
    return str(getattr(model.cfg, "normalization_type", "")).endswith("Pre")


def random_tokens(model: HookedModel, rows: int, length: int) -> Int[Tensor, "row pos"]:
    """The same random tokens every time, on the CPU."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(int(model.cfg.d_vocab), (rows, length), generator=generator)


def embedding_std(model: HookedModel) -> float:
    """Standard deviation of the first block's input, over random tokens: the unit of noise."""
    _, recorded = record_pass(model, random_tokens(model, 16, 16), [residual_hook(0)])
    return float(recorded[residual_hook(0)].float().std())


def recording_hooks(names: Iterable[str]) -> tuple[list[Hook], dict[str, list[Tensor]]]:
    """Hooks that change nothing, and the lists they append to, one entry each time they fire."""
    recorded: dict[str, list[Tensor]] = {name: [] for name in names}
    return [(name, partial(_record, into=into)) for name, into in recorded.items()], recorded


def record_pass(
    model: HookedModel, tokens: Tensor, names: Iterable[str], hooks: Sequence[Hook] = ()
) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits of a pass, and its activations at hook points that fired, after `hooks` acted."""
    recording, recorded = recording_hooks(names)
    with freeze(model), torch.no_grad():
        logits = model.run_with_hooks(tokens.to(device_of(model)), fwd_hooks=[*hooks, *recording])
    return logits, {name: fired[-1] for name, fired in recorded.items() if fired}


def _record(activation: Tensor, hook: Any = None, *, into: list[Tensor]) -> Tensor:
    into.append(activation.detach().clone())
    return activation


def scored_hook(model: HookedModel) -> str:
    """Last hook point before the unembedding; reading there avoids logits that are not needed."""
    for name in SCORED_HOOKS:
        if name in model.hook_dict:
            return name
    raise UnsupportedModelError(
        f"{model_name(model)} has no hook point before its unembedding. "
        f"tracekit needs one of {', '.join(SCORED_HOOKS)}."
    )


def check_torch_settings() -> None:
    """Refuses global settings of torch under which passes give other numbers or no gradient."""
    if torch.is_inference_mode_enabled():
        raise ConfigError(
            "torch.inference_mode() is on, in which nothing has a gradient. Leave it out, or use "
            "torch.no_grad(): tracekit takes gradients only where it needs them."
        )
    if torch.get_default_dtype() != torch.float32:
        raise ConfigError(
            f"The default dtype of torch is {torch.get_default_dtype()}. Call "
            "torch.set_default_dtype(torch.float32), and give load_model the dtype of the model."
        )


def check_has_weights(model: Any) -> None:
    """Refuses a model on the meta device, unless its weights are fetched from elsewhere."""
    is_meta = all(parameter.is_meta for parameter in model.parameters())
    if is_meta and not hasattr(getattr(model, "original_model", model), "hf_device_map"):
        raise UnsupportedModelError(
            f"The model {type(model).__name__} is on the meta device and has no weights. "
            "Load them first, e.g. by load_model with its name or directory."
        )


@contextmanager
def freeze(model: HookedModel) -> Iterator[None]:
    """Turns gradients of parameters and dropout off within the block.

    Edits of attention patterns act there too; the user's autocast is off. Passes of other threads
    are refused: hooks act in whatever pass runs, and flags are the model's.

    Raises:
        ConfigError: A setting of torch that no trace can have, or a pass in another thread.
    """
    check_torch_settings()
    check_has_weights(model)
    device = device_of(model).type
    width = int(model.cfg.d_model) if device == "cpu" else None
    with (
        get_model_use(model).run_alone(),
        # The meta device has no autocast.
        torch.autocast("cpu" if device == "meta" else device, enabled=False),
        limit_threads(width),
        make_patterns_editable(model),
    ):
        yield from _freeze_modules(model)


def _freeze_modules(model: HookedModel) -> Iterator[None]:
    wholes = [each for each in _wrapped_models(model) if hasattr(each, "named_modules")]
    seen: set[Any] = set()
    modules = [module for whole in wholes for _, module in whole.named_modules(seen)]
    # Not model.parameters(): this happens at every pass, and would walk through them again.
    parameters = [parameter for module in modules for parameter in module._parameters.values()]
    thawed = [each for each in parameters if each is not None and each.requires_grad]
    # One by one: a user may have put a part of the model in another mode than the whole.
    in_training = [module for module in modules if module.training]
    for parameter in thawed:
        parameter.requires_grad_(False)
    for module in in_training:
        module.training = False
    try:
        yield
    except RuntimeError as error:
        # Raised for a module whose inputs have no gradient, or whose output is changed in place.
        if "BackwardHook" in str(error) or "Backward hook" in str(error):
            raise ConfigError(
                f"Hooks on gradients cannot act in a trace ({str(error).splitlines()[0]}). They "
                f"were left at {', '.join(foreign_hooks(model)[:_SAMPLED])}. Call the model's "
                "reset_hooks(), or remove the handles."
            ) from error
        raise
    finally:
        for parameter in thawed:
            parameter.requires_grad_(True)
        for module in in_training:
            module.training = True


@dataclass(frozen=True, eq=False)
class Pass:
    """The positions of the tokens of one call of a model."""

    n_before: int = 0
    """Tokens that the cache holds: the first token of the pass has this position."""
    position_ids: Int[Tensor, "row pos"] | None = None
    """Position ids that the model was given; None: the model counts."""

    def key_positions(self, n_queries: int, n_keys: int) -> Int[Tensor, "row key"]:
        """The position in its text, without padding, of every key that the pass attends to.

        The last keys are those of the pass itself; a static cache has room for more.
        """
        first = max(0, self.n_before + n_queries - n_keys)
        columns = torch.arange(first, first + n_keys)[None]
        if self.position_ids is None:
            return columns
        ids = self.position_ids
        cached = columns[:, columns[0] < self.n_before].to(ids) + (ids[:, :1] - self.n_before)
        later = columns[:, cached.shape[1] + n_queries :].expand(len(ids), -1).to(ids)
        return torch.cat([cached.clamp(min=0), ids, later], 1)


_RUNNING: ContextVar[Pass | None] = ContextVar("tracekit_pass", default=None)


class ModelUse:
    """Records which threads run a model, so that one thread at a time can have it alone."""

    def __init__(self) -> None:
        """Starts without a thread."""
        self._lock, self._owner = RLock(), 0
        self._running: set[int] = set()

    def __reduce__(self) -> tuple[type[ModelUse], tuple[()]]:
        # A copy of a model is used apart from it.
        return ModelUse, ()

    @contextmanager
    def run_alone(self) -> Iterator[None]:
        """Within the block, passes of other threads are refused; other blocks wait for its end."""
        with self._lock:
            before, self._owner = self._owner, get_ident()
            try:
                alive = {thread.ident for thread in threading.enumerate()}
                if self._running & alive - {self._owner}:
                    raise ConfigError(_RUNS_ELSEWHERE)
                yield
            finally:
                self._owner = before

    def begin_pass(self, _module: Any, _args: Any, arguments: Mapping[str, Any]) -> None:
        """Called before a pass of the model, or of a block, with these arguments."""
        # Recorded first, so that a thread that takes the model alone sees it.
        self._running.add(get_ident())
        if self._owner not in (0, get_ident()):
            raise ConfigError(_RUNS_ELSEWHERE)
        caches = [arguments[name] for name in _CACHES if arguments.get(name) is not None]
        ids = arguments.get("position_ids")
        if ids is not None:
            # Of several numbers of a token (time, height, width), the first is its place in a text.
            ids = ids[0] if ids.ndim == 3 else ids.reshape(-1, ids.shape[-1])
        n_before = _count_cached(caches[0], arguments) if caches else 0
        _RUNNING.set(None if n_before is None else Pass(n_before, ids))

    def end_pass(self, *_: Any) -> None:
        """Called after a pass, even if it failed."""
        self._running.discard(get_ident())
        _RUNNING.set(None)


def _count_cached(cache: Any, arguments: Mapping[str, Any]) -> int | None:
    if (position := arguments.get("cache_position")) is not None:
        return int(position[0])
    try:
        if hasattr(cache, "get_seq_length"):
            return int(cache.get_seq_length())
        return int(cache.past_keys.shape[1])
    except (AttributeError, TypeError, ValueError):
        return None


def running_pass(n_tokens: int) -> Pass:
    """The current pass, whose activations have `n_tokens` positions."""
    recorded = _RUNNING.get()
    if recorded is None and n_tokens == 1:
        raise UnsupportedModelError(
            "A hook sees one token, and nothing says whether it begins a text or goes on with one: "
            "tracekit did not load this model, or its cache does not count tokens. Pass the model "
            "through tk.load_model, or generate with use_cache=False."
        )
    return recorded or Pass()


def get_model_use(model: HookedModel) -> ModelUse:
    """The `ModelUse` that all wrappers of a model share; records its passes from now on."""
    whole = _wrapped_models(model)[-1]
    with _registering:
        use = vars(whole).get("_tracekit_use")
        if use is None:
            # Not setattr: a bridge would hand it through to the module it wraps.
            use = vars(whole)["_tracekit_use"] = ModelUse()
            # A HookedTransformer runs its own forward without the hooks around it.
            for part in [whole] if whole is not model else whole.blocks:
                part.register_forward_pre_hook(use.begin_pass, prepend=True, with_kwargs=True)
                part.register_forward_hook(use.end_pass, always_call=True)
    return use


def _wrapped_models(model: HookedModel) -> list[Any]:
    """The model, and the separate model that a bridge wraps."""
    return [each for each in (model, getattr(model, "original_model", None)) if each is not None]
