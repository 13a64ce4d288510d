"""Error bars, tests and stability for numbers that were measured on examples. Arrays in, arrays out.

E examples, K columns (heads, points of a curve), B resamples. Every function that takes `columns[E, ...]`
treats each trailing position as a column of its own and gives back arrays of the trailing shape. Intervals
are percentile intervals of the bootstrap over examples (Efron 1979); all columns share one set of resamples,
so columns stay paired. A column with a NaN or an infinity in it gives NaN and leaves the others alone; fewer
than two examples give NaN intervals, because one number says nothing of its own spread.
"""

from headwise.stats.bootstrap import (
    Ratio,
    bootstrap_clustered,
    bootstrap_crossed,
    bootstrap_difference,
    bootstrap_mean,
    bootstrap_ratio,
    interval,
    resampled_ratio,
)
from headwise.stats.orders import agreement_of_orders, jaccard, rank_correlation, stability
from headwise.stats.significance import (
    benjamini_hochberg,
    detectable_difference,
    holm,
    mcnemar_exact,
    sign_flip,
    sign_flip_staged,
    smallest_p,
)

__all__ = [
    "Ratio",
    "agreement_of_orders",
    "benjamini_hochberg",
    "bootstrap_clustered",
    "bootstrap_crossed",
    "bootstrap_difference",
    "bootstrap_mean",
    "bootstrap_ratio",
    "detectable_difference",
    "holm",
    "interval",
    "jaccard",
    "mcnemar_exact",
    "rank_correlation",
    "resampled_ratio",
    "sign_flip",
    "sign_flip_staged",
    "smallest_p",
    "stability",
]
