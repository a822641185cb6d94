"""The look of the charts on light and on dark, as Vega-Lite's config."""

from typing import Any

THEMES = ("light", "dark")


def theme(name: str) -> dict[str, Any]:
    """Return the config of a theme: quiet axes, the report's font."""
    text, soft, faint = {
        "light": ("#1c2024", "#ced4da", "#eef1f4"),
        "dark": ("#e6e9ec", "#4a525a", "#2a3036"),
    }[name]
    words = {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"}
    colours = {"labelColor": text, "titleColor": text}
    return {
        "font": "system-ui, sans-serif",
        "background": "#ffffff" if name == "light" else "#1d2125",
        "view": {"stroke": None},
        "title": {"color": text},
        "axis": {
            "gridColor": faint,
            "domainColor": soft,
            "tickColor": soft,
            "labelLimit": 360,
            "titlePadding": 10,
            **words,
            **colours,
        },
        "axisX": {"tickCount": 8, "labelOverlap": True},
        "legend": {"orient": "top", "columns": 6, **words, **colours},
    }
