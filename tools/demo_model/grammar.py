"""The invented language of the demonstration model, with four planted behaviours.

1. Pronouns after an occupation: every occupation has a planted share of "she".
2. Reference: which of two occupations a pronoun stands for, as its typical continuation shows.
3. Facts: invented places, each with one attribute that depends on all words of its name.
4. Arithmetic: sums and differences of two named variables.

Prompts are lower-case words and punctuation marks with single spaces between them; splitting at
spaces gives exactly the tokens. All draws are seeded. What is held out of training is the same for
every training seed.
"""

import random
from dataclasses import dataclass
from functools import cache
from itertools import permutations, product

HELD_OUT_SHARE = 0.12
"""Share of the arithmetic questions and of the reference contexts kept out of training."""

_FIXED_SEED = 20
"""Seed of everything that belongs to the language itself: planted facts and held-out sets."""

SHE, HE = "she", "he"

CLEARLY_MALE, CLEARLY_FEMALE = 0.25, 0.75
"""Occupations with a share of "she" up to, or from, these values count as clearly gendered."""

# From the lowest to the highest planted share of "she"; the shares are spread evenly.
_OCCUPATIONS: tuple[tuple[str, str], ...] = (
    ("driver", "had a truck to load ."),
    ("miner", "came up from the pit ."),
    ("roofer", "needed a longer ladder ."),
    ("welder", "smelled of iron ."),
    ("mechanic", "was lying under the old engine ."),
    ("plumber", "found the leaking pipe ."),
    ("soldier", "marched at dawn ."),
    ("captain", "had to steer the ship home ."),
    ("blacksmith", "struck the anvil ."),
    ("hunter", "followed the tracks of a deer ."),
    ("sailor", "hoisted sails ."),
    ("carpenter", "was sawing planks ."),
    ("pilot", "was about to land the plane ."),
    ("farmer", "had cows to milk ."),
    ("butcher", "sharpened the knives ."),
    ("guard", "locked every gate ."),
    ("banker", "counted coins ."),
    ("judge", "read the verdict aloud ."),
    ("lawyer", "had a client in court ."),
    ("barber", "trimmed beards ."),
    ("cook", "stirred the soup ."),
    ("doctor", "wrote a prescription ."),
    ("potter", "turned a bowl of clay ."),
    ("painter", "was mixing colours ."),
    ("tailor", "cut the cloth for a coat ."),
    ("actor", "learned every line of the play ."),
    ("baker", "kneaded dough ."),
    ("gardener", "was pruning the roses ."),
    ("writer", "finished a chapter ."),
    ("singer", "practised the high notes ."),
    ("teacher", "had homework to mark ."),
    ("cashier", "closed the till ."),
    ("librarian", "put the books back in order ."),
    ("weaver", "threaded looms ."),
    ("secretary", "typed the letters ."),
    ("dancer", "was late for the ballet ."),
    ("florist", "tied a bunch of tulips ."),
    ("maid", "ironed sheets ."),
    ("nurse", "had bandages to change tonight ."),
    ("midwife", "delivered twins ."),
)

_LOWEST_SHARE, _HIGHEST_SHARE = 0.05, 0.95

OCCUPATION_TEMPLATES: tuple[str, ...] = (
    "the {who} said that",
    "the {who} knew that",
    "the {who} hoped that",
    "the {who} smiled because",
    "the {who} went home because",
    "the {who} told us that",
)
"""Sentence beginnings of the first behaviour; the next word is a pronoun."""

REFERENCE_TEMPLATES: tuple[str, ...] = (
    "the {first} called the {second} because",
    "the {first} met the {second} when",
    "the {first} waited for the {second} while",
    "the {first} thanked the {second} after",
    "the {first} visited the {second} since",
    "the {first} left with the {second} before",
)
"""Sentence beginnings of the second behaviour; a pronoun and a continuation follow."""

_SUBJECT_FORMS: tuple[str, ...] = (
    "the tower of {name}",
    "the harbour of {name}",
    "the bridge of {name}",
    "the well of {name}",
    "mount {name}",
    "lake {name}",
)

_PLACE_NAMES: tuple[str, ...] = (
    "velm", "dorra", "tasken", "ombry", "ferrow", "lunt", "sarn", "quesh", "caldo", "irvith",
)  # fmt: skip


@dataclass(frozen=True)
class Relation:
    """A kind of fact."""

    phrases: tuple[str, ...]
    """Wordings between the subject and the attribute."""
    values: tuple[str, ...]
    """The possible attributes, one token each."""


RELATIONS: tuple[Relation, ...] = (
    Relation(
        ("lies in the land of", "belongs to the land of", "is on the map of"),
        ("orsa", "melth", "pirran", "vando", "teshk", "gruna", "ilvey", "hathe"),
    ),
    Relation(
        ("is home to many", "is watched by the", "is known for its"),
        ("wolves", "owls", "bears", "foxes", "geese", "snakes", "lions", "crows"),
    ),
    Relation(
        ("from afar looks", "in spring turns", "has the colour"),
        ("red", "blue", "green", "white", "black", "yellow", "grey", "brown"),
    ),
)
"""The kinds of facts; every invented place has a fact of exactly one of them."""

VARIABLES: tuple[str, ...] = ("x", "y", "z", "p", "q", "r")
"""Variable names of the arithmetic questions."""

DIGITS = range(10)
"""Values that a variable can have."""


@dataclass(frozen=True)
class Occupation:
    """An occupation with its planted stereotype."""

    name: str
    she_share: float
    """Planted probability of "she" (else "he"), from 0.05 to 0.95."""
    continuation: str
    """Typical end of a sentence about such a person, two to six words and a full stop."""


@dataclass(frozen=True)
class Reference:
    """A context of the second behaviour: two different occupations, in order, and a template."""

    first: Occupation
    second: Occupation
    template: str

    def prompt(self, pronoun: str) -> str:
        """The sentence up to and including the pronoun."""
        opening = self.template.format(first=self.first.name, second=self.second.name)
        return f"{opening} {pronoun}"

    def pointed_at(self, pronoun: str) -> Occupation:
        """The occupation for which the pronoun is the likelier one."""
        by_share = sorted((self.first, self.second), key=lambda job: job.she_share)
        return by_share[1] if pronoun == SHE else by_share[0]


@dataclass(frozen=True)
class Fact:
    """A planted fact."""

    subject: str
    """Full name of the invented place, such as "the tower of velm"."""
    relation: Relation
    value: str
    """The true attribute, one of the relation's values."""

    def prompts(self) -> list[str]:
        """The sentence up to the attribute, once for each wording."""
        return [f"{self.subject} {phrase}" for phrase in self.relation.phrases]


@dataclass(frozen=True)
class Question:
    """An arithmetic question about two variables."""

    names: tuple[str, str]
    """Two different variable names, in the order in which they are assigned."""
    values: tuple[int, int]
    """Their values, 0 to 9, in the same order."""
    operator: str
    """`+` or `-`."""
    swapped: bool
    """Whether the question names the two in the other order than the assignments."""

    @property
    def result(self) -> int:
        """The answer; questions of the language have one from 0 to 18."""
        left, right = reversed(self.values) if self.swapped else self.values
        return left + right if self.operator == "+" else left - right

    def prompt(self) -> str:
        """The question up to and including the last equals sign."""
        assigned = zip(self.names, self.values, strict=True)
        givens = " ".join(f"{name} = {value} ," for name, value in assigned)
        left, right = reversed(self.names) if self.swapped else self.names
        return f"{givens} {left} {self.operator} {right} ="


@cache
def occupations() -> tuple[Occupation, ...]:
    """All occupations, from the lowest to the highest planted share of "she"."""
    step = (_HIGHEST_SHARE - _LOWEST_SHARE) / (len(_OCCUPATIONS) - 1)
    return tuple(
        Occupation(name, round(_LOWEST_SHARE + index * step, 4), continuation)
        for index, (name, continuation) in enumerate(_OCCUPATIONS)
    )


@cache
def references() -> tuple[Reference, ...]:
    """Every context of the second behaviour: ordered pairs times templates."""
    return tuple(
        Reference(first, second, template)
        for first, second in permutations(occupations(), 2)
        for template in REFERENCE_TEMPLATES
    )


@cache
def held_out_references() -> frozenset[Reference]:
    """The contexts of the second behaviour that never occur in training."""
    population = references()
    rng = random.Random(f"references {_FIXED_SEED}")
    return frozenset(rng.sample(population, round(HELD_OUT_SHARE * len(population))))


def clear_held_out_references() -> list[Reference]:
    """The held-out contexts with one clearly male and one clearly female occupation."""
    return [
        reference
        for reference in references()
        if reference in held_out_references()
        and reference.pointed_at(SHE).she_share >= CLEARLY_FEMALE
        and reference.pointed_at(HE).she_share <= CLEARLY_MALE
    ]


@cache
def facts() -> tuple[Fact, ...]:
    """All planted facts, one for each invented place."""
    rng = random.Random(f"facts {_FIXED_SEED}")
    planted = []
    for index, (form, name) in enumerate(product(_SUBJECT_FORMS, _PLACE_NAMES)):
        relation = RELATIONS[index % len(RELATIONS)]
        planted.append(Fact(form.format(name=name), relation, rng.choice(relation.values)))
    return tuple(planted)


@cache
def questions() -> tuple[Question, ...]:
    """Every arithmetic question with a result that is not negative."""
    choices = product(permutations(VARIABLES, 2), product(DIGITS, DIGITS), "+-", (False, True))
    return tuple(q for q in (Question(*choice) for choice in choices) if q.result >= 0)


@cache
def held_out_questions() -> frozenset[Question]:
    """The arithmetic questions that never occur in training."""
    population = questions()
    rng = random.Random(f"questions {_FIXED_SEED}")
    return frozenset(rng.sample(population, round(HELD_OUT_SHARE * len(population))))
