"""How often one client may do what takes the database: a few times at once, and then once a second.

>>> limit = RateLimit(burst=2, seconds=1.0)
>>> [limit.wait("ada", now) for now in (10.0, 10.0, 10.25, 11.0)]
[0.0, 0.0, 0.75, 0.0]
>>> limit.wait("ben", 10.25)
0.0
"""

from dataclasses import dataclass, field

_MOST = 4096  # names, before those are forgotten that have nothing to wait for


@dataclass(slots=True)
class RateLimit:
    """A bucket for each name, which holds `burst` and gains one in so many `seconds`."""

    burst: int = 10
    seconds: float = 1.0
    _full: dict[str, float] = field(default_factory=dict)  # when a bucket will be full again

    def wait(self, name: str, now: float) -> float:
        """Seconds until it is worth asking again; 0 if it may go on now, which is counted."""
        if len(self._full) >= _MOST:
            self._full = {each: full for each, full in self._full.items() if full > now}
        after = max(self._full.get(name, now), now) + self.seconds
        early = after - self.burst * self.seconds - now
        if early > 0:
            return early
        self._full[name] = after
        return 0.0
