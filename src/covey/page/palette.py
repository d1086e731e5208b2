"""Colours, as pairs (light, dark), for the page's style and its charts.

Charts name a colour as `var(--line-0)`; the page looks it up for the theme it is shown in. The six line
colours stay apart for people with protanopia, deuteranopia and tritanopia, on either background; lines
after the sixth repeat them with another stroke.
"""

LINES = (
    ("#0A84D8", "#3D8DFF"),
    ("#A23A00", "#E6602A"),
    ("#00695A", "#52E0A2"),
    ("#A81E98", "#B66CB0"),
    ("#9C9000", "#F0D136"),
    ("#1F2540", "#D5E3EC"),
)
"""Blue, rust, green, purple, ochre, ink."""

STROKES = {"solid": "", "dash": "7 4", "dot": "2 3"}
"""Plotly's name of a stroke → the same as an SVG dash pattern."""

SYMBOLS = ("circle", "diamond-open", "square-open")

SURFACES = {
    "page": ("#FFFFFF", "#14171B"),
    "card": ("#F6F7F9", "#1C2026"),
    "ink": ("#1B1F24", "#E6E9ED"),
    "quiet": ("#59626D", "#A3ACB7"),
    "rule": ("#D9DEE4", "#343B44"),
    "grid": ("#E6E9ED", "#2B3139"),
    "accent": ("#0A63A8", "#7DB6FF"),
    "warning": ("#FFF4DA", "#3A2F14"),
}

SCALE = (
    ("#F1F5F9", "#1E242B"),
    ("#BAD3EA", "#1F4468"),
    ("#6FA5D4", "#2C6FA8"),
    ("#2A6FAE", "#63A8E0"),
    ("#0B3A66", "#D6EBFF"),
)
"""Sequential scale in one hue, from low to high."""

PHASES = (
    ("#B9C4D0", "#59636F"),
    ("#4F86B8", "#5B93C7"),
    ("#1D3F63", "#CFE2F5"),
    ("#D9B36A", "#B98F3E"),
    ("#8A6D9E", "#A88ABD"),
    ("#7E8A5A", "#A5B27C"),
)


def line(place: int) -> str:
    """Return the colour of the line at `place`."""
    return f"var(--line-{place % len(LINES)})"


def band(place: int) -> str:
    """Return the same colour, nearly transparent."""
    return f"var(--band-{place % len(LINES)})"


def stroke(place: int) -> str:
    """Return the stroke of the line at `place`."""
    return list(STROKES)[place // len(LINES) % len(STROKES)]


def symbol(place: int) -> str:
    """Return the marker of the line at `place`."""
    return SYMBOLS[place // len(LINES) % len(SYMBOLS)]


def phase(place: int) -> str:
    """Return the colour of a round's phase number `place`."""
    return f"var(--phase-{place % len(PHASES)})"


def scale() -> list[list[object]]:
    """Return the sequential scale in plotly's form."""
    return [[place / (len(SCALE) - 1), f"var(--scale-{place})"] for place in range(len(SCALE))]


def style() -> str:
    """Return the colours as CSS: light or dark by the system's setting, unless the reader chooses."""
    light, dark = _variables(0), _variables(1)
    return (
        f":root {{ color-scheme: light; {light} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root:not([data-theme]) {{ color-scheme: dark; {dark} }} }}\n"
        f':root[data-theme="dark"] {{ color-scheme: dark; {dark} }}\n'
    )


def _variables(theme: int) -> str:
    colours = {name: pair[theme] for name, pair in SURFACES.items()}
    for prefix, pairs in (("line", LINES), ("scale", SCALE), ("phase", PHASES)):
        colours.update({f"{prefix}-{place}": pair[theme] for place, pair in enumerate(pairs)})
    colours.update({f"band-{place}": _faint(pair[theme]) for place, pair in enumerate(LINES)})
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, 0.16)"
