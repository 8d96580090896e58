"""Tasks: scores against sums by hand, answers against the raw text, and what cannot be asked for."""

from __future__ import annotations

import ast
import json
import math
import re
import sysconfig
import warnings
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
import torch
from headscope.errors import HeadscopeError
from headscope.interventions.tasks import (
    Row,
    Sample,
    Task,
    brackets,
    chance,
    evaluate,
    from_jsonl,
    indentation,
    induction,
    named,
    next_token,
    pair_scores,
    retrieval,
    row_scores,
)
from headscope.interventions.tasks.source import BRACKETS, closing_brackets
from headscope.models import GroupedConfig, HookedModel, ModelConfig, Rotary
from headscope.training.tokens import encode, train_tokenizer
from tokenizers.processors import TemplateProcessing

D_VOCAB = 1024
N_CTX = 64
MAKERS = ("next_token", "induction", "retrieval", "brackets", "indentation", "from_jsonl")


@pytest.fixture(scope="module")
def documents() -> list[str]:
    library = Path(sysconfig.get_paths()["stdlib"])
    return [
        p.read_text(encoding="utf-8") for name in ("json", "asyncio") for p in sorted((library / name).glob("*.py"))
    ]


@pytest.fixture(scope="module")
def tokenizer(documents):
    return train_tokenizer(documents, D_VOCAB)


@pytest.fixture(scope="module")
def row(tokenizer, documents) -> torch.Tensor:
    return encode(tokenizer, documents)


@pytest.fixture(scope="module")
def model() -> HookedModel:
    torch.manual_seed(0)
    attention = GroupedConfig(n_heads=2, n_kv_heads=1, d_head=8)
    config = ModelConfig(d_model=16, n_layers=2, d_vocab=D_VOCAB, n_ctx=N_CTX, attention=attention, positions=Rotary())
    return HookedModel(config).eval()


@pytest.fixture(scope="module")
def lines(tmp_path_factory) -> Path:
    return write(
        tmp_path_factory.mktemp("lines") / "mine.jsonl",
        {"prompt": "return", "answer": " self.stop", "foil": " None"},
        "",
        {"prompt": "import", "answer": " json", "foil": " selectors as quite another thing"},
        {"prompt": "x = (1", "answer": ")", "foil": "]"},
    )


@pytest.fixture(scope="module")
def make(documents, tokenizer, row, lines):
    """Return a task by its maker's name, small enough for N_CTX."""
    ids = [tokenizer.encode(text) for text in documents]

    def make(maker: str, samples: int = 9, seed: int = 0) -> Task:
        made = {
            "next_token": lambda: next_token(ids, N_CTX, samples, seed),
            "induction": lambda: induction(row, N_CTX, samples, seed, block=20),
            "retrieval": lambda: retrieval(row, N_CTX, samples, seed, distances=(8, 32), distractors=(1, 4)),
            "brackets": lambda: brackets(tokenizer, documents, N_CTX, samples, seed),
            "indentation": lambda: indentation(tokenizer, documents, N_CTX, samples, seed),
            "from_jsonl": lambda: from_jsonl(lines, tokenizer),
        }
        return made[maker]()

    return make


def write(path: Path, *entries: dict | str) -> Path:
    path.write_text("".join((e if isinstance(e, str) else json.dumps(e)) + "\n" for e in entries), encoding="utf-8")
    return path


# -- scores -----------------------------------------------------------------------------------------------------------


def test_a_row_without_foils_by_hand():
    """p(answer) is 1/2 at the first position and 1/8 at the second, where another token is likelier."""
    logits = torch.tensor([[4.0, 2.0, 2.0], [1.0, 6.0, 1.0]]).log()
    score, accuracy = row_scores(logits, Row((5, 6, 7), (0, 2), (0, 2)))
    assert score == pytest.approx((math.log(1 / 2) + math.log(1 / 8)) / 2)
    assert accuracy == 0.5


def test_a_row_with_foils_by_hand():
    """The likeliest token of all is neither answer nor foil, and does not count."""
    logits = torch.tensor([[3.0, 1.0, 9.0], [2.0, 5.0, 9.0], [4.0, 4.0, 9.0]])
    score, accuracy = row_scores(logits, Row((5, 6, 7), (0, 1, 2), (0, 0, 0), (1, 1, 1)))
    assert score == pytest.approx((2 - 3 + 0) / 3)
    assert accuracy == pytest.approx(1 / 3)  # a tie is a miss


def test_a_tie_for_the_first_place_is_a_miss():
    assert row_scores(torch.zeros(1, 4), Row((1,), (0,), (0,)))[1] == 0
    assert row_scores(torch.tensor([[0.0, 1e-3]]), Row((1,), (0,), (1,)))[1] == 1


def test_a_pair_is_summed_not_averaged():
    right, wrong = torch.tensor([[1.0, 3.0], [1.0, 1.0]]).log(), torch.tensor([[1.0, 4.0]]).log()
    sample = Sample(Row((9, 9), (0, 1), (1, 0)), Row((9,), (0,), (0,)))
    score, accuracy = pair_scores(right, wrong, sample)
    assert score == pytest.approx(math.log(3 / 4 * 1 / 2) - math.log(1 / 5))
    assert accuracy == 1
    turned = Sample(sample.wrong, sample.right)
    assert pair_scores(wrong, right, turned) == (pytest.approx(-score), 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_are_scored_in_float32(dtype):
    logits = torch.randn(3, 500, generator=torch.Generator().manual_seed(0)).to(dtype)
    task_row = Row((1, 2, 3), (0, 1, 2), (4, 5, 6))
    assert row_scores(logits, task_row)[0] == pytest.approx(row_scores(logits.double(), task_row)[0], abs=1e-5)


def test_logits_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="one row for each of 1 scored positions but are 2"):
        row_scores(torch.zeros(2, 4), Row((1,), (0,), (0,)))
    with pytest.raises(ValueError, match="should be in 0–3 but got 4"):
        row_scores(torch.zeros(1, 4), Row((1,), (0,), (4,)))
    task = Task("t", "u", "s", (Sample(Row((1, 2), (1,), (0,))),))
    with pytest.raises(ValueError, match=re.escape("[1, 2, d_vocab] but got (1, 1, 4)")):
        evaluate(task, lambda tokens, lengths, ids: torch.zeros(1, 1, 4))
    with pytest.raises(ValueError, match="batch_size should be at least 1 but got 0"):
        evaluate(task, lambda tokens, lengths, ids: torch.zeros(1, 2, 4), batch_size=0)
    with pytest.raises(ValueError, match="should have a wrong row"):
        pair_scores(torch.zeros(1, 4), torch.zeros(1, 4), task.samples[0])


def test_values_that_make_no_sense_are_refused():
    fine = Row((1, 2), (1,), (3,))
    with pytest.raises(ValueError, match="at least one position"):
        Row((1, 2), (), ())
    with pytest.raises(ValueError, match="in 0–1 but got 2"):
        Row((1, 2), (2,), (3,))
    with pytest.raises(ValueError, match="answers should be one for each of 1"):
        Row((1, 2), (1,), (3, 4))
    with pytest.raises(ValueError, match="foils should be one for each of 1"):
        Row((1, 2), (1,), (3,), ())
    with pytest.raises(ValueError, match="got both"):
        Sample(Row((1, 2), (1,), (3,), (4,)), fine)
    with pytest.raises(ValueError, match="but got score"):
        Sample(fine, factors={"score": 1})
    with pytest.raises(ValueError, match="at least one sample"):
        Task("t", "u", "s", ())
    with pytest.raises(ValueError, match="sample 1 has"):
        Task("t", "u", "s", (Sample(fine, factors={"a": 1}), Sample(fine)))


# -- every task -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("maker", MAKERS)
def test_a_model_that_knows_the_answers_is_always_right(maker, make):
    """And one that knows the foils always wrong; the rows arrive padded on the right, with their lengths and samples."""
    task = make(maker)

    def knowing(tokens, lengths, sample_ids, sign=1.0):
        logits = torch.zeros(*tokens.shape, D_VOCAB)
        for i, (length, sample_id) in enumerate(zip(lengths, sample_ids, strict=True)):
            sample = task.samples[sample_id]
            assert not tokens[i, length:].any()
            read = tuple(tokens[i, :length].tolist())
            assert read in [row.tokens for row in sample.rows]
            value = sign if read == sample.right.tokens else -sign
            known = sample.right if read == sample.right.tokens else sample.wrong
            logits[i, list(known.scored), list(known.answers)] = 30.0 * value
        return logits

    table = evaluate(task, knowing, batch_size=4)
    assert table["sample"].tolist() == list(range(len(task.samples)))
    assert table["accuracy"].eq(1).all()
    wrong = evaluate(task, lambda *batch: knowing(*batch, sign=-1.0), batch_size=4)
    assert wrong["accuracy"].eq(0).all()
    assert (table["score"] > wrong["score"]).all()


@pytest.mark.parametrize("maker", MAKERS)
def test_chance_is_what_a_model_scores_for_which_all_tokens_are_alike(maker, make):
    """Its accuracy is that of a guess."""
    task = make(maker)
    flat = evaluate(task, lambda tokens, lengths, ids: torch.zeros(*tokens.shape, D_VOCAB))
    score, accuracy = chance(task, D_VOCAB)
    assert score == pytest.approx(flat["score"].mean(), abs=1e-4)
    pair = task.samples[0].wrong is not None or task.samples[0].right.foils is not None
    assert accuracy == pytest.approx(1 / 2 if pair else 1 / D_VOCAB)


@pytest.mark.parametrize("maker", MAKERS)
def test_scores_depend_neither_on_the_batch_nor_on_pads(maker, make, model):
    """One row at a time is never padded."""
    task = make(maker)
    together = evaluate(task, lambda tokens, lengths, ids: model(tokens), batch_size=5)
    alone = evaluate(task, lambda tokens, lengths, ids: model(tokens), batch_size=1)
    pd.testing.assert_frame_equal(together, alone, rtol=0, atol=1e-5)

    def double(tokens, lengths, ids):
        wider = torch.nn.functional.pad(tokens, (0, 3), value=7)
        return model(wider)[:, :-3]

    pd.testing.assert_frame_equal(evaluate(task, double), alone, rtol=0, atol=1e-5)


@torch.no_grad()
def test_scores_are_those_of_the_models_own_loss(make, model):
    task = make("next_token")
    table = evaluate(task, lambda tokens, lengths, ids: model(tokens))
    for sample, score in zip(task.samples, table["score"], strict=True):
        assert score == pytest.approx(-float(model(torch.tensor([sample.right.tokens]), return_type="loss")), abs=1e-5)


@pytest.mark.parametrize("maker", MAKERS[:-1])
def test_the_seed_decides(maker, make):
    assert make(maker, seed=3) == make(maker, seed=3)
    assert make(maker, seed=3).samples != make(maker, seed=4).samples
    torch.manual_seed(5)
    assert make(maker, seed=3) == make(maker, seed=3)


@pytest.mark.parametrize("maker", MAKERS)
def test_no_row_is_longer_than_the_context(maker, make):
    assert max(len(row.tokens) for sample in make(maker, samples=40).samples for row in sample.rows) <= N_CTX


@pytest.mark.parametrize("maker", MAKERS[:-1])
def test_no_samples_are_refused(maker, make):
    with pytest.raises(ValueError, match="samples should be at least 1 but got 0"):
        make(maker, samples=0)


# -- next token, induction, retrieval ---------------------------------------------------------------------------------


def test_windows_are_one_a_document_while_documents_suffice():
    documents = [[10 * i + j for j in range(9)] for i in range(6)] + [[1]]
    task = next_token(documents, 4, 6, seed=0)
    assert task.unit == "document"
    assert task.note == "1 documents of fewer than two tokens left out"
    assert sorted(s.factors["document"] for s in task.samples) == list(range(6))
    for sample in task.samples:
        document = documents[sample.factors["document"]]
        start = document.index(sample.right.tokens[0])
        assert list(sample.right.tokens) == document[start : start + 4]
        assert sample.right.scored == (0, 1, 2)
        assert list(sample.right.answers) == document[start + 1 : start + 4]


def test_windows_of_too_few_documents_do_not_overlap_and_say_so():
    documents = [list(range(10)), list(range(100, 120)), list(range(200, 203))]
    task = next_token(documents, 4, 9, seed=1)
    assert task.unit == "window of a document (not independent within one)"
    tokens = [t for s in task.samples for t in s.right.tokens]
    assert len(tokens) == len(set(tokens))
    # 10 tokens give 4 + 4 + 2, 20 give five fours, 3 give one.
    assert Counter(s.factors["document"] for s in task.samples) == {0: 3, 1: 5, 2: 1}
    assert [s.factors["document"] for s in task.samples[:3]] != [1, 1, 1]  # documents take turns
    assert len({s.factors["document"] for s in task.samples[:3]}) == 3
    assert next_token(documents, 4, 50, seed=1).note == "9 samples of 50 wanted: there are no more"


def test_what_holds_no_window_is_refused():
    with pytest.raises(ValueError, match="two tokens at least but none of 2 has"):
        next_token([[1], []], 8, 2, seed=0)
    with pytest.raises(ValueError, match="n_ctx should be at least 2 but got 1"):
        next_token([[1, 2]], 1, 2, seed=0)


def test_the_second_copy_is_scored_but_for_its_first_token(row):
    task = induction(row, N_CTX, 5, seed=0, block=10)
    assert task.note == ""
    for sample in task.samples:
        tokens = sample.right.tokens
        assert len(tokens) == 20
        assert tokens[:10] == tokens[10:]
        assert [tokens[p + 1] for p in sample.right.scored] == list(sample.right.answers) == list(tokens[11:])
    short = induction(row, 15, 5, seed=0)
    assert {len(s.right.tokens) for s in short.samples} == {14}
    assert short.note == "blocks of 7 tokens: two of 64 do not fit n_ctx 15"
    for bad, match in (({"n_ctx": 3}, "n_ctx"), ({"block": 1}, "block"), ({"row": row[:0]}, "tokens in the row")):
        with pytest.raises(ValueError, match=match):
            induction(**{"row": row, "n_ctx": 16, "samples": 1, "seed": 0, **bad})


def test_a_key_is_asked_for_at_its_distance(row):
    task = retrieval(row, 128, 60, seed=0)
    assert task.note == ""
    combinations = Counter((s.factors["distance"], s.factors["distractors"]) for s in task.samples)
    assert combinations == {(d, n): 10 for d in (8, 32, 96) for n in (1, 4)}
    places = set()
    for sample in task.samples:
        tokens, others = sample.right.tokens, sample.factors["distractors"]
        asked = tokens.index(tokens[-1])  # the key's only other occurrence
        assert tokens.count(tokens[-1]) == 2
        assert asked % 2 == 0
        assert asked <= 2 * others
        assert tokens[asked + 1] == sample.right.answers[0]
        assert len(tokens) - 1 - (asked + 2) == sample.factors["distance"]
        pairs = tokens[: 2 * (others + 1)]
        assert len(set(pairs)) == len(pairs)
        assert not set(pairs) & set(tokens[len(pairs) : -1])  # the filler tells nothing
        assert sample.right.foils[0] in set(pairs[1::2]) - set(sample.right.answers)
        assert sample.right.scored == (len(tokens) - 1,)
        places.add((others, asked // 2))
    assert places == {(n, place) for n in (1, 4) for place in range(n + 1)}


def test_combinations_that_do_not_fit_are_named(row):
    task = retrieval(row, 64, 10, seed=0, distances=(6, 96, 32))
    assert {(s.factors["distance"], s.factors["distractors"]) for s in task.samples} == {(6, 1), (32, 1), (32, 4)}
    assert task.note == (
        "distance 6 with 4 distractors left out: its pairs alone can take 8 tokens; "
        "distance 96 with 1 distractors left out: it needs 101 tokens and n_ctx is 64; "
        "distance 96 with 4 distractors left out: it needs 107 tokens and n_ctx is 64"
    )
    assert retrieval(row, 128, 2, seed=0).note == "2 samples cover 2 of 6 combinations"
    few = torch.tensor([1, 2, 3, 4, 5] * 9)
    assert "the row has 5" in retrieval(few, 128, 6, seed=0).note
    with pytest.raises(ValueError, match="no distance fits.*n_ctx is 10"):
        retrieval(row, 10, 6, seed=0)
    with pytest.raises(ValueError, match="no distance fits.*the row has 0"):
        retrieval(row[:0], 128, 6, seed=0)
    with pytest.raises(ValueError, match="distractors should be at least 1 but got 0"):
        retrieval(row, 128, 6, seed=0, distractors=(0,))
    with pytest.raises(ValueError, match="number of distances should be at least 1 but got 0"):
        retrieval(row, 128, 6, seed=0, distances=())


def test_keys_and_values_are_frequent_tokens():
    row = torch.cat([torch.arange(1000), torch.arange(300).repeat(3), torch.arange(256).repeat(2)])
    for sample in retrieval(row, 128, 30, seed=0).samples:
        assert max(sample.right.tokens[: 2 * (sample.factors["distractors"] + 1)]) < 256


# -- source -----------------------------------------------------------------------------------------------------------


def parses(source: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ast.parse(source)
        except SyntaxError:
            return False
    return True


def placed(sample: Sample, tokenizer, documents: list[str]) -> tuple[str, int]:
    """Return a sample's document and the character its answer starts at; the row is what stands before."""
    text = documents[sample.factors["document"]]
    ids = tokenizer.encode(text)
    place = sample.factors["place"]
    row = sample.right
    assert row.scored == (len(row.tokens) - 1,)
    assert list(row.tokens) == ids[max(0, place - N_CTX) : place]
    assert row.answers == (ids[place],)
    before = tokenizer.decode(ids[:place])
    assert text.startswith(before)
    return text, len(before)


def test_a_closing_bracket_is_the_one_python_wants(make, tokenizer, documents):
    """The parser takes the document as it is and refuses it with any other closing bracket in that place."""
    task = make("brackets", samples=24)
    for sample in task.samples:
        text, place = placed(sample, tokenizer, documents)
        right, foil = text[place], tokenizer.decode(sample.right.foils)
        assert right == sample.factors["bracket"] == tokenizer.decode(sample.right.answers)
        assert {right, foil} < set(BRACKETS)
        assert right != foil
        assert parses(text)
        assert not any(parses(text[:place] + b + text[place + 1 :]) for b in BRACKETS if b != right)
        # The opening one is in the window, where `distance` says.
        window, distance = sample.right.tokens, sample.factors["distance"]
        assert 1 <= distance <= len(window)
        assert BRACKETS[right] in tokenizer.decode(window[-distance])


def test_kinds_of_bracket_take_turns(tokenizer):
    text = "f( x )\n" * 40 + "g[ x ]\n" * 2 + "{ x }\n"
    kinds = [s.factors["bracket"] for s in brackets(tokenizer, [text], N_CTX, 7, seed=0).samples]
    assert set(kinds[:3]) == set(BRACKETS)
    assert set(kinds[3:5]) == {")", "]"}
    assert kinds[5:] == [")", ")"]
    first = {brackets(tokenizer, [text], N_CTX, 1, seed).samples[0].factors["bracket"] for seed in range(12)}
    assert first == set(BRACKETS)


def test_places_are_one_a_document_while_documents_suffice(make, documents):
    for maker in ("brackets", "indentation"):
        few, many = make(maker, samples=12), make(maker, samples=200)
        assert few.unit == "document"
        assert len({s.factors["document"] for s in few.samples}) == 12
        assert many.unit == "place of a document (not independent within one)"
        assert len({(s.factors["document"], s.factors["place"]) for s in many.samples}) == 200
        assert f"of {len(documents)} documents read" in few.note


def test_brackets_in_strings_and_comments_close_nothing():
    source = "a = f('([', \"}\")  # )]\nb = {1: [2]}\n"
    assert {source[c]: source[o] for c, o in closing_brackets(source).items()} == {")": "(", "}": "{", "]": "["}
    assert closing_brackets("é = '☃☃'\n(\n1)") == {12: 9}
    for bad in ("(]", ")", "(", "'''", "if x:\n    a\n  b\n", "a ? b"):
        with pytest.raises(ValueError, match=r"token|closes nothing"):
            closing_brackets(bad)


def test_brackets_opened_outside_the_window_and_broken_documents_are_left_out(tokenizer):
    long = "f(" + "a, " * 100 + "g [ 1 ] )"
    task = brackets(tokenizer, ["no ( python ]", long], N_CTX, 2, seed=0)
    assert [s.factors["bracket"] for s in task.samples] == ["]"]
    assert "1 documents that do not tokenize as Python left out" in task.note
    assert "1 samples of 2 wanted: there are no more" in task.note
    with pytest.raises(ValueError, match=r"brackets: no place in 1 documents \(1 documents that do not tokenize"):
        brackets(tokenizer, ["( ]"], N_CTX, 2, seed=0)
    source = ["x = f( 1 )"]
    distance = brackets(tokenizer, source, N_CTX, 1, seed=0).samples[0].factors["distance"]
    just = brackets(tokenizer, source, distance, 1, seed=0).samples[0].right
    assert "(" in tokenizer.decode(just.tokens[0])  # the opening one is the window's first token
    with pytest.raises(ValueError, match="brackets: no place in 1 documents .*opened before the window"):
        brackets(tokenizer, source, distance - 1, 2, seed=0)
    with pytest.raises(ValueError, match="n_ctx should be at least 1 but got 0"):
        brackets(tokenizer, ["f( 1 )"], 0, 2, seed=0)


def test_an_indentation_is_the_one_in_the_text(make, tokenizer, documents):
    """The column is counted in the raw text; the foil is what the tokenizer writes for that line moved by four."""
    columns = Counter()
    for sample in make("indentation", samples=60).samples:
        text, place = placed(sample, tokenizer, documents)
        newlines, spaces = re.match(r"(\n+)( +)(?=\S)", text[place:]).groups()
        column = sample.factors["column"]
        assert column == len(spaces)
        answer, foil = tokenizer.decode(sample.right.answers), tokenizer.decode(sample.right.foils)
        assert answer == newlines + spaces[:-1]  # the last space is the word's
        assert foil in (answer + " " * 4, answer[:-4])
        moved = newlines + " " * (len(foil) - len(newlines) + 1)
        rest = text[place + len(newlines + spaces) :][:20]
        assert tokenizer.encode(moved + rest)[0] == sample.right.foils[0]
        assert foil.strip("\n")  # never column 0
        columns[column] += 1
    assert {4, 8, 12} <= set(columns)


def test_indentations_that_cannot_be_contrasted_are_left_out(tokenizer):
    deep = "x\n" + " " * 200 + "y\n"
    with pytest.raises(ValueError, match="indentation: no place in 2 documents .*1 indentations in several tokens"):
        indentation(tokenizer, [deep, "no line is indented"], N_CTX, 2, seed=0)
    bytes_only = train_tokenizer(["ab"], 257)
    with pytest.raises(ValueError, match=r"no place in 1 documents \(none comes near\)"):
        indentation(bytes_only, ["def f():\n    pass\n"], N_CTX, 2, seed=0)


def test_a_tokenizer_that_lacks_what_is_needed_is_refused(documents):
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel({")": 0, "x": 1, "[UNK]": 2}, unk_token="[UNK]"))
    with pytest.raises(ValueError, match=re.escape("lacks ] }")):
        brackets(PreTrainedTokenizerFast(tokenizer_object=inner), documents, N_CTX, 1, seed=0)
    for maker in (brackets, indentation):
        with pytest.raises(ValueError, match="fast Hugging Face tokenizer but is str"):
            maker("tokenizer", documents, N_CTX, 1, seed=0)


def test_a_tokenizers_beginning_of_sequence_stands_in_front(documents, tokenizer, lines):
    other = train_tokenizer(documents, D_VOCAB)
    other.bos_token = other.eos_token
    other.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{other.bos_token} $A {other.eos_token}", special_tokens=[(other.bos_token, 0)]
    )
    few = documents[:4]
    for maker in (brackets, indentation):
        plain, led = maker(tokenizer, few, 31, 20, seed=0), maker(other, few, 32, 20, seed=0)
        assert [(0, *s.right.tokens) for s in plain.samples] == [s.right.tokens for s in led.samples]
    for sample, with_bos in zip(from_jsonl(lines, tokenizer).samples, from_jsonl(lines, other).samples, strict=True):
        assert (0, *sample.right.tokens) == with_bos.right.tokens
        assert sample.right.answers == with_bos.right.answers


# -- a task of one's own ----------------------------------------------------------------------------------------------


def test_lines_become_samples(lines, tokenizer):
    task = from_jsonl(lines, tokenizer)
    assert (task.name, task.unit) == ("mine", "line of mine.jsonl")
    assert [s.factors["line"] for s in task.samples] == [1, 3, 4]
    entries = [json.loads(line) for line in lines.read_text().splitlines() if line]
    for sample, entry in zip(task.samples, entries, strict=True):
        for row, name in zip(sample.rows, ("answer", "foil"), strict=False):
            assert tokenizer.decode([*row.tokens, row.answers[-1]]) == entry["prompt"] + entry[name]
            assert tokenizer.decode(row.answers) == entry[name]
            assert row.scored == tuple(range(len(row.tokens) - len(row.answers), len(row.tokens)))
    assert [len(s.rows) for s in task.samples] == [2, 2, 1]
    assert tokenizer.decode(task.samples[2].right.foils) == "]"


def test_an_answer_alone_is_averaged_over_its_tokens(tmp_path, tokenizer, model):
    path = write(tmp_path / "a.jsonl", {"prompt": "def f(", "answer": "self, quite_a_name, 表"})
    task = from_jsonl(path, tokenizer)
    score = evaluate(task, lambda tokens, lengths, ids: model(tokens))["score"][0]
    joint = tokenizer.encode("def f(self, quite_a_name, 表")
    known = len(tokenizer.encode("def f("))
    with torch.no_grad():
        logp = model(torch.tensor([joint])).double().log_softmax(-1)[0]
    expected = [float(logp[i - 1, joint[i]]) for i in range(known, len(joint))]
    assert score == pytest.approx(sum(expected) / len(expected), abs=1e-5)
    assert "mean" in task.score


def test_an_answer_that_merges_with_the_prompt_is_scored_from_there(tmp_path, tokenizer):
    """The prompt ends inside a token of the joint text; the foil, which does not merge, starts at the same place."""
    assert len(tokenizer.encode(" return")) == 1
    path = write(tmp_path / "a.jsonl", {"prompt": "x\n    ret", "answer": "urn", "foil": "+ 1"})
    task = from_jsonl(path, tokenizer)
    sample = task.samples[0]
    assert tokenizer.decode(sample.right.answers) == " return"
    assert tokenizer.decode(sample.wrong.answers) == " ret+ 1"
    first = sample.right.scored[0]
    assert sample.wrong.scored[0] == first
    assert sample.wrong.tokens[: first + 1] == sample.right.tokens[: first + 1]
    assert "in 1 lines" in task.note
    with pytest.raises(HeadscopeError, match="line 1: nothing stands before the answer"):
        from_jsonl(write(tmp_path / "b.jsonl", {"prompt": " ret", "answer": "urn"}), tokenizer)


GOOD = json.dumps({"prompt": "a", "answer": " b"})


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("{'prompt'", "should be JSON but is not: .* at column 2"),
        ('["prompt"]', "should be a JSON object but is list"),
        ('{"prompt": "a"}', "field 'answer' is missing"),
        ('{"answer": "a"}', "field 'prompt' is missing"),
        ('{"prompt": "", "answer": "b"}', "field 'prompt' should be a string that is not empty but got ''"),
        ('{"prompt": "a", "answer": 3}', "field 'answer' should be a string that is not empty but got 3"),
        ('{"prompt": "a", "answer": "b", "foil": null}', "field 'foil' should be a string .* but got None"),
        ('{"prompt": "a", "answer": "b", "folio": "c"}', "should be prompt, answer and foil but got 'folio'"),
        ('{"prompt": "a", "answer": "b", "foil": "b"}', "should differ but both are 'b'"),
        ('{"prompt": "a", "answer": "b", "foil": "c"}', "either every line has a foil or none has"),
        (r'{"prompt": "a", "answer": "\ud800"}', "half of a surrogate pair"),
    ],
)
def test_a_malformed_line_is_named_by_its_number(line, match, tmp_path, tokenizer):
    """Blank lines count, and a line separator inside a string does not."""
    separated = json.dumps({"prompt": "a\u2028b", "answer": " b"}, ensure_ascii=False)
    path = write(tmp_path / "mine.jsonl", "", GOOD, "  ", separated, line, GOOD)
    with pytest.raises(HeadscopeError, match=f"mine.jsonl, line 5: .*{match}"):
        from_jsonl(path, tokenizer)


def test_files_that_hold_nothing_are_refused(tmp_path, tokenizer):
    with pytest.raises(HeadscopeError, match="none.jsonl cannot be read: No such file"):
        from_jsonl(tmp_path / "none.jsonl", tokenizer)
    with pytest.raises(HeadscopeError, match="empty.jsonl is empty"):
        from_jsonl(write(tmp_path / "empty.jsonl", "", " "), tokenizer)
    (tmp_path / "latin.jsonl").write_bytes(GOOD.encode() + b'\r\n{"prompt": "\xe9"}\n')
    with pytest.raises(HeadscopeError, match="latin.jsonl, line 2: .*UTF-8"):
        from_jsonl(tmp_path / "latin.jsonl", tokenizer)
    with pytest.raises(ValueError, match="fast Hugging Face tokenizer but is str"):
        from_jsonl(write(tmp_path / "good.jsonl", GOOD), "tokenizer")


def test_tasks_have_names(tokenizer, documents, tmp_path):
    for name in ("induction", "retrieval", "next-token", "brackets", "indentation"):
        task = named(name, tokenizer, documents, 64, 4, 0)
        assert len(task.samples) == 4, name
        assert max(len(row.tokens) for sample in task.samples for row in sample.rows) <= 64
    lines = tmp_path / "mine.jsonl"
    lines.write_text('{"prompt": "import", "answer": " os"}\n' * 3)
    assert len(named(str(lines), tokenizer, [], 64, 2, 0).samples) == 2
    with pytest.raises(ValueError, match="task should be one of induction, .* or a .jsonl file but got 'inductoin'"):
        named("inductoin", tokenizer, documents, 64, 4, 0)
