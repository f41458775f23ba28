"""How long XLA thinks that a collective takes among the GPUs of one node.

XLA has measured H100s and keeps a table; between its points it takes the bandwidth of the nearest. What is here was
read off its log (``TF_CPP_VMODULE=sol_latency_estimator=10``, jax 0.10.2) as it compiled programs with one collective
of each size, bfloat16. Collectives over nodes XLA works out from what it assumes of their network; here they count
as those of eight devices.
"""

from __future__ import annotations

from collections.abc import Mapping

_SMALLEST = 18
"""Logarithm of the bytes of the first column; from one to the next they double, up to 1 GiB."""
_MICROSECONDS: Mapping[str, Mapping[int, tuple[int, ...]]] = {
    "all-gather": {
        2: (13, 15, 18, 26, 31, 40, 60, 96, 161, 295, 549, 1049, 1997),
        4: (21, 16, 20, 29, 42, 57, 70, 113, 196, 350, 666, 1268, 2473),
        8: (19, 19, 31, 32, 47, 65, 82, 129, 214, 390, 729, 1392, 2730),
    },
    "all-reduce": {
        2: (16, 19, 21, 44, 43, 73, 101, 188, 330, 621, 1181, 2309, 4433),
        4: (20, 43, 43, 59, 59, 85, 153, 218, 395, 738, 1420, 2777, 5415),
        8: (26, 42, 52, 57, 69, 105, 145, 226, 380, 670, 1262, 2432, 4721),
    },
    "all-to-all": {
        2: (44, 19, 36, 49, 56, 47, 79, 106, 170, 308, 517, 961, 1721),
        4: (38, 38, 34, 36, 53, 79, 88, 136, 233, 358, 671, 1272, 2384),
        8: (25, 61, 55, 25, 37, 71, 106, 133, 219, 413, 759, 1461, 2797),
    },
    "collective-permute": {2: (14, 14, 14, 20, 41, 81, 163, 301, 573, 942, 1096, 1873, 3697)},
    "reduce-scatter": {
        2: (29, 20, 16, 31, 32, 43, 68, 126, 221, 406, 773, 1468, 2756),
        4: (15, 29, 29, 23, 42, 55, 70, 124, 224, 404, 774, 1490, 2892),
        8: (29, 41, 20, 34, 36, 59, 87, 134, 219, 412, 771, 1496, 2921),
    },
}
"""By kind and devices: one run, by the bytes of the whole array (of a permutation, those of a device)."""


def collective_microseconds(kind: str, size: int, devices: int) -> float:
    """One run of a collective of ``size`` bytes of the whole array among so many devices.

    Kinds are those of HLO; one that is not in the table counts as an ``all-reduce``.
    """
    tables = _MICROSECONDS.get(kind, _MICROSECONDS["all-reduce"])
    row = tables[min(tables, key=lambda count: (abs(count - devices), count))]
    sizes = [1 << (_SMALLEST + at) for at in range(len(row))]
    at = min(range(len(row)), key=lambda column: (abs(sizes[column] - size), -column))
    return float(row[0]) if size < sizes[0] else row[at] * size / sizes[at]
