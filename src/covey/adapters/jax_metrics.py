"""Operations of :mod:`covey.metrics` on arrays of JAX."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray


class JaxArrays:
    """Operations on arrays of JAX, on the device of the embeddings."""

    def embeddings(self, values: Any) -> Any:
        array = jnp.asarray(values)
        return array if array.dtype in (jnp.float32, jnp.float64) else array.astype(jnp.float32)

    def integers(self, values: NDArray[np.int64]) -> Any:
        return jnp.asarray(values.astype(np.int32))  # JAX has no int64 by default

    def normalize(self, embeddings: Any) -> Any:
        norms = jnp.linalg.norm(embeddings, axis=1, keepdims=True)
        return embeddings / jnp.maximum(norms, np.finfo(embeddings.dtype).tiny)

    def mask(self, values: Any, keep: Any) -> Any:
        return jnp.where(keep, values, -jnp.inf)

    def exclude(self, values: Any, columns: Any) -> Any:
        return values.at[jnp.arange(len(values)), columns].set(-jnp.inf)

    def maximum(self, values: Any) -> Any:
        return values.max(1)

    def largest(self, values: Any, count: int) -> Any:
        return jax.lax.top_k(values, count)[0]

    def count_at_least(self, values: Any, thresholds: Any, most: int) -> Any:
        find: Any = jax.vmap(partial(jnp.searchsorted, side="right"))
        return find(-self.largest(values, most), -thresholds)

    def to_numpy(self, values: Any) -> NDArray[Any]:
        return np.asarray(values)
