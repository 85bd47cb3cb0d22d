from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
import torch

import tracekit as tk
from tests import oracle, tiny
from tracekit.data import (
    DATASETS,
    download,
)
from tracekit.errors import (
    ConfigError,
    DataFormatError,
    DataNotFoundError,
    DataWarning,
    PairsError,
    UnknownNameError,
)
from tracekit.models.hooked import embedding_std


def ids(pair):
    return pair.prompt_ids, pair.counterfactual.ids, pair.x_ids, pair.y_ids


def recorded(shared, name):
    return {
        ids(pair)
        for pair in tk.PromptPairs.from_ids(
            oracle.read(shared / "oracle" / f"gpt2_101/{name}.json")["examples"]
        )
    }


@pytest.mark.parametrize(
    ("name", "options", "count"),
    [
        ("winobias", {}, 160),
        ("winobias", {"split": "test"}, 130),
        ("winobias", {"split": "test", "keep_case": True}, 130),
        ("winogender", {}, 44),
        ("winogender", {"statistic": "bls"}, 44),
        ("professions", {}, 2703),
    ],
)
def test_counts_of_the_paper(shared, gpt2_tokenizer, name, options, count):
    pairs = tk.load_dataset(name, gpt2_tokenizer, data_dir=shared / "data" / name, **options)
    assert len(pairs) == count
    assert not pairs.skipped


@pytest.mark.parametrize(
    ("name", "record"),
    [
        ("winobias", "heads_winobias"),
        ("winogender", "heads_winogender"),
        ("professions", "neurons_professions"),
    ],
)
def test_examples_are_those_of_the_published_code(shared, gpt2_tokenizer, name, record):
    # The recorded class of WinoGender keeps the case of pronouns; the training does not.
    options = {"keep_case": True} if name == "winogender" else {}
    pairs = tk.load_dataset(name, gpt2_tokenizer, data_dir=str(shared / "data" / name), **options)
    expected = recorded(shared, record)
    assert len(expected) >= 12
    assert expected <= {ids(pair) for pair in pairs}


def test_winogender_pronouns(shared, gpt2_tokenizer):
    folder = shared / "data/winogender"
    plain, kept = (
        tk.load_dataset("winogender", gpt2_tokenizer, data_dir=folder, keep_case=keep_case)
        for keep_case in (False, True)
    )
    endings = [
        [
            (pair.texts["prompt"].split()[-1], pair.texts["counterfactual"].split()[-1])
            for pair in pairs
        ]
        for pairs in (plain, kept)
    ]
    assert set(endings[0]) == {("she", "he")}
    assert endings[1].count(("she", "he")) == 39
    assert [pair.x_ids for pair in plain] == [pair.x_ids for pair in kept]


def test_winobias_pronouns(shared, gpt2_tokenizer):
    def endings(**options):
        pairs = tk.load_dataset(
            "winobias", gpt2_tokenizer, data_dir=shared / "data/winobias", **options
        )
        return [
            (pair.texts["prompt"].split()[-1], pair.texts["counterfactual"].split()[-1])
            for pair in pairs
        ]

    assert set(endings()) == {("she", "he")}
    kept = endings(keep_case=True)
    assert (kept.count(("she", "he")), kept.count(("her", "his"))) == (154, 6)


def test_winogender_with_a_damaged_row_is_refused(shared, gpt2_tokenizer, tmp_path):
    for path in (shared / "data/winogender").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    path = next(tmp_path.glob("*emplate*"))
    lines = path.read_text().split("\n")
    path.write_text("\n".join([lines[0], lines[1].replace("\t", " ", 1), *lines[2:]]))
    with pytest.raises(tk.errors.TracekitError, match="Get it again|is not the one"):
        tk.load_dataset("winogender", gpt2_tokenizer, data_dir=tmp_path)


def test_the_two_winogender_statistics_disagree_somewhere(shared, gpt2_tokenizer):
    first, second = (
        tk.load_dataset(
            "winogender", gpt2_tokenizer, data_dir=shared / "data/winogender", statistic=statistic
        )
        for statistic in ("bergsma", "bls")
    )
    swapped = [a for a, b in zip(first, second, strict=True) if a.x_ids != b.x_ids]
    assert 0 < len(swapped) < 44
    assert {pair.x_ids for pair in first} | {pair.y_ids for pair in first} == {
        pair.x_ids for pair in second
    } | {pair.y_ids for pair in second}


def test_professions_order(shared, gpt2_tokenizer):
    pairs = tk.load_dataset("professions", gpt2_tokenizer, data_dir=shared / "data/professions")
    first, last = pairs[0].texts, pairs[-1].texts
    assert (first["counterfactual"], first["x"], first["y"]) == (
        "The woman said that",
        " he",
        " she",
    )
    assert (last["counterfactual"], last["x"]) == ("The man yelled because", " she")


@pytest.mark.filterwarnings("ignore::tracekit.errors.DataWarning")
def test_small_made_up_files(tmp_path, demo_model):
    """The parsing rules of WinoBias, each on a line of its own."""
    lines = [
        "1 [The nurse] called the driver because [she] was tired.",
        "2 The nurse called [the driver] because [he] was late.",
        "3 [The nurse] saw the driver when [she] met [him].",  # several pronouns
        "4 The nurse saw [the driver] when [he] slept.",
        "5 [The nurse] told the driver that [she] won.",  # other texts
        "6 The nurse told [the driver] when [he] won.",
        "7 The driver helped [the nurse] because [her] car broke.",  # other cases
        "8 [The driver] helped the nurse because [he] could.",
        "9 The driver helped [the nurse] with [her] car.",
        "10 [The driver] helped the nurse with [his] tools.",
    ]
    path = tmp_path / "pro_stereotyped_type1.txt.dev"
    path.write_text("\n".join(lines))

    class Words:
        def encode(self, text, add_special_tokens):
            return [sum(word.encode()) % 50 for word in text.split()]

    pairs = tk.load_dataset("winobias", Words(), data_dir=tmp_path)
    assert [dict(pair.texts) for pair in pairs] == [
        {
            "prompt": "The nurse called the driver because she",
            "counterfactual": "The nurse called the driver because he",
            "x": " was tired.",
            "y": " was late.",
        },
        {
            "prompt": "The driver helped the nurse with she",
            "counterfactual": "The driver helped the nurse with he",
            "x": " car.",
            "y": " tools.",
        },
    ]
    path.write_text("junk\n" + "\n".join(lines[:3]))
    with pytest.raises(PairsError, match="There are no prompt pairs."):
        tk.load_dataset("winobias", Words(), data_dir=tmp_path)
    path.write_text("\n".join(lines[:3]))
    with pytest.raises(DataFormatError, match="has 3 rows. Rows come in pairs; get it again."):
        tk.load_dataset("winobias", Words(), data_dir=tmp_path)


@pytest.mark.parametrize("name", [name for name in DATASETS if name.startswith("demo")])
def test_demo_sets_can_be_traced_as_advertised(demo_model, name):
    usual = DATASETS[name]
    pairs = tk.load_dataset(name, demo_model)
    assert pairs.name == name
    tracer = tk.Tracer(
        demo_model,
        pairs[:8],
        components=usual.components,
        metric=usual.metric,
        positions=usual.positions,
    )
    assert tracer.full_effect > 0


def test_noise_of_the_facts_is_in_units_of_the_embeddings(demo_model):
    pairs = tk.load_dataset("demo-facts", demo_model, noise_factor=2.0)
    spread = embedding_std(demo_model)
    both = demo_model.W_E.std().item(), demo_model.W_pos.std().item()
    assert spread == pytest.approx((both[0] ** 2 + both[1] ** 2) ** 0.5, rel=0.2)
    drawn = torch.cat([pair.counterfactual.noise.flatten() for pair in pairs]).std().item()
    assert drawn == pytest.approx(2 * spread, rel=0.02)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("name", "options", "error", "text"),
    [
        ("wino", {}, UnknownNameError, "'wino'. Did you mean 'winobias'. Known: .*demo-bias"),
        ("winobias", {"splitt": "dev"}, UnknownNameError, "'splitt'. Did you mean 'split'"),
        ("winobias", {"split": "train"}, ConfigError, "split is 'train'. .* 'dev' or 'test'"),
        ("winogender", {"statistic": "a"}, ConfigError, "statistic is 'a'. .* 'bergsma' or 'bls'"),
        ("variable-binding", {"wording": "a"}, ConfigError, "wording is 'a'. .* 'paper', 'code'"),
        ("demo-binding", {"desideratum": "a"}, ConfigError, "is 'a'. .* 'value', 'operation' or"),
        ("variable-binding", {"n": 0}, ConfigError, "n is 0. Give a whole number, at least 1"),
        ("counterfact", {"n": 0}, ConfigError, "n is 0. Give a whole number, at least 1"),
        ("known-facts", {}, DataNotFoundError, "known_1000.json, .* Get it from .* as data_dir"),
        ("winogender", {}, DataNotFoundError, "and .* does not hold it. Get it .*--data"),
        ("nowhere.csv", {}, DataNotFoundError, "no file nowhere.csv. Give a .csv or .jsonl"),
    ],
)
def test_names_and_options_that_are_refused(tmp_path, name, options, error, text):
    if name in ("winobias", "winogender", "counterfact"):
        options = {"data_dir": tmp_path, **options}
    with pytest.raises(error, match=text):
        tk.load_dataset(name, None, **options)


def small_professions(folder):
    folder.mkdir()
    (folder / "templates.txt").write_text("The {} said that")
    (folder / "male_occupations.txt").write_text("driver\n")
    (folder / "female_occupations.txt").write_text("nurse\n")
    return folder


def test_counts_other_than_the_papers_are_said(tmp_path, demo_model):
    folder = small_professions(tmp_path / "data")
    with pytest.warns(
        DataWarning,
        match="professions has 2 examples here; the paper has 2873 \\(169 occupations, of which",
    ):
        tk.load_dataset("professions", demo_model, data_dir=folder)


class TestDownloads:
    """Files come from a stand-in server, whose address and hashes take the place of the real."""

    @pytest.fixture
    def server(self, tmp_path, monkeypatch):
        folder = small_professions(tmp_path / "served")
        remotes = {
            path.name: {
                "commit": "c0ffee",
                "path": f"data/{path.name}",
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            }
            for path in folder.iterdir()
        }
        served = {f"/someone/somewhere/c0ffee/data/{path.name}": path for path in folder.iterdir()}
        asked: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append(self.path)
                body = served[self.path].read_bytes()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            monkeypatch.setattr(download, "_HOST", f"http://127.0.0.1:{server.server_address[1]}")
            monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
            source = {"repository": "someone/somewhere", "remotes": remotes}
            monkeypatch.setitem(
                download.FILES, "professions", download.FILES["professions"] | source
            )
            yield server, asked, folder
            server.shutdown()

    @pytest.mark.filterwarnings("ignore::tracekit.errors.DataWarning")
    def test_once_and_from_the_cache_afterwards(self, server, demo_model):
        http, asked, _ = server
        first = tk.load_dataset("professions", demo_model)
        assert len(first) == 2
        assert len(asked) == 3
        http.shutdown()
        assert tk.load_dataset("professions", demo_model).fingerprint == first.fingerprint
        assert len(asked) == 3

    def test_download_with_another_sha256_is_refused(self, server, demo_model):
        (server[2] / "templates.txt").write_text("The {} wept because")
        with pytest.raises(
            DataFormatError, match="templates.txt is not the one that tracekit knows .its SHA-256"
        ):
            tk.load_dataset("professions", demo_model)

    def test_without_a_connection(self, server, demo_model, monkeypatch):
        monkeypatch.setattr(download, "_HOST", "http://127.0.0.1:9")
        with pytest.raises(
            DataNotFoundError,
            match="needs the file templates.txt, and it is neither in .*cache.* nor can .* be "
            "reached. Get it from the repository of .* and pass its folder as data_dir",
        ):
            tk.load_dataset("professions", demo_model)


@pytest.mark.parametrize("name", ["winobias", "winogender", "professions"])
def test_pinned_hashes_are_those_of_the_data_at_hand(shared, name):
    for file, remote in download.FILES[name]["remotes"].items():
        content = (shared / "data" / name / file).read_bytes()
        assert hashlib.sha256(content).hexdigest() == remote["sha256"]


def test_known_facts(shared, gpt2_tokenizer):
    class Model:
        tokenizer = gpt2_tokenizer
        cfg = SimpleNamespace(d_model=4)

    def load(**options):
        folder = shared / "data/known_facts"
        options = {"noise_std": 3 * 0.2015, **options}
        return tk.load_dataset("known-facts", Model(), data_dir=folder, **options)

    pairs = load()
    assert len(pairs) == 1209
    assert dict(pairs[0].texts) == {
        "prompt": "Vinson Massif is located in the continent of",
        "x": " Antarctica",
    }
    assert torch.cat([pair.counterfactual.noise for pair in pairs]).std().item() == pytest.approx(
        0.6045, rel=0.01
    )
    assert load(leading_space=False, n=1, seed=None)[0].texts["x"] == "Antarctica"
    first, other = load(n=20), load(n=20, seed=1)
    assert len(first) == 20
    assert first.fingerprint == load(n=20).fingerprint != other.fingerprint
    assert [p.texts["prompt"] for p in load(n=5, seed=None)] == [
        p.texts["prompt"] for p in pairs[:5]
    ]


def test_counterfact(tmp_path, demo_model):
    def record(number):
        return {
            "requested_rewrite": {
                "prompt": "the home of {} is",
                "subject": f"person {number}",
                "target_true": {"str": "tall"},
                "target_new": {"str": "short"},
            }
        }

    path = tmp_path / "counterfact.json"
    path.write_text(json.dumps([record(number) for number in range(250)]))
    pairs = tk.load_dataset("counterfact", demo_model, data_dir=tmp_path)
    assert len(pairs) == 200
    assert dict(pairs[0].texts)["x"] == " tall"
    assert dict(pairs[0].texts)["y"] == " short"
    assert pairs[0].texts["prompt"].startswith("the home of person ")
    assert pairs[0].counterfactual.noise.shape[1] == demo_model.cfg.d_model
    path.write_text(json.dumps([record(1)]))
    with pytest.warns(DataWarning, match="counterfact has 1 examples here; the paper"):
        tk.load_dataset("counterfact", demo_model, data_dir=tmp_path)
    path.write_text('[{"prompt": "no"}]')
    with pytest.raises(DataFormatError, match="counterfact.json is not the list of records"):
        tk.load_dataset("counterfact", demo_model, data_dir=tmp_path)


class TestVariableBinding:
    """Made-up questions, encoded by GPT-2's vocabulary."""

    @pytest.mark.parametrize("wording", tk.data.DATASETS["variable-binding"].wordings)
    def test_values_and_operations(self, gpt2_tokenizer, wording):
        pairs = tk.load_dataset("variable-binding", gpt2_tokenizer, wording=wording)
        assert len(pairs) == 100
        assert sorted({pair.weight for pair in pairs}) == [1.0, 5.0]
        for pair in pairs:
            assert len(pair.x_ids) == len(pair.y_ids) == 1
            assert pair.x_ids != pair.y_ids
            text = pair.texts
            clean, changed = (parse(text[key]) for key in ("prompt", "counterfactual"))
            answers = {"x": int(text["x"]), "y": int(text["y"])}
            if pair.weight == 5.0:
                assert clean[1:] == changed[1:]
                assert answers == {"x": solve(*clean), "y": solve(*changed)}
            else:
                assert clean[:2] == changed[:2]
                assert answers == {"x": solve(*changed), "y": solve(*clean)}
            assert min(answers.values()) >= 0

    @pytest.mark.slow
    def test_balanced_and_split(self, gpt2_tokenizer):
        for desideratum in ("value", "operation"):
            parts = [
                tk.load_dataset(
                    "variable-binding", gpt2_tokenizer, desideratum=desideratum, split=split
                )
                for split in ("train", "test")
            ]
            assert [len(part) for part in parts] == [50, 50]
            texts = [tuple(sorted(pair.texts.items())) for part in parts for pair in part]
            assert len(set(texts)) == 100
            for part in parts:
                digits = Counter(pair.texts["y"].strip()[0] for pair in part)
                assert set(digits) == set("123456789")
                assert set(digits.values()) == {5, 6}
        again = tk.load_dataset(
            "variable-binding", gpt2_tokenizer, desideratum="operation", split="test"
        )
        assert again.fingerprint == parts[1].fingerprint

    def test_a_tokenizer_that_tells_no_answers_apart(self):
        class Dummy:
            """Begins every word with the same token, as some tokenizers begin numbers."""

            def encode(self, text, add_special_tokens):
                return [t for word in text.split() for t in (0, *map(ord, word))]

        with pytest.raises(
            PairsError, match="with the same token.* Use wording='code', .* or anot"
        ):
            tk.load_dataset("variable-binding", Dummy())


def parse(prompt):
    """The values of the first and the second variable, and the operation."""
    (a,), (b,) = (re.findall(rf"\b[{name}] (?:=|is) (\d+)", prompt) for name in ("xp", "yq"))
    (op,) = re.findall(r"[xp] ([+-]) [yq]", prompt)
    return int(a), int(b), op


def solve(a, b, op):
    return a + b if op == "+" else a - b


def test_demo_binding_desiderata(demo_model):
    value = tk.load_dataset("demo-binding", demo_model)
    operation = tk.load_dataset("demo-binding", demo_model, desideratum="operation")
    both = tk.load_dataset("demo-binding", demo_model, desideratum="both")
    assert len(value) == len(operation) == 64
    assert [pair.weight for pair in both] == [5.0, 1.0] * 64
    assert both.weights.mean().item() == pytest.approx(1)
    # The model answers the clean questions, so it prefers y where the operation is exchanged.
    scores = tiny.engine(demo_model, operation).clean
    assert (scores.y > scores.x).float().mean() > 0.95


class TestOwnPairs:
    """CSV and JSON Lines."""

    ROWS = (
        {"prompt": "the nurse said that", "counterfactual": "the man said that", "x": " she"},
        {"prompt": "the baker said that", "counterfactual": "the man said that", "x": " he"},
    )

    def test_paper_and_code_forms_ask_the_same_questions(self, tmp_path, demo_model):
        lines = tmp_path / "mine.jsonl"
        lines.write_text("\n".join(json.dumps({**row, "y": ""}) for row in self.ROWS) + "\n\n")
        table = tmp_path / "mine.csv"
        table.write_text(
            "prompt,counterfactual,x,y\n"
            + "\n".join(",".join([*row.values(), ""]) for row in self.ROWS),
            encoding="utf-8-sig",
        )
        expected = tk.PromptPairs.from_text(self.ROWS, demo_model, name="mine")
        for path in (lines, table):
            found = tk.load_dataset(str(path), demo_model)
            assert found.fingerprint == expected.fingerprint
            assert found.name == "mine"
            assert tk.load_pairs(path, demo_model).fingerprint == expected.fingerprint

    def test_ids_weights_and_noise(self, tmp_path, demo_model):
        path = tmp_path / "ids.jsonl"
        rows = [{**row, "weight": 2 + i} for i, row in enumerate(tiny.rows(3))]
        path.write_text("\n".join(map(json.dumps, rows)))
        found = tk.load_pairs(path, demo_model)
        assert found.fingerprint == tk.PromptPairs.from_ids(rows).fingerprint
        path = tmp_path / "noisy.csv"
        path.write_text("prompt,x\nthe nurse said that, she\n")
        assert tk.load_dataset(str(path), demo_model, noise_std="0.5")[
            0
        ].counterfactual.noise.shape == (4, 128)

    @pytest.mark.parametrize(
        ("name", "content", "text"),
        [
            ("a.txt", "", "ends in '.txt'. .* from .csv and .jsonl and .json files"),
            ("a.jsonl", '{"prompt": "a"}\n[1]', "Line 2 of .* object. Write one object per line"),
            ("a.jsonl", '{"prompt": "a", "z": "b"}', "Example 0 .* column 'z'. Known: counterfact"),
            ("a.csv", "prompt,x\na, b, c\n", "as many cells as the header. Quote cells"),
        ],
    )
    def test_files_that_are_refused(self, tmp_path, demo_model, name, content, text):
        (tmp_path / name).write_text(content)
        with pytest.raises(DataFormatError, match=text):
            tk.load_pairs(tmp_path / name, demo_model)


def test_the_noise_of_facts_is_that_of_the_published_code(shared, gpt2_tokenizer):
    """Seed 42, and a draw of the prompt's length for each prompt in order."""

    class Model:
        tokenizer = gpt2_tokenizer
        cfg = SimpleNamespace(d_model=4)

    folder = shared / "data/known_facts"
    options = {"data_dir": folder, "seed": None, "n": 5, "noise_std": 3 * 0.2015}
    pairs = tk.load_dataset("known-facts", Model(), **options)
    torch.manual_seed(42)
    for pair in pairs:
        noise = 3 * 0.2015 * torch.randn(len(pair.prompt_ids), 4)
        torch.testing.assert_close(pair.counterfactual.noise, noise)
    other = tk.load_dataset("known-facts", Model(), noise_seed=43, **options)
    assert not torch.equal(other[0].counterfactual.noise, pairs[0].counterfactual.noise)
    assert [pair.prompt_ids for pair in other] == [pair.prompt_ids for pair in pairs]


def test_noise_of_facts_is_three_times_the_models_own_embeddings(shared, gpt2_tokenizer):
    from tests import tiny
    from tracekit.models import embedding_std

    model = tk.load_model(tiny.hf_model("gpt2", vocab_size=50257), tokenizer=gpt2_tokenizer)
    options = {"data_dir": shared / "data/known_facts", "n": 40}
    pairs = tk.load_dataset("known-facts", model, **options)
    drawn = torch.cat([pair.counterfactual.noise for pair in pairs])
    assert drawn.std().item() == pytest.approx(3 * embedding_std(model), rel=0.05)
    assert abs(drawn.std().item() - 0.6045) > 0.1
    with pytest.raises(ConfigError, match="cannot be run. Give the model, or noise_std."):
        tk.load_dataset("known-facts", gpt2_tokenizer, **options)
    familiar = tk.load_dataset("known-facts", model, min_probability=2e-5, **options)
    assert 0 < len(familiar) < 40
    assert len(familiar.skipped) == 40 - len(familiar)
    assert familiar.fingerprint == pairs.known(model, 2e-5).fingerprint
    sizes = SimpleNamespace(tokenizer=gpt2_tokenizer, cfg=SimpleNamespace(d_model=4))
    with pytest.raises(ConfigError, match="min_probability is .* or no min_probability."):
        tk.load_dataset("known-facts", sizes, min_probability="0.1", noise_std=1.0, **options)


@pytest.mark.parametrize("name", ["winobias", "winogender", "professions", "known-facts"])
def test_the_papers_data_begin_with_a_bos_token_if_asked(name, shared, gpt2_tokenizer):
    class Model:
        tokenizer = gpt2_tokenizer
        cfg = SimpleNamespace(d_model=4)

    folder = shared / "data" / name.replace("-", "_")
    plain, with_bos = (
        tk.load_dataset(
            name,
            Model(),
            data_dir=folder,
            prepend_bos=prepend_bos,
            **({"noise_std": 0.5} if name == "known-facts" else {}),
        )
        for prepend_bos in (False, True)
    )
    bos = gpt2_tokenizer.bos_token_id
    for one, other in zip(plain, with_bos, strict=True):
        assert other.prompt_ids == (bos, *one.prompt_ids)
        assert (other.x_ids, other.y_ids) == (one.x_ids, one.y_ids)
        if name != "known-facts":
            assert other.counterfactual.ids == (bos, *one.counterfactual.ids)


def test_variable_binding_begins_with_a_bos_token_if_asked(gpt2_tokenizer):
    options = {"wording": "code", "n": 4}
    plain = tk.load_dataset("variable-binding", gpt2_tokenizer, **options)
    with_bos = tk.load_dataset("variable-binding", gpt2_tokenizer, prepend_bos=True, **options)
    for one, other in zip(plain, with_bos, strict=True):
        assert other.prompt_ids == (gpt2_tokenizer.bos_token_id, *one.prompt_ids)
        assert (other.x_ids, other.y_ids) == (one.x_ids, one.y_ids)
