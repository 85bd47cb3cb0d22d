"""Data sets by name. Each is loaded by a file of its own, with the paper's protocol."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from itertools import count
from pathlib import Path
from typing import Any, get_args

from tracekit._util.arguments import check_arguments
from tracekit._util.options import check_names, convert
from tracekit.data import factual_recall, from_file, gender_bias, generated
from tracekit.data.prompts import DataOrigin, PromptPairs
from tracekit.errors import ConfigError, DataFormatError, DataWarning, UnknownNameError
from tracekit.models import HookedModel, load_model


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A named data set."""

    load: Callable[..., PromptPairs]
    """Loads the pairs, from the model and the options."""
    about: str
    """One line for lists."""
    components: str = "attention-patterns"
    """Kind of component that it is usually traced with."""
    metric: str = "odds-ratio"
    """Metric that it is usually traced with."""
    positions: str = "prompt"
    """Positions that are usually intervened on."""

    @property
    def options(self) -> Mapping[str, Any]:
        """Keyword arguments of `load`, with their types; the data set itself has a name."""
        given = signature(self.load, eval_str=True).parameters.values()
        keywords = [p for p in given if p.kind is p.KEYWORD_ONLY and p.name != "name"]
        return {keyword.name: keyword.annotation for keyword in keywords}

    @property
    def wordings(self) -> tuple[str, ...]:
        """Values of the option `wording`; empty: the data set does not have it."""
        return get_args(self.options.get("wording"))


_LOADERS: Mapping[str, Callable[..., PromptPairs]] = {
    "demo-bias": partial(gender_bias.load_demo, "bias"),
    "demo-professions": partial(gender_bias.load_demo, "professions"),
    "demo-facts": factual_recall.load_demo,
    "demo-binding": generated.load_demo_binding,
    "winobias": gender_bias.load_winobias,
    "winogender": gender_bias.load_winogender,
    "professions": gender_bias.load_professions,
    "counterfact": factual_recall.load_counterfact,
    "known-facts": factual_recall.load_known,
    "ioi": generated.load_ioi,
    "greater-than": generated.load_greater_than,
    "gendered-pronouns": generated.load_gendered_pronouns,
    "variable-binding": generated.load_variable_binding,
}
_FACTS = json.loads(Path(__file__).with_name("datasets.json").read_text(encoding="utf-8"))
DATASETS: Mapping[str, Dataset] = {
    name: Dataset(load=load, **_FACTS[name]) for name, load in _LOADERS.items()
}


def describe(name: str) -> Dataset:
    """A data set by name, or one made of the pairs in a `.csv` or `.jsonl` file.

    Args:
        name: One of `DATASETS`, or a path.

    Raises:
        UnknownNameError: No data set of that name, and no path with such a suffix.
    """
    if name in DATASETS:
        return DATASETS[name]
    if Path(name).suffix in from_file.SUFFIXES:
        return Dataset(load=partial(from_file.load_pairs, name), about="pairs in a file")
    raise UnknownNameError(
        "data set", name, [*DATASETS, *(f"a {s} file" for s in from_file.SUFFIXES)]
    )


@check_arguments
def load_dataset(name: str, model: HookedModel | str | Path, **options: Any) -> PromptPairs:
    """Loads a data set for a model.

    Args:
        name: One of `DATASETS`, or a `.csv` or `.jsonl` file (see `load_pairs`).
        model: The model to be traced, for its tokenizer; or what `load_model` takes.
        **options: Options of the data set, e.g. `split="test"` for `winobias`. `data_dir` is the
            folder with its files; without it they are downloaded once, where that is possible.
            Every data set has `on_mismatch`, which is as in `PromptPairs.from_ids`.

    Raises:
        UnknownNameError: No data set of that name, or it has no such option.
        ConfigError: An option of another type or out of range.
        DataNotFoundError, DataFormatError: Its files are missing, or of another form.
        PairsError: As in `PromptPairs.from_text`.
    """
    dataset = describe(name)
    model = load_model(model) if isinstance(model, (str, Path)) else model
    hints = dataset.options
    check_names(options, hints)
    typed = {option: convert(option, value, hints[option]) for option, value in options.items()}
    pairs = dataset.load(model, **typed)
    options = {n: str(v) if isinstance(v, Path) else v for n, v in options.items()}
    origin = DataOrigin(
        dataset=name if name in DATASETS else str(Path(name).absolute()),
        options=options | ({} if pairs.chat is None else {"chat": dict(pairs.chat) or True}),
        examples=tuple(range(len(pairs))),
    )
    return replace(pairs, origin=origin)


@dataclass(frozen=True)
class EndlessPairs:
    """Pairs of a generated data set without end. Each iteration begins at the first seed."""

    dataset: str
    model: Any
    first_seed: int
    options: Mapping[str, Any]

    def __iter__(self) -> Iterator[PromptPairs]:
        seeds = count(self.first_seed)
        return (load_dataset(self.dataset, self.model, seed=s, **self.options) for s in seeds)

    def code(self) -> str:
        """Python that draws the pairs for a `model`."""
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        first_seed = f"first_seed={self.first_seed}"
        return f"tk.data.endless_pairs({self.dataset!r}, model, {first_seed}{options})"


def endless_pairs(
    name: str, model: HookedModel | str | Path, *, n: int = 16, first_seed: int = 1, **options: Any
) -> EndlessPairs:
    """Pairs of a generated data set without end: `n` of each seed, from `first_seed` on.

    `tracer.certify` tests sets on them, and with `training_pairs` searches train on them. Different
    seeds may give the same pair, and `certify` leaves out those that it had.

    Args:
        name: A data set with the options `n` and `seed`, such as `ioi`.
        model: As in `load_dataset`.
        n: Number of pairs of each seed.
        first_seed: The first seed.
        **options: Further options of the data set.

    Raises:
        ConfigError: The data set is not generated from a seed.
        TracekitError: As in `load_dataset`, from the first pairs on.
    """
    if not {"n", "seed"} <= {*describe(name).options}:
        generated = [each for each in DATASETS if {"n", "seed"} <= {*describe(each).options}]
        raise ConfigError(
            f"{name!r} is not drawn by a seed. Use one of {', '.join(generated)}, or give pairs of "
            "your own."
        )
    model = load_model(model) if isinstance(model, (str, Path)) else model
    return EndlessPairs(name, model, first_seed, {"n": n} | options)


def further_pairs(
    pairs: PromptPairs, model: HookedModel, *, by_wording: bool = False
) -> EndlessPairs | dict[str, EndlessPairs]:
    """Pairs without end of the data set that pairs are of, from the seed after theirs on.

    If `by_wording`, those of each of its wordings, as in `wordings`.

    Raises:
        ConfigError: The pairs are of no data set that is generated from a seed.
    """
    origin = pairs.origin
    if origin is None:
        raise ConfigError(
            "The pairs are of no data set that is generated from a seed, so no further ones can be "
            "drawn. Load them with tk.load_dataset, or give pairs of your own."
        )
    drawn = {"n", "seed", "wording"} if by_wording else {"n", "seed"}
    options = {name: origin.options[name] for name in {*origin.options} - drawn}
    first_seed = 1 + origin.options.get("seed", 0)
    draw = wordings if by_wording else endless_pairs
    return draw(origin.dataset, model, first_seed=first_seed, **options)


def wordings(
    name: str, model: HookedModel | str | Path, *, n: int = 16, first_seed: int = 1, **options: Any
) -> dict[str, EndlessPairs]:
    """Endless pairs of each wording of a data set, as `pairs` of `tracer.certify`.

    Arguments and errors are as in `endless_pairs`.

    Raises:
        ConfigError: The data set does not have the option `wording`.
    """
    names = describe(name).wordings
    if not names:
        several = ", ".join(each for each in DATASETS if DATASETS[each].wordings)
        raise ConfigError(f"{name!r} has one wording only. Use one of {several}.")
    check_names(options, {*describe(name).options} - {"wording"})
    model = load_model(model) if isinstance(model, (str, Path)) else model
    options |= {"n": n, "first_seed": first_seed}
    return {each: endless_pairs(name, model, wording=each, **options) for each in names}


def load_origin(origin: DataOrigin, model: Any, whole: PromptPairs | None = None) -> PromptPairs:
    """The pairs of an origin, of its `whole` data set or loaded; errors as in `load_dataset`."""
    with warnings.catch_warnings():
        # They were shown when the pairs were first loaded.
        warnings.simplefilter("ignore", DataWarning)
        pairs = whole or load_dataset(origin.dataset, model, **origin.options)
    if max(origin.examples) >= len(pairs):
        raise DataFormatError(
            f"{origin.dataset} has {len(pairs)} pairs, and example {max(origin.examples)} of them "
            "is asked for. Restore the data, or give others."
        )
    return pairs.subset(origin.examples)
