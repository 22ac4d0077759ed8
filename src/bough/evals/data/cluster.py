"""Clusters rows by k-means over scaled columns; deterministic.

Source: BigQuery's KMEANS models for the names of the columns.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownLambdaType=false
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bough.evals.data.fault import QueryError
from bough.types import JsonObject

MAX_CLUSTERS = 20


def cluster_rows(features: Sequence[str], values: Sequence[Sequence[float]], clusters: int) -> JsonObject:
    """Return the centroids, the centroid and distance of each row, and measures of how separate the clusters are.

    Clusters are numbered from 1, by decreasing size, then by the mean of their first feature.

    Args:
        values: One row of features each, without nulls.

    Raises:
        QueryError: The number of clusters is invalid or not below the number of rows, or all rows are equal.
    """
    if not 2 <= clusters <= MAX_CLUSTERS or len(values) <= clusters:
        raise QueryError(
            "INVALID_ARGUMENT",
            f"num_clusters is {clusters}: give 2 to {MAX_CLUSTERS}, fewer than the {len(values)} rows without nulls",
        )
    from sklearn.cluster import KMeans
    from sklearn.metrics import davies_bouldin_score
    from sklearn.preprocessing import StandardScaler

    data = np.array(values, dtype=float)
    scaled = StandardScaler().fit_transform(data)
    model: Any = KMeans  # sklearn annotates n_init as a string
    # With a fixed seed, equal rows give equal clusters in all attempts.
    fitted = model(n_clusters=clusters, n_init=10, random_state=0).fit(scaled)
    labels: Any = fitted.labels_
    distinct: Any = np.unique(labels)
    if len(distinct) < 2:
        raise QueryError("INVALID_ARGUMENT", "all rows are equal, so they form a single cluster")
    means = {cluster: data[labels == cluster].mean(axis=0) for cluster in distinct}
    order = sorted(distinct, key=lambda cluster: (-int((labels == cluster).sum()), float(means[cluster][0])))
    centroid_ids = {cluster: position for position, cluster in enumerate(order, 1)}
    distances = np.linalg.norm(scaled - fitted.cluster_centers_[labels], axis=1)
    return {
        "centroids": [
            {"centroid_id": centroid_ids[cluster], "size": int((labels == cluster).sum())}
            | {name: float(means[cluster][i]) for i, name in enumerate(features)}
            for cluster in order
        ],
        "rows": [
            {"centroid_id": centroid_ids[label], "distance": float(distances[i])} for i, label in enumerate(labels)
        ],
        "evaluation": {
            "davies_bouldin_index": float(davies_bouldin_score(scaled, labels)),
            "mean_squared_distance": float((distances**2).mean()),
        },
    }
