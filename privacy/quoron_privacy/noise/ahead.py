"""Noise of one start of a run, drawn ahead: coming rounds' samples are made on other cores while users compute.

    >>> from quoron_privacy.noise.sources import SeededNoise
    >>> with NoiseAhead(SeededNoise(7), threads=2) as noise:
    ...     noise.expect(("release", 3), 5)
    ...     early = noise.stream("release", 3).gaussian_steps(5)
    >>> bool((early == SeededNoise(7).stream("release", 3).gaussian_steps(5)).all())
    True

A stream is a function of its labels, so what is drawn ahead is what would have been drawn: the same bits, once.
"""

import secrets
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType

from quoron_privacy.errors import count
from quoron_privacy.noise.streams import NoiseSource, RandomStream, Steps, samples_of

Labels = tuple[str | int, ...]
_Drawn = Future[tuple[RandomStream, Steps]]


class OtherStreams:
    """What a source of other streams says of itself: as `source`, which they are made of."""

    __slots__ = ()
    source: NoiseSource

    def require_deployable(self) -> None:
        """As the source."""
        self.source.require_deployable()

    def export_key(self) -> bytes:
        """The source's."""
        return self.source.export_key()

    def fingerprint(self) -> str:
        """The source's."""
        return self.source.fingerprint()


@dataclass(frozen=True, slots=True)
class StartedNoise(OtherStreams):
    """A source whose streams depend on a secret of one start of a run, which is kept in memory and nowhere else.

    Every start draws independent noise and coins, whatever is answered, so what one drew and did not commit says
    nothing of what a later one releases, and books that are restored give another run from there, not the noise that
    was shown. A real run that goes on keeps its privacy and what it has committed; a simulation keeps its bits.
    Statements and proofs: docs/privacy/restored-books.md.
    """

    source: NoiseSource
    nonce: str = field(repr=False)

    @classmethod
    def fresh(cls, source: NoiseSource) -> "StartedNoise":
        """Of a start that has not been before."""
        return cls(source, secrets.token_hex(32))

    @classmethod
    def simulated(cls, source: NoiseSource) -> "StartedNoise":
        """Of every start of a simulation: all its bits are functions of the seed."""
        return cls(source, "simulation")

    def stream(self, *labels: str | int) -> RandomStream:
        """See NoiseSource."""
        return self.source.stream(*labels, "start", self.nonce)


def of_the_run(noise: NoiseSource) -> NoiseSource:
    """What all starts of a run draw from alike: for what has to stay when it goes on, and bears no noise."""
    return noise.source if isinstance(noise, StartedNoise) else noise


class NoiseAhead(OtherStreams):
    """A source like `source`, with threads of its own for what is expected. A context manager, which ends them."""

    def __init__(self, source: NoiseSource, *, threads: int) -> None:
        count(threads=threads)
        self.source, self.threads = source, threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="quoron-noise")
        self._drawn: dict[Labels, tuple[int, _Drawn]] = {}

    def __enter__(self) -> "NoiseAhead":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def expect(self, labels: Labels, samples: int) -> None:
        """Begin with the first `samples` Gaussian steps of the stream of these labels, unless that was said before."""
        if labels not in self._drawn:
            self._drawn[labels] = samples, self._pool.submit(_draw, self.source, labels, samples)

    def stream(self, *labels: str | int) -> RandomStream:
        """See NoiseSource. What was drawn ahead is handed out once; asked again, the stream is drawn anew."""
        found = self._drawn.pop(labels, None)
        if found is None:
            return self.source.stream(*labels)
        return _Early(lambda: self.source.stream(*labels), *found)


def _draw(source: NoiseSource, labels: Labels, samples: int) -> tuple[RandomStream, Steps]:
    stream = source.stream(*labels)
    return stream, stream.gaussian_steps(samples)


class _Early(RandomStream):
    """A stream whose first Gaussian samples are there already, if so many are asked for first."""

    __slots__ = ("_early", "_fresh", "_samples")

    def __init__(self, fresh: Callable[[], RandomStream], samples: int, early: _Drawn) -> None:
        super().__init__(self._begin)
        self._fresh, self._samples = fresh, samples
        self._early: _Drawn | None = early

    def _begin(self, size: int):  # type: ignore[no-untyped-def]
        """Something else is asked for first: the stream from its start."""
        self._early, self._draw = None, self._fresh().words
        return self._draw(size)

    def gaussian_steps(self, shape: int | tuple[int, ...]) -> Steps:
        """See RandomStream."""
        if self._early is not None and samples_of(shape) == self._samples:
            after, steps = self._early.result()
            self._early, self._draw = None, after.words
            return steps.reshape(shape)
        return super().gaussian_steps(shape)
