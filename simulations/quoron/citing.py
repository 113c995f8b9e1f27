"""How to cite quoron, an algorithm, or what a run used: BibTeX of quoron and of the algorithm's papers.

    >>> print(bibtex(["winsorised-erm"]))  # doctest: +ELLIPSIS
    @misc{quoron,
      author = {{quoron maintainers}},
    ...
    % winsorised-erm, repaired: Levy et al. (2021); Bassily & Sun (2023), Algorithm 6
    <BLANKLINE>
    @inproceedings{levy2021learning,
    ...

BibTeX skips what stands between entries.
"""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path

from quoron import __version__
from quoron.run_folder import RunFolder
from quoron_privacy.errors import ConfigError
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.references import Reference, entry
from quoron_server.algorithms.refused import REFUSED

TITLE = "quoron: user-level private federated optimisation"
AUTHOR = "quoron maintainers"


def bibtex(targets: Sequence[str] = ()) -> str:
    """Return the entries of quoron and of the papers behind `targets`, names of algorithms or run folders, each once.

    ConfigError for what is neither.
    """
    parts = [entry("misc", "quoron", (f"{{{AUTHOR}}}",), TITLE, note=f"Version {__version__}")]
    cited: set[Reference] = set()
    for name in dict.fromkeys(name for target in targets for name in _names(target)):
        heading, references = papers(name)
        parts.append(f"% {heading}\n")
        parts += [reference.bibtex for reference in references if reference not in cited]
        cited.update(references)
    return "\n".join(parts)


def papers(name: str) -> tuple[str, tuple[Reference, ...]]:
    """Return what an algorithm comes from, in a line, and the papers. ConfigError for no algorithm of this version."""
    if name not in (*ALGORITHMS, *REFUSED):
        raise _unknown(name)
    if name in REFUSED:
        return f"{name}: {REFUSED[name].paper}", (REFUSED[name].source.reference,)
    origin = ALGORITHMS[name].origin
    return f"{name}, {origin}", origin.references


def _names(target: str) -> Iterator[str]:
    """Yield the algorithm of that name, or those of that folder: a comparison has several runs, a search candidates."""
    if target in (*ALGORITHMS, *REFUSED):
        yield target
        return
    folders = [path.parent for pattern in ("plan.json", "runs/*/plan.json") for path in Path(target).glob(pattern)]
    if not folders:
        raise _unknown(target)
    for folder in sorted(folders):
        plan = RunFolder(folder).plan()
        yield plan["algorithm"]
        yield from (candidate["algorithm"] for candidate in plan.get("search", {}).get("candidates", ()))


def _unknown(name: str) -> ConfigError:
    close = get_close_matches(name, [*ALGORITHMS, *REFUSED], n=1, cutoff=0.5)
    meant = f" Did you mean {close[0]!r}?" if close else ""
    return ConfigError(f"Expected a name from `quoron algorithms` or a run folder, got {name!r}.{meant}")
