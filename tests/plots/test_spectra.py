"""Spectra: shares in multiples of an even one, running sums with 90 % marked, as lines for few layers and maps for many."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from headscope import plots

BLOCKS = (("qk", "all"), ("ov", "all"))


def table(layers, heads, blocks=BLOCKS, seed=0):
    rng = np.random.default_rng(seed)
    rows = []
    for circuit, part in blocks:
        null = np.sort(rng.dirichlet(np.full(heads, 50.0)))[::-1]
        for layer in range(layers):
            share = np.sort(rng.dirichlet(np.ones(heads)))[::-1]
            place = {"layer": layer, "circuit": circuit, "part": part, "component": np.arange(1, heads + 1)}
            rows.append(pd.DataFrame({**place, "share": share, "null_share": null}))
    return pd.concat(rows, ignore_index=True)


def of(rows, layer, circuit="qk"):
    return rows[(rows["layer"] == layer) & (rows["circuit"] == circuit)]["share"].to_numpy()


def line(ax, label):
    return next(line for line in ax.lines if line.get_label() == label)


@pytest.mark.parametrize("heads", [4, 128])
def test_few_layers_are_lines_of_their_values(heads):
    rows = table(4, heads)
    panels = plots.spectra(rows.iloc[::-1], title="Spectra")
    assert [ax.get_title() for ax in panels] == ["QK: spectrum", "QK: running sum", "OV: spectrum", "OV: running sum"]
    for layer in range(4):
        np.testing.assert_allclose(line(panels[2], f"layer {layer}").get_ydata(), heads * of(rows, layer, "ov"))
        np.testing.assert_allclose(line(panels[3], f"layer {layer}").get_ydata(), 100 * of(rows, layer, "ov").cumsum())
    null = rows[rows["circuit"] == "qk"]["null_share"].to_numpy()[:heads]
    np.testing.assert_allclose(line(panels[1], "null: mean over draws").get_ydata(), 100 * null.cumsum())
    assert line(panels[1], "90 %").get_ydata()[0] == 90
    assert panels[1].get_xlim() == (0.5, heads + 0.5)
    assert len({line(panels[0], f"layer {layer}").get_color() for layer in range(4)}) == 4
    assert len({line(panels[0], f"layer {layer}").get_marker() for layer in range(4)}) == 4
    entries = [text.get_text() for text in panels[0].figure.legends[0].get_texts()]
    assert entries.count("layer 3") == entries.count("null: mean over draws") == 1


def test_many_layers_are_maps_with_a_line_where_the_share_is_reached():
    rows = table(80, 64, BLOCKS[:1])
    spectrum, summed = plots.spectra(rows)
    shown = spectrum.collections[0].get_array()
    assert shown.shape == summed.collections[0].get_array().shape == (80, 64)
    np.testing.assert_allclose(shown[7], np.log2(64 * of(rows, 7)))
    np.testing.assert_allclose(summed.collections[0].get_array()[7], 100 * of(rows, 7).cumsum())
    assert summed.collections[0].get_clim() == (0, 100)
    reached, null = (patch for patch in summed.patches if "reached" in str(patch.get_label()))
    expected = [int(np.argmax(of(rows, layer).cumsum() >= 0.9)) + 1 for layer in range(80)]
    assert reached.get_data().values.tolist() == expected
    assert len(set(null.get_data().values)) == 1
    assert spectrum.get_ylabel() == "layer, every 4th labelled"
    assert spectrum.get_xlabel() == "component, largest first, every 8th labelled"


def test_a_component_near_zero_does_not_set_the_scale():
    rows = table(7, 4, BLOCKS[:1])
    rows["share"] = [0.4, 0.3, 0.3 - 1e-15, 1e-15] * 7
    assert plots.spectra(rows)[0].collections[0].get_clim() == (-4, 4)


def test_a_layer_without_a_spectrum_is_said_and_sets_no_scale():
    rows = table(3, 4)
    rows.loc[(rows["layer"] == 1) & (rows["circuit"] == "qk"), "share"] = math.nan
    panels = plots.spectra(rows)
    assert not any(line.get_label() == "layer 1" for line in panels[0].lines)
    assert line(panels[2], "layer 1") is not None
    assert panels[0].figure.legends[0].get_title().get_text() == "A layer without a spectrum has no line."
    many = table(9, 4)
    many.loc[many["layer"] == 1, "share"] = math.nan
    panels = plots.spectra(many)
    assert np.ma.getmaskarray(panels[1].collections[0].get_array())[1].all()
    assert panels[1].patch.get_hatch()
    assert "hatched" in panels[0].figure.legends[0].get_title().get_text()


def test_without_a_null_there_is_no_line_of_it():
    for rows in (table(2, 4), table(9, 4)):
        panels = plots.spectra(rows.assign(null_share=math.nan))
        assert not any("null" in text.get_text() for text in panels[0].figure.legends[0].get_texts())


def test_bad_tables_are_named():
    rows = table(2, 3)
    with pytest.raises(ValueError, match="lacks the column"):
        plots.spectra(rows.drop(columns="share"))
    with pytest.raises(ValueError, match="table is empty"):
        plots.spectra(rows.iloc[:0])
    with pytest.raises(ValueError, match="component 1 of layer 0 appears more than once for circuit 'qk', part 'all'"):
        plots.spectra(pd.concat([rows, rows.iloc[:1]]))
