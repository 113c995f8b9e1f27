"""Compiled kernels that come with an image: used where they lie, though nothing can be written there.

Numba keeps what it compiles in one folder, NUMBA_CACHE_DIR, and passes over a folder that it cannot write. With

    NUMBA_CACHE_LOCATOR_CLASSES=quoron.shipped_kernels.ShippedKernels

that folder begins with links to the kernels of the folder QUORON_KERNELS. What does not fit, since it was compiled for
another processor or of another source, numba compiles anew and puts in the place of the link.
"""

import os
from contextlib import suppress
from pathlib import Path

from numba.core.caching import UserProvidedCacheLocator


class ShippedKernels(UserProvidedCacheLocator):
    """Numba's own choice of a folder, NUMBA_CACHE_DIR, with links to the kernels that were shipped for a module."""

    def ensure_cache_path(self) -> None:
        """Numba calls this before it looks for a function's kernels."""
        super().ensure_cache_path()
        own = Path(self.get_cache_path())
        for kernel in Path(os.environ["QUORON_KERNELS"], own.name).glob("*.nb[ci]"):
            with suppress(FileExistsError):
                (own / kernel.name).symlink_to(kernel)
