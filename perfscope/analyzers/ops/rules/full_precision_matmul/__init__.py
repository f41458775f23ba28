"""Matrix products run in float32 on the ordinary cores of a device that has matrix cores.

Example:
    Before::

        loss = model(x)

    After::

        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(x)

Why it costs:
    Tensor cores (NVIDIA) and matrix cores (AMD) multiply TF32 or 16-bit operands many times faster than the same chip
    multiplies float32: 8x for TF32 and 16x for bfloat16 on an A100. PyTorch keeps float32 matmuls exact by default, so
    a model without explicit settings does not use them.

How it is found:
    By kernel name: `sgemm`, `simt`, `f32f32_f32f32` and Tensile's `_SB_` are float32. Names with `tf32`, `s1688`,
    `bf16`, `fp16` are fast already and not reported, nor are matrix-vector products, which memory bounds at any
    precision. The saving is modelled from the device's dense peaks (each with its source): exposed kernel time times
    one minus the ratio of the float32 peak to that of the closest faster precision, TF32 if available. The assumed
    time of a product is at least that of the shortest kernel (1 us on NVIDIA) and, if shapes were recorded, the time to
    move its operands through memory. It is an upper bound, because it assumes the same share of the peak. The rule
    abstains without an accelerator, on a device with unknown peaks, if kernel names do not contain the precision
    (MTIA), and if XLA compiled the kernels but its programs are missing.

    In compiled XLA programs, by the precision that each product requests: float64 operands, or float32 ones with
    precision `highest` or the algorithm `dot_f32_f32_f32`. The saving is the roof of its kernel (arithmetic at the
    float32 peak, or bytes through memory) less the roof in the fast precision, at most the measured time. In a program
    for a CPU, a request for float32 is reported without time, for its effect on a GPU or TPU. Not reported are products
    whose 16-bit operands the CPU backend itself widened, and float64 if most products of the program are in it.

    Also in compiled XLA programs: products of 16-bit weights with a float32 factor, from a tenth of the arithmetic on.
    JAX promotes bfloat16 with float32 to float32, so one float32 scale or table widens everything computed from it. The
    line is the one that reads this argument, else the first cast of the program that leads there. Products of a
    backward pass alone are left out: sums in float32 have float32 gradients.

    In planned PyTorch programs (`perfscope compile`), by the dtype of each product's operands and the setting of
    `torch.set_float32_matmul_precision`. The saving is modelled: arithmetic at the float32 peak, or bytes through
    memory, less the same in the fast precision. If most of such a program's products are in bfloat16 or float16, its
    float32 products are compared with that precision, and so are its TF32 products, whose peak is half of that of 16
    bits on an A100 or H100.

Fix:
    With TF32 (10 bits of mantissa in the operands, float32 sums), one line before the model runs::

        torch.set_float32_matmul_precision("high")

    or 16-bit operands in the forward and backward::

        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(x_BTD)

    On devices without bfloat16 (V100, T4) use float16 with `torch.amp.GradScaler`. In JAX::

        jax.config.update("jax_default_matmul_precision", "high")   # or no setting at all

    or `precision=jax.lax.Precision.HIGH` for the one product that needs it.

    A product that is left in float32 in a program of 16 bits has operands that were made outside of `autocast`,
    or were cast with `.float()`: give it theirs, and keep float32 for sums, losses and norms.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec import Struct

from perfscope.analyzers.devices import Device, bytes_ns, find_device, peak_ratio
from perfscope.analyzers.examined import op_records
from perfscope.analyzers.ops.achieved import kernel_costs
from perfscope.analyzers.ops.kernels import matmul_precision, uses_tensor_cores
from perfscope.analyzers.ops.op_class import op_class
from perfscope.analyzers.spans import time_of, worst_spans
from perfscope.analyzers.time import call_site, timed_cost, whole_ns
from perfscope.model.finding import MOST_ROWS, AbstainError, Finding, Removed, Where
from perfscope.model.trace import MISSING, Trace
from perfscope.model.units import format_ns

MIN_SHARE = 0.01
"""Smallest saving as a share of the steps: less is within the variation between steps."""

examined = op_records


class _Group(Struct, frozen=True, kw_only=True):
    """Kernels of one op and shape on one device."""

    device: Device
    op: int
    """Row of ``slices`` of one of them; ``MISSING`` if the kernels have no op."""
    kernel: str
    shapes: str
    rows: tuple[int, ...]
    kernel_ns: int
    saved_ns: int
    saved_share: float
    """Share of the kernels' time."""


def check(trace: Trace) -> Iterable[Finding]:
    """Yield one finding for all float32 products, because one setting changes them together."""
    if "hlo" in trace.recorded:
        from perfscope.analyzers.ops.rules.full_precision_matmul.program import program_findings

        yield from program_findings(trace)
        return
    if not len(trace.rows["kernels"]):
        raise AbstainError("no kernels of an accelerator in the trace, so the precision on an accelerator is unknown")
    groups = _groups(trace)
    cost, whole = sum(group.saved_ns for group in groups), whole_ns(trace)
    if cost < MIN_SHARE * whole or not cost:
        if _lacks_precision(trace):
            raise AbstainError("XLA compiled the kernels, and their names lack the precision of their products")
        if kernel := _product_without_precision(trace):
            raise AbstainError(f"names of kernels such as {kernel} lack the precision of their products")
        return
    groups.sort(key=lambda group: -group.saved_ns)
    kernels = sum(len(group.rows) for group in groups)
    work, members = trace.rows["kernels"], [row for group in groups for row in group.rows]
    starts, ends = work["start_ns"][members], work["end_ns"][members]
    device = groups[0].device
    fast = device.matrix_dtypes[0]
    ratio = peak_ratio(device, fast, "float32")
    site = call_site(trace, groups[0].op)
    yield Finding(
        subject="float32 matrix products",
        title=f"{kernels:,} float32 matrix products could run in {fast}",
        detail=f"They take {format_ns(sum(group.kernel_ns for group in groups))} on {device.name}; its peak in {fast} "
        f"is {ratio:.1f} times that in float32.",
        **timed_cost(trace, cost, whole, "modelled"),
        where=Where(op=_op_name(trace, groups[0].op), module=site.module, file=site.file, line=site.line),
        evidence=tuple(
            {
                "op": _op_name(trace, group.op),
                "at": call_site(trace, group.op).where().label(),
                "kernel": group.kernel[:120],
                "shapes": group.shapes[:120],
                "calls": len(group.rows),
                "kernel_ns": group.kernel_ns,
                "saved_ns": group.saved_ns,
                "float32_peak_tflops": group.device.peak_flops["float32"] / 1e12,
                "fast_peak_tflops": group.device.peak_flops[group.device.matrix_dtypes[0]] / 1e12,
                "peaks_from": group.device.source,
            }
            for group in groups[:MOST_ROWS]
        ),
        spans=worst_spans(starts, ends, ends - starts),
        removes=tuple(
            Removed(table="kernels", rows=np.array(group.rows), left=1 - group.saved_share) for group in groups
        ),
        advice=_advice(device),
    )


def check_plan(trace: Trace) -> Iterable[Finding]:
    """Yield one finding for all float32 products of a planned step, with modelled time."""
    from perfscope.analyzers.ops.rules.full_precision_matmul.plan import precision_findings

    return precision_findings(trace, least=MIN_SHARE, advice=_plan_advice)


def _lacks_precision(trace: Trace) -> bool:
    """Whether some kernels of compiled programs have names without a precision: any of them may multiply."""
    rows = trace.rows["hlo_ops"]["kernel"]
    names = np.unique(trace.rows["kernels"]["name"][rows[rows != MISSING]])
    return any(matmul_precision(trace.text(int(code))) is None for code in names)


def _product_without_precision(trace: Trace) -> str:
    """Return the longest kernel of a product's op on an unknown device; ``""`` if some name has a precision."""
    kernels, slices = trace.rows["kernels"], trace.rows["slices"]
    every = [trace.text(code) for code in np.unique(kernels["name"]).tolist()]
    if any(matmul_precision(name) is not None or uses_tensor_cores(name) for name in every):
        return ""
    devices = trace.rows["devices"]["name"].tolist()
    unknown = [row for row, code in enumerate(devices) if find_device(trace.text(code)) is None]
    rows = np.flatnonzero((kernels["op"] != MISSING) & np.isin(kernels["device"], unknown))
    names = slices["name"][kernels["op"][rows]]
    products = [code for code in np.unique(names).tolist() if op_class(trace.text(code)) == "matrix product"]
    rows = rows[np.isin(names, products)]
    if not len(rows):
        return ""
    return trace.text(int(kernels["name"][rows[np.argmax(kernels["end_ns"][rows] - kernels["start_ns"][rows])]]))[:60]


def _groups(trace: Trace) -> list[_Group]:
    kernels, slices = trace.rows["kernels"], trace.rows["slices"]
    codes = [int(code) for code in np.unique(kernels["name"]) if matmul_precision(trace.text(int(code))) == "float32"]
    chosen = np.flatnonzero(np.isin(kernels["name"], codes) & ~kernels["communication"])
    members: dict[tuple[int, int, int, int], list[int]] = {}
    for row in chosen.tolist():
        op = int(kernels["op"][row])
        name, shapes = (MISSING, MISSING) if op == MISSING else (int(slices["name"][op]), int(slices["shapes"][op]))
        members.setdefault((int(kernels["device"][row]), int(kernels["name"][row]), name, shapes), []).append(row)
    result = []
    for (device, kernel, _, shapes), rows in members.items():
        peaks = _device(trace, device)
        if peaks.matrix_dtypes:
            result.append(_group(trace, peaks, rows, trace.text(kernel), trace.text(shapes)))
    return result


def _group(trace: Trace, device: Device, rows: list[int], kernel: str, shapes: str) -> _Group:
    from perfscope.analyzers.predict import vendor_factors

    time = time_of(trace, "kernels", np.array(rows))
    op = int(trace.rows["kernels"]["op"][rows[0]])
    kept = 1 / peak_ratio(device, device.matrix_dtypes[0], "float32")
    moved = np.nan_to_num(trace.fact(kernel_costs).bytes[rows])
    least = np.maximum(bytes_ns(device, 1) * moved, vendor_factors(device.vendor).kernel[0]).sum()
    shortest = max(kept * time.sum_ns, min(float(least), time.sum_ns))
    share = 1 - shortest / time.sum_ns if time.sum_ns else 0.0
    return _Group(
        device=device,
        op=op,
        kernel=kernel,
        shapes=shapes,
        rows=tuple(rows),
        kernel_ns=time.sum_ns,
        saved_ns=round(time.exposed_ns * share),
        saved_share=share,
    )


def _device(trace: Trace, row: int) -> Device:
    name = trace.text(int(trace.rows["devices"]["name"][row]))
    device = find_device(name)
    if device is None:
        raise AbstainError(
            f"float32 matrix products ran, but the peaks of device {name or 'without a recorded name'!r} are not known"
        )
    return device


def _op_name(trace: Trace, op: int) -> str | None:
    return None if op == MISSING else trace.text(int(trace.rows["slices"]["name"][op]))


def _plan_advice(device: Device, mixed: str | None) -> str:
    if mixed is None:
        return _advice(device)
    return (
        f"Run them inside of torch.autocast, or cast their operands (x.to(torch.{mixed})) and convert the results. "
        "Their "
        f"operands are float32 in a program that multiplies in {mixed}: made outside of its torch.autocast, or "
        "cast with .float(); sums in a product remain float32. Leave those that need 24 bits of their "
        "operands."
    )


def _advice(device: Device) -> str:
    if "tf32" in device.matrix_dtypes:
        flag = " and HIPBLASLT_ALLOW_TF32=1 in the environment" if device.vendor == "AMD" else ""
        return (
            f'Call torch.set_float32_matmul_precision("high") before the model runs{flag}: TF32 operands, float32 '
            'sums. Or run it under torch.autocast("cuda", dtype=torch.bfloat16).'
        )
    if "bfloat16" in device.matrix_dtypes:
        return 'Run the model under torch.autocast("cuda", dtype=torch.bfloat16); this device has no TF32.'
    return (
        'Run the model under torch.autocast("cuda", dtype=torch.float16) with torch.amp.GradScaler; this device has '
        "neither TF32 nor bfloat16."
    )
