"""The models that ship do what their records say: measured again, on a sample of the text they were scored on.

A record's loss is the mean over the test split, every token scored with half a context or more before it. `WINDOWS` of
its 876 pieces of 128 tokens, evenly spaced, say the same but for the spread between pieces, and the bound is four
standard errors of their mean. (A text whose pieces were drawn at random would break it once in 16,000 times.) Between
two models on the same pieces that bound is five times narrower, and tells any two of the five apart.

Other versions of Python have another library. There the bounds hold as they are, and for induction, whose blocks are drawn
from other tokens, `OTHER_TEXT` (tried with the libraries of 3.12.1 and 3.13.0).
"""

from __future__ import annotations

import gzip
import json
import lzma
import math
from functools import cache
from itertools import combinations
from typing import Any

import headscope as hs
import numpy as np
import pytest
import torch
from headscope.checkpoints import reference
from headscope.cli import app
from headscope.training.corpus import Corpus, standard_library
from headscope.training.evaluation import induction
from headscope.training.tokens import encode
from torch import Tensor
from typer.testing import CliRunner

NAMES = ["gqa", "lrkv", "mha", "mla", "mqa"]
WINDOWS = 96
ERRORS = 4
OTHER_TEXT = {"best": 0.08, "first_loss": 0.6, "second_loss": 0.6}
"""Five times the spread (0.015, 0.08 and 0.11) that eight draws of the blocks from one text have."""


def record_of(name: str) -> dict[str, Any]:
    return json.loads((reference.ROOT / name / "config.json").read_text())["record"]


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return standard_library()


def is_own(corpus: Corpus, name: str) -> bool:
    return corpus.sha256 == record_of(name)["corpus"]["sha256"]


@pytest.fixture(scope="module")
def row(corpus) -> Tensor:
    """The test split in tokens, which are the same for all five."""
    return encode(hs.load("mha").tokenizer, corpus.texts("test"))


def pieces(row: Tensor) -> Tensor:
    """The sampled windows: 128 tokens to read, then 128 to be scored."""
    starts = np.linspace(0, len(row) // 128 - 2, WINDOWS).astype(int) * 128
    return torch.stack([row[start : start + 256] for start in starts.tolist()])


@pytest.fixture(scope="module")
def nats(row):
    """Name -> nats of each sampled piece."""

    @cache
    @torch.no_grad()
    def measured(name: str) -> np.ndarray:
        losses = hs.load(name)(pieces(row), return_type="loss", loss_per_token=True)
        return losses[:, 127:].double().sum(1).numpy()

    return measured


@pytest.fixture(scope="module")
def n_bytes(row) -> np.ndarray:
    """Bytes of each sampled piece: of a byte-level token as many as it has characters, of the end of a text none."""
    names = hs.load("mha").tokenizer.convert_ids_to_tokens(range(1024))
    sizes = np.array([0, *map(len, names[1:])])
    return sizes[pieces(row)[:, 128:].numpy()].sum(1)


def close(nats: np.ndarray, sizes: np.ndarray, recorded: float) -> None:
    """Check a ratio of sums over pieces against that of the whole text, within what the pieces' spread allows."""
    ratio = nats.sum() / sizes.sum()
    error = (nats - ratio * sizes).std(ddof=1) / sizes.mean() / math.sqrt(len(nats))
    assert abs(ratio - recorded) < ERRORS * error
    assert error < 0.06  # else the bound would say nothing


def test_one_model_a_variant_ships():
    assert list(reference.reference_models()) == NAMES
    assert [hs.open_checkpoint(name).config.attention.variant for name in NAMES] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_model_does_what_its_record_says(name, corpus, row, nats, n_bytes):
    """Its size, its loss, its bits a byte and its induction, measured again."""
    model, record = hs.load(name), record_of(name)
    result = record["result"]
    assert record["parameters"] == sum(p.numel() for p in model.parameters())
    assert torch.equal(encode(model.tokenizer, corpus.texts("test")), row)
    close(nats(name), np.full(WINDOWS, 128), result["test"]["loss"])
    close(nats(name), n_bytes * math.log(2), result["test"]["bits_per_byte"])
    found = induction(model, row, seed=record["recipe"]["seed"])
    for what, other in OTHER_TEXT.items():
        bound = {"rel": 1e-3} if is_own(corpus, name) else {"abs": other}
        assert found[what] == pytest.approx(result["induction"][what], **bound)


@pytest.mark.parametrize(("name", "other"), list(combinations(NAMES, 2)))
def test_shipped_models_differ_by_what_their_records_say(name, other, nats):
    recorded = [record_of(one)["result"]["test"]["loss"] for one in (name, other)]
    difference = (nats(name) - nats(other)) / 128
    bound = ERRORS * difference.std(ddof=1) / math.sqrt(WINDOWS)
    assert abs(difference.mean() - (recorded[0] - recorded[1])) < bound
    assert bound < 2 * abs(recorded[0] - recorded[1])  # with their records swapped they would fail


@pytest.mark.parametrize("name", NAMES)
def test_what_a_record_says_of_its_text_is_so(name, corpus, row):
    record = record_of(name)
    if not is_own(corpus, name):
        pytest.skip(f"trained on {record['corpus']['source']}; this library's text has another hash")
    described = corpus.describe()
    assert {name: described[name] for name in record["corpus"]} == record["corpus"]
    text = "".join(corpus.texts("test")).encode()
    test, known = record["result"]["test"], record["result"]["baselines"]
    assert (test["tokens"], test["bytes"]) == (len(row) - 1, len(text))
    assert test["bits_per_byte"] == pytest.approx(test["tokens"] * test["loss"] / (len(text) * math.log(2)))
    assert known["gzip"] == pytest.approx(8 * len(gzip.compress(text)) / len(text), rel=0.01)
    assert known["xz"] == pytest.approx(8 * len(lzma.compress(text)) / len(text), rel=0.01)


def test_a_path_comes_before_a_name(tmp_path, monkeypatch):
    torch.manual_seed(0)
    config = hs.ModelConfig(d_model=8, n_layers=1, d_vocab=9, n_ctx=4, attention=hs.GroupedConfig(n_heads=2, d_head=4))
    hs.save(hs.HookedModel(config), tmp_path / "lrkv")
    assert hs.open_checkpoint("lrkv").config.n_layers == 4
    monkeypatch.chdir(tmp_path)
    assert hs.open_checkpoint("lrkv").config.n_layers == 1
    with pytest.raises(hs.CheckpointError, match="nor does a model of that name ship .gqa, lrkv, mha, mla, mqa."):
        hs.open_checkpoint("lrkw")


def test_the_table_is_what_the_models_and_their_records_say():
    table = reference.reference_table().set_index("model")
    assert list(table.index) == NAMES
    # Elements a token: 8 heads of 16, keys and values; 2 groups; one; a latent of 56 and 8 positions; 16 + 8 * 6 twice.
    elements = {"mha": 2 * 8 * 16, "gqa": 2 * 2 * 16, "mqa": 2 * 16, "mla": 56 + 8, "lrkv": 2 * (16 + 8 * 6)}
    assert table["cache_bytes"].to_dict() == {name: 4 * 2 * width for name, width in elements.items()}
    padded = elements | {"lrkv": 2 * (16 + 8 * 8)}
    assert table["cache_bytes_physical"].to_dict() == {name: 4 * 2 * width for name, width in padded.items()}
    for name in NAMES:
        result = record_of(name)["result"]
        copies = table.loc[name, ["repeated_first_loss", "repeated_loss"]].tolist()
        assert copies == [result["induction"]["first_loss"], result["induction"]["second_loss"]]
        assert table.loc[name, "xz_bits_per_byte"] == result["baselines"]["xz"]


def test_the_command_lists_what_ships():
    listed = CliRunner().invoke(app, ["models"])
    assert listed.exit_code == 0, listed.output
    assert all(f" {name} " in listed.output for name in NAMES)
    assert max(map(len, listed.output.splitlines())) <= 100
    words = " ".join(listed.output.split())
    assert "Each: 4 layers of 8 heads, seed 0, 8,192,000 tokens" in words
    assert " 1,024 (1,280) " in words
    assert "9.53 → 6.39" in words
    assert "bits/byte: bigram 2.015, gzip 2.070, xz 1.837" in words
    assert "gzip and xz know the test text (0.3 MB) alone" in words
    data = json.loads(CliRunner().invoke(app, ["models", "--json"]).stdout)
    assert [row["model"] for row in data] == NAMES
    assert all(row["command"].startswith(f"headscope train {row['model']}") for row in data)
    assert {row["gzip_bits_per_byte"] for row in data} == {record_of("mha")["result"]["baselines"]["gzip"]}


def test_the_command_reports_without_a_name():
    shown = CliRunner().invoke(app, ["report", "--null", "2"])
    assert shown.exit_code == 0, shown.output
    assert "lrkv: LRKV, positions rotary" in shown.output
