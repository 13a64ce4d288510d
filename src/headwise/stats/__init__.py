"""Error bars, tests and stability for numbers that were measured on examples. Arrays in, arrays out.

E examples, K columns (heads, points of a curve), B resamples. Every function that takes `columns[E, ...]`
treats each trailing position as a column of its own and gives back arrays of the trailing shape. Begin with
`intervals.py`. A column with a NaN or an infinity in it gives NaN and leaves the others alone; fewer
than two examples give NaN intervals, because one number says nothing of its own spread.
"""

from headwise.stats.intervals import (
    Ratio,
    crossed_interval,
    difference_interval,
    effect_interval,
    mean_interval,
    metric_interval,
    ratio_interval,
    resampled_interval,
    resampled_ratio,
    share_interval,
)
from headwise.stats.orders import agreement_of_orders, jaccard, rank_correlation, stability
from headwise.stats.significance import (
    benjamini_hochberg,
    detectable_difference,
    holm,
    largest_power,
    mcnemar_exact,
    sign_flip,
    sign_flip_staged,
    skewness,
    smallest_p,
    too_few,
)
