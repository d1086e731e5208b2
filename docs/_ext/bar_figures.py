"""Bar charts as SVG within a page: their colours are the page's, so that they can be read on light and dark."""

from collections.abc import Mapping, Sequence
from html import escape

_WIDTH, _LEFT, _BAR, _GAP, _GROUP = 720, 240, 16, 3, 14


def bars(title: str, groups: Mapping[str, Sequence[tuple[str, str, float, str]]]) -> str:
    """Return a chart of horizontal bars: for each group lines of (label, kind, length, text at its end).

    A kind is a class of `covey.css`: plain, peer, covey or many. Bars of negative length go to the left of zero.
    """
    lengths = [0.0, *(length for lines in groups.values() for _, _, length, _ in lines)]
    scale = (_WIDTH - _LEFT - 90) / (max(lengths) - min(lengths))
    zero = _LEFT - min(lengths) * scale
    drawn, top = [], 8
    for name, lines in groups.items():
        drawn.append(f'<text class="group" x="0" y="{top + 12}">{escape(name)}</text>')
        for label, kind, length, text in lines:
            y, wide = top + 12, max(abs(length) * scale, 1)
            begin = zero - wide if length < 0 else zero
            drawn += [
                f'<text class="label" x="{_LEFT - 8}" y="{y}" text-anchor="end">{escape(label)}</text>',
                f'<rect class="{kind}" x="{begin:.1f}" y="{top}" width="{wide:.1f}" height="{_BAR}"/>',
                f'<text class="value" x="{begin + wide + 6:.1f}" y="{y}">{escape(text)}</text>',
            ]
            top += _BAR + _GAP
        top += _GROUP
    # No blank line: it would end the block of HTML.
    return "\n".join(
        [
            '<figure class="bars">',
            f'<svg viewBox="0 0 {_WIDTH} {top}" role="img" aria-label="{escape(title)}">',
            *drawn,
            "</svg>",
            f"<figcaption>{escape(title)}</figcaption>",
            "</figure>",
        ]
    )
