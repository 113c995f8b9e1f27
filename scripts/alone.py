"""Pictures of reports as files of their own, for the pages."""

from collections.abc import Sequence

from quoron.reports.pictures import HUES, WIDTH

ALONE = """<style>svg{font-family:sans-serif;background:#fff}text{font-size:12px;fill:#4a5662}.end{text-anchor:end}
.mid{text-anchor:middle}.grid{stroke:#dde2e7}[class^=c]{fill:none;stroke-width:1.8;stroke:hsl(var(--hue) 62% 38%)}
.dot{fill:hsl(var(--hue) 62% 38%)}{hues}</style>"""


def alone(pictures: Sequence[str]) -> bytes:
    """Pictures side by side as one file that looks the same wherever it is shown, on a white ground."""
    heights = [float(picture.split('viewBox="0 0 ')[1].split('"')[0].split()[1]) for picture in pictures]
    wide = (WIDTH + 20) * len(pictures)
    inner = "\n".join(
        picture.replace("<svg ", f'<svg x="{10 + (WIDTH + 20) * place}" y="8" width="{WIDTH}" height="{height:g}" ', 1)
        for place, (picture, height) in enumerate(zip(pictures, heights, strict=True))
    )
    size = f'viewBox="0 0 {wide} {max(heights) + 16:g}" width="{wide * 1.25:g}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{ALONE.replace("{hues}", HUES)}\n{inner}\n</svg>\n'.encode()
