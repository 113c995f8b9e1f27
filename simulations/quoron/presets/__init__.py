"""Ready configurations, one TOML file each; the first comment line says what it shows.

>>> "quickstart" in [preset.name for preset in presets()]
True
"""

from dataclasses import dataclass
from importlib.resources import files

from quoron_privacy.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Preset:
    """A named configuration."""

    name: str
    summary: str
    text: str  # TOML


def presets() -> tuple[Preset, ...]:
    """Return every preset, by name."""
    entries = []
    for entry in files(__name__).iterdir():
        if entry.name.endswith(".toml"):
            text = entry.read_text(encoding="utf-8")
            summary = text.partition("\n")[0].lstrip("# ").strip()
            entries.append(Preset(entry.name.removesuffix(".toml"), summary, text))
    return tuple(sorted(entries, key=lambda preset: preset.name))


def preset(name: str) -> Preset:
    """Return the preset called `name`; raises ConfigError with the names there are."""
    known = {entry.name: entry for entry in presets()}
    if name not in known:
        raise ConfigError(f"Expected a preset ({', '.join(known)}) or a .toml file, got {name!r}.")
    return known[name]
