"""Formulas between dollar signs become MathML while the site is built: browsers set it without any script."""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert

FORMULA = re.compile(r'<(span|div) class="arithmatex">\s*\\([(\[])(.*?)\\[)\]]\s*</\1>', re.DOTALL)
FUNCTION = re.compile(r"<mi>(ln|exp)</mi>")
"""Named functions, which the converter writes as variables: these stand without the space around them."""


def on_page_content(content: str, **_: Any) -> str:
    """Replace what arithmatex marked as a formula by MathML."""
    return FORMULA.sub(_mathml, content)


def _mathml(found: re.Match[str]) -> str:
    tag, bracket, formula = found.groups()
    tex = html.unescape(formula).strip()
    display = "block" if bracket == "[" else "inline"
    mathml = FUNCTION.sub(r'<mo lspace="0.17em" rspace="0.17em">\1</mo>', convert(tex, display=display))
    return f'<{tag} class="formula">{mathml}</{tag}>'
