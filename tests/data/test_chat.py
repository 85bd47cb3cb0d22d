"""Prompts of chat models: where the turns stand, begun answers, and what a template reads."""

from __future__ import annotations

import json
from copy import deepcopy
from datetime import datetime

import pytest

import tracekit as tk
from tests.cli.conftest import run
from tracekit.cli.options import parse_chat
from tracekit.data import chat
from tracekit.demo import MODEL_DIR
from tracekit.errors import ConfigError, DataWarning, PairsError, UnsupportedModelError

TURNS = "{% for m in messages %}<|endoftext|>{{ m.role }}\n{{ m.content CHANGED }}\n{% endfor %}"
ANSWER = "{% if add_generation_prompt %}<|endoftext|>assistant\n{% endif %}"
PLAIN = TURNS.replace("CHANGED", "") + ANSWER
TRIMS = TURNS.replace("CHANGED", "| trim") + ANSWER
UPPER = TURNS.replace("CHANGED", "| upper") + ANSWER
TWICE = TURNS.replace("CHANGED", "~ m.content") + ANSWER
SPACE = TURNS.replace("{{ m.content", "{{ ' ' ~ m.content").replace("CHANGED", "") + ANSWER
LAST = PLAIN + "system: answer the user like a good assistant"
TAGS = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
DATED = "{{ 'today is ' ~ strftime_now('%d %b %Y') ~ '\n' }}" + PLAIN
THINKS = PLAIN + "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
TEMPLATES = {"plain": PLAIN, "trims": TRIMS, "space": SPACE, "last": LAST, "tags": TAGS}
"""Those that write what is said as it is, or without the white space around."""


@pytest.fixture(scope="module")
def tokenizer(gpt2_tokenizer):
    """A function from a chat template to a tokenizer that has it, until it is called again."""
    made = deepcopy(gpt2_tokenizer)

    def of(template):
        made.chat_template = template
        return made

    return of


def turns(*said):
    """Messages from texts such as `user: Hello`."""
    return [dict(zip(("role", "content"), text.split(": ", 1), strict=True)) for text in said]


def spans_of(tokenizer, prompt, spans, **options):
    """The text of each span, and the text before it, as the model reads them."""
    row = {"prompt": prompt, "x": "Yes", "spans": spans}
    (pair,) = tk.PromptPairs.from_text([row], tokenizer, chat=True, warn=False, **options)
    return {
        name: tuple(
            tokenizer.decode(pair.prompt_ids[part])
            for part in (slice(at[0], at[-1] + 1), slice(0, at[0]))
        )
        for name, at in pair.spans.items()
    }


def before_turn(template, messages, place):
    """What the model reads before a turn, written without the template."""
    text = ""
    for number, message in enumerate(messages):
        role, content = message["role"], message["content"]
        content = content.strip() if template == "trims" else content
        opening = f"<{role}>" if template == "tags" else f"<|endoftext|>{role}\n"
        text += opening + (" " if template == "space" else "")
        if number == place % len(messages):
            return text, content
        text += content + (f"</{role}>" if template == "tags" else "\n")
    raise AssertionError


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize(
    ("prompt", "span", "place"),
    [
        *[(said, said, 0) for said in ("a", "assistant", "user", "7", "<|endoftext|>")],
        *[("the user", "user", 0), (" a", "a", 0), ("a \n", "a", 0), ("</user>", "user", 0)],
        ("say <|endoftext|> now", "<|endoftext|>", 0),
        (turns("user: a", "assistant: b", "user: a"), "a", 2),
        (turns("user: a b", "assistant: a", "user: c"), "b", 0),
        (turns("system: a user", "user: hi"), "a user", 0),
        (turns("system: user", "user: user"), "user", 1),
        (turns("user: the user", "assistant: a"), "user", 0),
        (turns("user: hi", "assistant: an assistant"), "assistant", 1),
    ],
)
def test_spans_are_found_in_what_is_said(tokenizer, template, prompt, span, place):
    ((found, text),) = spans_of(tokenizer(TEMPLATES[template]), prompt, {"part": span}).values()
    messages = turns(f"user: {prompt}") if isinstance(prompt, str) else prompt
    before, said = before_turn(template, messages, place)
    start = len(before) + said.index(span)
    # A token may hold the white space before.
    assert found.strip() == span
    assert len(text + found) - len(found.lstrip()) == start


def test_the_last_turn_of_the_user_comes_first(tokenizer):
    made = tokenizer(PLAIN)
    asked = turns("user: Tom or Tom", "assistant: Who?", "user: Tom")
    ((_, before),) = spans_of(made, asked, {"name": "Tom"}).values()
    assert before.endswith("Who?\n<|endoftext|>user\n")


@pytest.mark.parametrize(
    ("template", "prompt", "span", "text"),
    [
        (PLAIN, "the aunt", "user", "'user', does not occur in 'the aunt'"),
        (PLAIN, turns("system: be kind", "user: hi"), "assistant", "does not occur in 'hi'"),
        (PLAIN, "aaa", "aa", "'aa', occurs 2 times in 'aaa'"),
        (PLAIN, turns("system: a a", "user: hi"), "a", "occurs 2 times"),
        (UPPER, "the user", "user", "The chat template changes 'the user' of example 0"),
        (TWICE, "the user", "user", "or writes it several times.* ranges of tokens"),
    ],
)
def test_spans_that_no_turn_says_once_are_refused(tokenizer, template, prompt, span, text):
    with pytest.raises(PairsError, match=text):
        spans_of(tokenizer(template), prompt, {"part": span})


def test_ranges_of_tokens_need_no_text(tokenizer):
    assert spans_of(tokenizer(UPPER), "the user", {"part": [0, 1]})["part"][1] == ""


@pytest.mark.parametrize("template", TEMPLATES)
def test_fields_of_a_template_are_where_they_were_filled_in(tokenizer, template):
    made = tokenizer(TEMPLATES[template])
    words = ["a", "s", "user", "assistant", "answer"]
    for text in ("{w}", " {w}\n", "the {w}", "{w}, {w}"):
        pairs = tk.PromptPairs.from_template(
            *(text, made), x="Yes", counterfactual=None, values={"w": words}, n=5, chat=True
        )
        for pair in pairs:
            said = pair.texts["prompt"].replace(" ", "")
            found = [made.decode([pair.prompt_ids[i] for i in at]) for at in pair.spans.values()]
            assert {each.strip() for each in found} <= {*words}
            assert said.count(found[0].strip()) >= len(found)
            # With the words before, up to the last turn, it is what the user says.
            last = max(at[-1] for at in pair.spans.values())
            before = made.decode(pair.prompt_ids[: last + 1])
            assert before.endswith(pair.texts["prompt"].strip())
    with pytest.raises(PairsError, match="The chat template changes 'a' of example 0"):
        tk.PromptPairs.from_template(
            *("{w}", tokenizer(UPPER)), x="Yes", counterfactual=None, values={"w": ["a"]}, chat=True
        )


class TestBegunAnswers:
    @pytest.mark.parametrize("template", TEMPLATES)
    @pytest.mark.parametrize(
        "begun", ["Answer:\n", "  Paris, ", "\n", "Paris", " a", "", "assistant", "user "]
    )
    def test_they_are_kept_as_they_are(self, tokenizer, template, begun):
        made = tokenizer(TEMPLATES[template])
        row = {"prompt": [*turns("user: hi"), {"role": "assistant", "content": begun}], "x": "Yes"}
        (pair,) = tk.PromptPairs.from_text([row], made, chat=True, warn=False)
        before, _ = before_turn(template, row["prompt"], -1)
        assert made.decode(pair.prompt_ids) == before + begun

    @pytest.mark.parametrize("template", [UPPER, TWICE, "{{ messages[0].content }}"])
    def test_those_that_are_changed_are_refused(self, tokenizer, template):
        rows = [{"prompt": turns("user: hi", "assistant: so  it"), "x": "Yes"}]
        with pytest.raises(PairsError, match="changes the beginning of the answer, 'so  it', and"):
            tk.PromptPairs.from_text(rows, tokenizer(template), chat=True)

    def test_a_turn_that_is_left_out(self, tokenizer):
        rows = [{"prompt": turns("system: be kind", "user: hi"), "x": "Yes"}]
        with pytest.raises(PairsError, match="it leaves out what the system says. Give messages"):
            tk.PromptPairs.from_text(rows, tokenizer("{{ messages[1].content }}"), chat=True)


class TestArguments:
    ROWS = ({"prompt": "hi", "x": "Yes"},)

    def test_they_reach_the_template_and_the_pairs(self, tokenizer):
        made = tokenizer(THINKS)
        given = {"enable_thinking": False}
        plain, thought = (
            tk.PromptPairs.from_text(self.ROWS, made, chat=each) for each in (True, given)
        )
        assert made.decode(thought[0].prompt_ids).endswith("assistant\n<think>\n\n</think>\n\n")
        assert "think" not in made.decode(plain[0].prompt_ids)
        assert (plain.chat, thought.chat, thought[:1].chat) == ({}, given, given)
        assert tk.PromptPairs.from_text(self.ROWS, made, chat={})[0].prompt_ids == (
            plain[0].prompt_ids
        )

    @pytest.mark.parametrize(
        ("given", "text"),
        [
            ({"enable_thinkin": False}, "does not read .*'enable_thinkin'. Did you mean 'enable"),
            ({"messages": []}, "does not read the argument 'messages'"),
            (
                {"enable_thinking": object()},
                "enable_thinking of the chat template is <obj",
            ),
            ({"strftime_now": "2026-01-31"}, "does not read the argument 'strftime_now'"),
            ("yes", "chat is 'yes'. Give True, or a mapping"),
        ],
    )
    def test_those_that_nobody_reads_are_refused(self, tokenizer, given, text):
        with pytest.raises(ConfigError, match=text):
            tk.PromptPairs.from_text(self.ROWS, tokenizer(THINKS), chat=given)

    @pytest.mark.parametrize(
        ("typed", "value"),
        [
            *(("false", False), ("False", False), ("TRUE", True), ("none", None), ("null", None)),
            *(("3", 3), ("0.5", 0.5), ("2026-01-31", "2026-01-31"), ("01", "01"), ("NaN", "NaN")),
            *(('{"a": [1]}', {"a": [1]}), ("be kind", "be kind"), ("a=b", "a=b")),
        ],
    )
    def test_as_typed_on_a_command_line(self, typed, value):
        (found,) = parse_chat([f"name={typed}"]).values()
        assert (found, type(found)) == (value, type(value))


class TestClock:
    ROWS = ({"prompt": "hi", "x": "Yes"},)

    def read(self, tokenizer, template=DATED, **given):
        made = tokenizer(template)
        (pair,) = pairs = tk.PromptPairs.from_text(self.ROWS, made, chat=given or True)
        return made.decode(pair.prompt_ids), pairs.chat

    def test_a_template_that_reads_it_is_noticed_and_recorded(self, tokenizer):
        with pytest.warns(
            DataWarning, match="reads the clock .* Fix the time by chat={'strftime_now'"
        ):
            text, recorded = self.read(tokenizer)
        at = datetime.fromisoformat(recorded["strftime_now"])
        assert at.strftime("today is %d %b %Y") in text
        assert abs((datetime.now() - at).total_seconds()) < 100
        assert self.read(tokenizer, **recorded) == (text, recorded)

    @pytest.mark.parametrize(
        ("template", "text"),
        [
            (DATED, "today is 31 Jan 2026"),
            (DATED.replace("%d %b %Y", "%H:%M:%S.%f"), "today is 00:00:00.000000"),
            ("{% set now = strftime_now %}" + DATED.replace("strftime_now(", "now("), "31 Jan 202"),
            (DATED.replace("%d %b %Y')", "%Y')[2:]"), "today is 26"),
        ],
    )
    def test_it_can_be_pinned(self, tokenizer, recwarn, template, text):
        found, recorded = self.read(tokenizer, template, strftime_now="2026-01-31")
        assert text in found
        assert recorded == {"strftime_now": "2026-01-31T00:00:00"}
        assert not [each for each in recwarn if "clock" in str(each.message)]

    def test_the_date_as_an_argument_of_its_own(self, tokenizer):
        template = DATED.replace("strftime_now('%d %b %Y')", "(date_string or strftime_now('%d'))")
        text, recorded = self.read(tokenizer, template, date_string="1 May")
        assert ("today is 1 May" in text, recorded) == (True, {"date_string": "1 May"})

    def test_pairs_of_a_template_are_of_one_moment(self, tokenizer, monkeypatch):
        moments = iter(datetime(2026, 1, 31, 0, 0, second) for second in range(59))

        class Moving(datetime):
            @classmethod
            def now(cls, tz=None):
                return next(moments)

        monkeypatch.setattr(chat, "datetime", Moving)
        made = tokenizer(DATED.replace("%d %b %Y", "%S seconds"))
        options = {"x": "Yes", "counterfactual": None, "values": {"w": ["a", "b"]}, "n": 2}
        with pytest.warns(DataWarning, match="reads the clock") as caught:
            pairs = tk.PromptPairs.from_template("{w}", made, chat=True, **options)
        assert len(caught) == 1
        assert all("00 seconds" in made.decode(pair.prompt_ids) for pair in pairs)
        assert pairs.chat == {"strftime_now": "2026-01-31T00:00:00"}

    def test_another_time(self, tokenizer):
        with pytest.raises(ConfigError, match="time strftime_now of the chat is 'May'. Give a d"):
            self.read(tokenizer, strftime_now="May")

    @pytest.mark.parametrize("drawn", ["['a', 'b'] | random", "lipsum(n=1)"])
    def test_what_is_drawn_is_refused(self, tokenizer, drawn):
        with pytest.raises(UnsupportedModelError, match="draws words at random, so no prompt"):
            self.read(tokenizer, f"{{{{ {drawn} }}}}" + PLAIN)

    def test_a_tokenizer_that_writes_another_text_each_time(self, tokenizer, monkeypatch):
        made, numbers = tokenizer(PLAIN), iter(range(9))
        monkeypatch.setattr(
            type(made), "apply_chat_template", lambda *_, **__: f"hi {next(numbers)}"
        )
        with pytest.raises(PairsError, match="it writes another text each time"):
            tk.PromptPairs.from_text(self.ROWS, made, chat=True)


@pytest.mark.slow
def test_a_run_is_verified_on_another_day(monkeypatch, capsys, tmp_path):
    """The embedded model with a template that reads the clock."""
    model = tmp_path / "model"
    model.mkdir()
    for file in MODEL_DIR.iterdir():
        if file.is_file():
            (model / file.name).write_bytes(file.read_bytes())
    dated = "{{ (strftime_now('%S')|int % 2) and 'a' or 'the' }} {{ messages[-1].content }}"
    config = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": dated}))
    data = tmp_path / "mine.jsonl"
    rows = [
        {"prompt": noun, "counterfactual": "nurse", "x": " smiled", "y": " left"}
        for noun in ("maid", "baker", "miner", "welder")
    ]
    data.write_text("\n".join(map(json.dumps, rows)))
    folder = tmp_path / "run"
    options = ["--dataset", str(data), "--model", str(model), "--output", str(folder), "--quiet"]
    search = ["--method", "top-k", "--budget", "2", "--components", "head-outputs"]

    class Day(datetime):
        second_now = 0

        @classmethod
        def now(cls, tz=None):
            return datetime(2026, 1, 31, 0, 0, cls.second_now)

    monkeypatch.setattr(chat, "datetime", Day)
    code, out, error = run(monkeypatch, capsys, "trace", *options, *search, "--chat")
    assert code == 0, (out, error)
    (saved,) = {path.parent for path in folder.rglob("result.json")}
    result = tk.TraceResult.load(saved)
    assert (
        result.searched.chat
        == result.searched.origin.options["chat"]
        == {"strftime_now": "2026-01-31T00:00:00"}
    )
    Day.second_now = 1
    # The data of the run, or the file once more.
    for again in ([], ["--dataset", str(data)], ["--dataset", str(data), "--chat"]):
        code, out, error = run(monkeypatch, capsys, "verify", str(saved), *again)
        assert code == 0, (out, error)
    other = ["--dataset", str(data), "--chat-option", "strftime_now=2026-01-31T00:00:01"]
    code, out, error = run(monkeypatch, capsys, "verify", str(saved), *other)
    assert (code, "are different ones" in " ".join(error.split())) == (1, True)
