"""Budgets of presets, configurations and checkpoints, in Python and on the command line."""

from __future__ import annotations

import doctest
import importlib
import json
import math

import headscope as hs
import pandas as pd
import pytest
from headscope.budgets import presets
from headscope.budgets.paper import SIZES, model
from headscope.cli import app
from headscope.models.per_layer import LayerChanges
from headscope.training.evaluation import bits_per_byte
from typer.testing import CliRunner

MIB = 2**20


@pytest.fixture(scope="module")
def preset() -> hs.Budget:
    return hs.budget("2.5B", lengths="2048,8192,64x8192", devices=3)


def one(table: pd.DataFrame, **where: object) -> pd.Series:
    for name, value in where.items():
        table = table[table[name] == value]
    assert len(table) == 1
    return table.iloc[0]


def run(*arguments: str):
    return CliRunner().invoke(app, ["budget", *arguments])


def test_the_papers_2_5b_models(preset):
    """18 layers of 18 heads of 128, width 2304; groups 6, latent 384, rank 55 (stored as 56)."""
    held = {
        row["model"]: row["payload_bytes"] / MIB for row in preset.batches.to_dict("records") if row["batch"] == "8192"
    }
    assert held == {"mha": 1296, "gqa": 432, "mqa": 72, "mla": 108, "mla+rope": 126, "lrkv": 628.875}
    lrkv = one(preset.table, model="lrkv")
    assert (lrkv["cache_elements"], lrkv["cache_elements_physical"]) == (2236, 2 * (128 + 18 * 56))
    assert round(lrkv["cache_pct_mha"], 3) == 48.524
    assert round(lrkv["kv_parameters_pct_mha"], 3) == 50.911
    assert lrkv["bytes_per_token"] == 2 * 18 * 2236
    assert one(preset.table, model="mla+rope")["rotary_key_elements"] == 64


def test_arithmetic_and_floors_of_a_batch(preset):
    short, long = (one(preset.batches, model="lrkv", batch=batch) for batch in ("2048", "64x8192"))
    assert round(short["arithmetic_ratio"], 4) == 1.4565
    assert (long["requests"], long["tokens"]) == (64, 64 * 8192)
    assert round(1e3 * long["floor_seconds"], 1) == 10.0
    assert long["operations"] == 64 * 2 * 18 * 2 * 18 * (8192 * (128 + 55) + 55 * 128)
    dense = one(preset.batches, model="mha", batch="64x8192")
    assert long["mha_over_floor"] == dense["floor_seconds"] / long["floor_seconds"]


def test_rotary_positions_with_any_b_multiply_lrkvs_arithmetic(preset):
    """``(r d_head + 2 d_head + r) / (2 d_head)`` for a long history, of rank 55 and heads of 128: 28.7 times MHA's."""
    found = one(preset.batches, model="lrkv", batch="8192")["rotary_arithmetic_ratio"]
    assert found == pytest.approx((55 * 128 + 2 * 128 + 55 + 55 * 128 / 8192) / 256, rel=1e-15)
    assert preset.batches.loc[preset.batches["model"] != "lrkv", "rotary_arithmetic_ratio"].isna().all()
    assert "28.7 × MHA's arithmetic, and the gain ends at 6." in preset.reading()


def test_devices_are_dealt_the_heads(preset):
    found = one(preset.parallel, model="lrkv", batch="2048", layout="replicated")
    assert found["total_pct_mha"] == pytest.approx(100 * (3 / 18 + 55 / 128), rel=1e-15)
    once = one(preset.parallel, model="lrkv", batch="2048", layout="held once")
    assert once["moved_bytes"] == 2 * 2 * 18 * 2048 * 2 * 128


@pytest.mark.parametrize(
    ("size", "shape", "settings"),
    [
        ("128M", (12, 6, 768), (3, 128, 46)),
        ("1.2B", (24, 12, 1536), (4, 256, 51)),
        ("2.5B", (18, 18, 2304), (6, 384, 55)),
        ("6.3B", (32, 32, 4096), (2, 1024, 54)),
    ],
)
def test_presets_are_the_rows_of_table_7(size, shape, settings):
    models = {variant: model(size, variant) for variant in ("mha", "gqa", "mqa", "mla", "lrkv")}
    for name, config in models.items():
        assert (config.n_layers, config.attention.n_heads, config.d_model) == shape
        assert config.attention.variant == name
    found = models["gqa"].attention.n_groups, models["mla"].attention.d_latent, models["lrkv"].attention.rank
    assert found == settings
    assert {size, f"{size}-mla"} <= set(presets())


def test_lrkv_is_below_the_others_in_every_size_of_table_1():
    for row in SIZES.values():
        assert min(row.losses) == row.losses[-1]


@pytest.mark.parametrize(("nats", "bits"), [(2.389, 0.723), (2.376, 0.719)])
def test_table_1_implies_between_4_765_and_4_786_bytes_a_token(nats, bits):
    bytes_a_token = nats / (bits * math.log(2))
    assert 4.765 <= bytes_a_token <= 4.786
    assert bits_per_byte(nats * 10**6, round(bytes_a_token * 10**6)) == pytest.approx(bits, rel=1e-6)


def test_parameters_are_those_of_the_model_that_the_configuration_builds():
    config = hs.ModelConfig(
        d_model=24, n_layers=3, d_vocab=9, n_ctx=8, attention=hs.LRKVConfig(n_heads=4, d_head=6, rank=2)
    )
    table = hs.budget(config, lengths=[3]).table
    assert table["model"].tolist() == ["mha", "model"]
    lrkv = one(table, model="model")
    assert lrkv["parameters"] == sum(p.numel() for p in hs.HookedModel(config).parameters())
    assert lrkv["kv_parameters"] == 3 * 2 * (24 * 6 + 4 * 2 * (24 + 6))
    dense = hs.HookedModel(config.with_(attention=hs.GroupedConfig(n_heads=4, d_head=6)))
    assert one(table, model="mha")["parameters"] == sum(p.numel() for p in dense.parameters())


def test_a_joint_key_norm_is_counted_where_there_is_one():
    attention = hs.LRKVConfig(n_heads=4, d_head=6, rank=2, qk_norm=hs.QKNorm())
    config = hs.ModelConfig(d_model=24, n_layers=3, d_vocab=9, n_ctx=8, attention=attention)
    found = hs.budget({"normed": config}, lengths=[(3, 4)])
    assert one(found.table, model="normed")["key_norm_elements"] == 4
    assert one(found.batches, model="normed")["payload_bytes"] == 2 * 3 * 7 * (2 * (6 + 4 * 2) + 4)
    assert "its joint key norm keeps one scalar a head (8.33 % of MHA's cache)" in found.reading()


LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
}
DEEPSEEK = LLAMA | {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "first_k_dense_replace": 3,
    "quantization_config": {"quant_method": "fp8"},
}


def test_a_hugging_face_configuration_needs_no_weights(tmp_path):
    """Llama-3-8B: 128 KiB a token, 8.03 billion parameters."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    row = one(hs.budget(tmp_path / "config.json").table, model="config")
    assert row["bytes_per_token"] == 128 * 1024
    assert row["parameters"] == 8_030_261_248
    assert row["cache_pct_mha"] == 25


def test_deepseek_v3_is_counted_with_its_experts(tmp_path):
    """576 elements a token and layer; 671 billion parameters (arXiv 2412.19437, without the second token's module)."""
    mixture = {"moe_intermediate_size": 2048, "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1}
    routing = {"n_group": 8, "topk_group": 4, "norm_topk_prob": True, "routed_scaling_factor": 2.5}
    sizes = {"intermediate_size": 18_432, "vocab_size": 129_280, "tie_word_embeddings": False}
    (tmp_path / "config.json").write_text(json.dumps(DEEPSEEK | mixture | routing | sizes))
    row = one(hs.budget(tmp_path / "config.json").table, model="config")
    assert (row["cache_elements"], row["rotary_key_elements"]) == (576, 64)
    assert round(row["cache_pct_mha"], 2) == 1.76
    assert row["parameters"] == pytest.approx(671.0e9, rel=1e-3)


def test_layers_with_windows_of_their_own_have_a_baseline(tmp_path):
    gemma = LLAMA | {"model_type": "gemma2", "sliding_window": 4096, "query_pre_attn_scalar": 128, "head_dim": 128}
    caps = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "hidden_activation": "gelu_pytorch_tanh"}
    (tmp_path / "config.json").write_text(json.dumps(gemma | caps))
    found = hs.budget(tmp_path / "config.json")
    assert one(found.table, model="config")["cache_pct_mha"] == 25
    assert "16 of 32 layers see a window only" in found.reading()


def test_layers_that_share_keys_keep_nothing_but_read(tmp_path):
    """Four layers of two groups of 64, a bfloat16 key and value each: the upper two keep none."""
    sizes = {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 99}
    kinds = ["sliding_attention", "full_attention"] * 2
    layers = {"num_hidden_layers": 4, "layer_types": kinds, "intermediate_size": 300, "max_position_embeddings": 99}
    config = {"model_type": "gemma3n_text", "num_kv_shared_layers": 2, **sizes, **layers}
    (tmp_path / "shares.json").write_text(json.dumps(config))
    (tmp_path / "own.json").write_text(json.dumps(config | {"num_kv_shared_layers": 0}))
    shares, own = (hs.budget(tmp_path / f"{name}.json", lengths="100", devices=4) for name in ("shares", "own"))
    row, usual = one(shares.table, model="shares"), one(own.table, model="own")
    assert row["bytes_per_token"] == 2 * 2 * (2 * 64 + 2 * 64)
    assert usual["bytes_per_token"] == 2 * row["bytes_per_token"]
    assert (row["cache_pct_mha"], usual["cache_pct_mha"]) == (25, 50)
    assert usual["parameters"] - row["parameters"] == 2 * (2 * 2 * 64 * 256 + 64)
    batch, whole = one(shares.batches, model="shares"), one(own.batches, model="own")
    assert batch["payload_bytes"] == 100 * row["bytes_per_token"]
    assert batch["floor_seconds"] == whole["floor_seconds"]
    assert batch["operations"] == whole["operations"]
    held, moved = (
        one(found.parallel, model=name, layout="held once") for found, name in ((shares, "shares"), (own, "own"))
    )
    assert 2 * held["total_bytes"] == moved["total_bytes"]
    assert held["moved_bytes"] == moved["moved_bytes"] > 0
    assert "2 of 4 layers keep nothing and read another layer's keys and values" in shares.reading()


def test_layers_that_keep_unlike_amounts_are_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma4_text"}))
    with pytest.raises(ValueError, match="config: its layers differ .*they leave 2048, 4096 elements a token"):
        hs.budget(tmp_path / "config.json")


def test_windows_are_said(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"model_type": "mistral", "sliding_window": 4096}))
    assert "32 of 32 layers see a window only" in hs.budget(tmp_path / "config.json").reading()


def test_headscopes_own_configurations_are_read_bare_and_native(tmp_path):
    config = model("128M", "lrkv")
    for name, content in (
        ("bare.json", config.to_dict()),
        ("native.json", {"format": "headscope", "version": 1, "model": config.to_dict()}),
    ):
        (tmp_path / name).write_text(json.dumps(content))
        found = hs.budget(tmp_path / name).table
        assert one(found, variant="lrkv")["cache_elements"] == 2 * (128 + 6 * 46)


def test_a_model_that_ships_by_name():
    row = one(hs.budget("lrkv").table, model="lrkv")
    assert (row["bytes_per_token"], row["bytes_per_token_physical"], row["parameters"]) == (1024, 1280, 875_648)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"model": "3B"}, "3B does not exist"),
        ({"model": {}}, "no model to budget"),
        ({"lengths": []}, "one or more batches"),
        ({"lengths": [0]}, "above zero"),
        ({"devices": 4}, "devices should divide the 18 heads"),
        ({"device": "tpu"}, "device should be one of h200"),
    ],
)
def test_what_cannot_be_is_refused(arguments, words):
    with pytest.raises((ValueError, hs.CheckpointError), match=words):
        hs.budget(**arguments)


def test_the_command_without_arguments_says_what_it_shows_and_fits_100_columns():
    result = run()
    assert result.exit_code == 0, result.output
    prose = " ".join(result.output.split())
    assert "No model was named: these are the LRKV paper's 2.5B models (--preset 2.5B)." in prose
    assert "Largest LRKV rank of these heads: 56 within 50.0 %, 35 within 33.3 %, 24 within 25.0 % of MHA's" in prose
    assert "157.21875" in prose
    assert "628.875" in prose
    assert "from 128 query tokens a reading" in prose
    assert max(map(len, result.output.splitlines())) <= 100


def test_devices_and_batches_fit_100_columns():
    result = run("--preset", "6.3B", "--devices", "4", "--lengths", "2048,64x8192")
    assert "54.6875" in result.output
    assert "524,288 tokens" in result.output
    assert max(map(len, result.output.splitlines())) <= 100


def test_json_is_what_the_verb_returns(tmp_path):
    (tmp_path / "c.json").write_text(json.dumps(model("128M", "gqa").to_dict()))
    result = run("--config", str(tmp_path / "c.json"), "--lengths", "100", "--json")
    assert json.loads(result.stdout) == json.loads(hs.budget(tmp_path / "c.json", lengths="100").to_json())


@pytest.mark.parametrize(
    ("plot", "pictures"), [([], set()), (["--plot"], {"cache-against-rank.png", "paper-loss.png"})]
)
def test_out_saves_tables_and_plot_draws_pictures(tmp_path, plot, pictures):
    result = run("--checkpoint", "mla", "--out", str(tmp_path), *plot)
    assert result.exit_code == 0, result.output
    written = {path.name for path in tmp_path.iterdir()}
    tables = {f"budget{part}.{kind}" for part in ("", "-batches", "-equal", "-parallel") for kind in ("csv", "parquet")}
    assert written == {"budget.json"} | tables | pictures


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--preset", "lrkv"], "preset should be a size (128M, 1.2B, 2.5B, 6.3B)"),
        (["--preset", "2.5B", "--checkpoint", "lrkv"], "give one of --config, --checkpoint and --preset"),
        (["--config", "models"], "--config should be a .json file"),
        (["--plot"], "give one with --out"),
        (["--lengths", "long"], "lengths should be like"),
        (["audit", "nowhere.csv"], "nowhere.csv"),
    ],
)
def test_mistakes_are_one_line_and_exit_status_2(arguments, words):
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_the_audit_is_a_command_below_it():
    result = run("audit")
    assert result.exit_code == 0, result.output
    assert "36 layers (not 32 of Table 5)" in " ".join(result.output.split())
    assert max(map(len, result.output.splitlines())) <= 100
    assert json.loads(run("audit", "--json").stdout)["summary"] == hs.audit().summary()


@pytest.mark.parametrize("name", ["budget", "cache", "timing", "matching", "explain", "audit"])
def test_the_examples_run(name):
    results = doctest.testmod(importlib.import_module(f"headscope.budgets.{name}"))
    assert results.attempted > 0
    assert results.failed == 0


def test_layers_of_unlike_heads_are_refused_even_where_they_leave_as_much():
    wide = hs.GroupedConfig(n_heads=8, d_head=32, n_kv_heads=2)
    narrow = LayerChanges(attention=hs.GroupedConfig(n_heads=8, d_head=16, n_kv_heads=4))
    config = hs.ModelConfig(
        d_model=64, n_layers=2, d_vocab=50, n_ctx=32, attention=wide, by_layer=(LayerChanges(), narrow)
    )
    assert {config.at(layer).attention.cache_width() for layer in range(2)} == {128}
    with pytest.raises(ValueError, match="model: its layers differ in the width or number of heads"):
        hs.budget(config)
