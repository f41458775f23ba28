"""Predefined queries by name. Each is plain SQL over the documented tables, and a starting point for others."""

from __future__ import annotations

from msgspec import Struct


class Query(Struct, frozen=True):
    """A question and its SQL."""

    doc: str
    sql: str


QUERIES: dict[str, Query] = {
    "account": Query(
        "Where a step goes, mean of all steps, by rank and device",
        """
        select rank, name as device, cause, avg(time_ns) / 1e6 as ms_per_step,
               100.0 * sum(time_ns) / sum(sum(time_ns)) over (partition by source, rank, name) as percent
        from accounts group by source, rank, name, cause having sum(time_ns) > 0 order by rank, device, ms_per_step desc
        """,
    ),
    "annotations": Query(
        "Annotations (NVTX ranges, record_function, profiler steps) by name and depth, on the host and on devices",
        """
        select name, depth, rank, count(*) as calls, sum(host_ns) / 1e6 as host_ms, avg(host_ns) / 1e6 as mean_host_ms,
               min(host_ns) / 1e6 as shortest_ms, max(host_ns) / 1e6 as longest_ms,
               sum(inner_device_ns) / 1e6 as device_work_ms,
               sum(device_end_ns - device_start_ns) / 1e6 as device_span_ms
        from spans where kind = 'annotation' group by source, rank, name, depth order by rank, host_ms desc
        """,
    ),
    "bandwidth": Query(
        "Collectives by operation, group and size with algorithm and bus bandwidth, of ranks or devices together",
        """
        select operation, members, message_bytes, dtype, algorithm, protocol, count, median_core_ns / 1e3 as median_us,
               algorithm_bytes_per_s / 1e9 as algorithm_gb_per_s, bus_bytes_per_s / 1e9 as bus_gb_per_s
        from collective_kinds order by core_ns desc
        """,
    ),
    "categories": Query(
        "Device time of ops by kind of op, by the op's name",
        """
        select coalesce(class, 'other') as category, sum(device_ns) / 1e6 as device_ms, count(*) as calls,
               sum(works) as works, 100.0 * sum(device_ns) / sum(sum(device_ns)) over () as percent
        from ops group by class order by device_ms desc
        """,
    ),
    "collectives": Query(
        "Collectives of a job: how long each rank waited for the last one",
        """
        select operation, members, rank, count(*) as calls, sum(duration_ns) / 1e6 as ms, sum(wait_ns) / 1e6 as wait_ms,
               sum(core_ns) / 1e6 as transfer_ms, max(message_bytes) as largest_bytes
        from collective_sides group by operation, members, rank order by wait_ms desc
        """,
    ),
    "concurrency": Query(
        "How long how many kernels and copies of a device ran at the same time",
        """
        with events as (
          select source, rank, device, start_ns as time_ns, 1 as change from kernels
          union all select source, rank, device, end_ns, -1 from kernels
          union all select source, rank, device, start_ns, 1 from copies
          union all select source, rank, device, end_ns, -1 from copies),
        moments as (
          select source, rank, device, time_ns, sum(change) as change
          from events group by source, rank, device, time_ns),
        lengths as (
          select source, rank, device, sum(change) over w as running, lead(time_ns) over w - time_ns as ns
          from moments window w as (partition by source, device order by time_ns))
        select rank, device, running, sum(ns) / 1e6 as ms,
               100.0 * sum(ns) / sum(sum(ns)) over (partition by source, device) as percent
        from lengths where ns is not null group by source, rank, device, running order by rank, device, running
        """,
    ),
    "copies": Query(
        "Copies by direction and host memory, with what they reached",
        """
        select kind, host_memory, count(*) as copies, sum(bytes) / 1e6 as mb, sum(end_ns - start_ns) / 1e6 as ms,
               sum(bytes) / nullif(sum(end_ns - start_ns), 0) as gb_per_s
        from copies group by kind, host_memory order by ms desc
        """,
    ),
    "copy_bandwidth": Query(
        "Bandwidth of copies as a series: at each change, the sum of what the running copies reach",
        """
        with rates as (
          select source, rank, device, kind, start_ns, end_ns, bytes / (end_ns - start_ns) as rate
          from copies where bytes is not null and end_ns > start_ns),
        events as (
          select source, rank, device, kind, start_ns as time_ns, rate from rates
          union all select source, rank, device, kind, end_ns, -rate from rates)
        select rank, device, kind, time_ns,
               round(sum(sum(rate)) over (partition by source, device, kind order by time_ns), 6) as gb_per_s
        from events group by source, rank, device, kind, time_ns order by rank, device, kind, time_ns
        """,
    ),
    "counters": Query(
        "Hardware counters by op (by range, if it matches no op) and metric",
        """
        select coalesce(s.name, c.name) as op, c.metric, count(*) as ranges, count(c.call) as joined,
               sum(c.value) as total, min(c.value) as least, median(c.value) as median, max(c.value) as most
        from kernel_counters c left join slices s on s.source = c.source and s.row = c.op
        where c.metric is not null group by coalesce(s.name, c.name), c.metric order by c.metric, total desc, op
        """,
    ),
    "critical_path": Query(
        "Parts of the critical path of the steps",
        """
        select what, coalesce(short, c.name) as name, count(*) as pieces, sum(duration_ns) / 1e6 as ms,
               100.0 * sum(duration_ns) / sum(sum(duration_ns)) over () as percent
        from critical_path c left join kernel_names k on c.name = k.name
        group by what, coalesce(short, c.name) order by ms desc
        """,
    ),
    "full_queue": Query(
        "Time in which a stream's launch queue was full (1024 works launched and not begun), by stream",
        """
        with events as (
          select source, rank, device, stream, launch_ns as time_ns, 1 as change from launches
          union all select source, rank, device, stream, launch_ns + delay_ns, -1 from launches),
        lengths as (
          select source, rank, device, stream, sum(change) over w as waiting, lead(time_ns) over w - time_ns as ns
          from events window w as (partition by source, device, stream order by time_ns, change))
        select rank, device, stream, max(waiting) as most_waiting,
               coalesce(sum(ns) filter (where waiting >= 1024), 0) / 1e6 as full_ms,
               100.0 * coalesce(sum(ns) filter (where waiting >= 1024), 0) / nullif(sum(ns), 0) as percent
        from lengths group by source, rank, device, stream order by full_ms desc, most_waiting desc
        """,
    ),
    "idle_streams": Query(
        "Idle time of each stream between its works: the host was late, or the work was queued",
        """
        with ordered as (
          select source, rank, device, stream, launch_ns, launch_ns + delay_ns as start_ns,
                 max(launch_ns + delay_ns + duration_ns) over (
                   partition by source, device, stream order by launch_ns + delay_ns
                   rows between unbounded preceding and 1 preceding) as idle_since_ns
          from launches)
        select rank, device, stream, count(*) as works,
               sum(case when launch_ns > idle_since_ns then greatest(start_ns - idle_since_ns, 0) else 0 end) / 1e6
                 as host_wait_ms,
               sum(case when launch_ns <= idle_since_ns then greatest(start_ns - idle_since_ns, 0) else 0 end) / 1e6
                 as queued_wait_ms
        from ordered group by source, rank, device, stream order by host_wait_ms desc
        """,
    ),
    "kernel_ranks": Query(
        "Kernels by short name and rank: sum, shares, shortest, mean, longest, spread",
        """
        select short as kernel, rank, count(*) as calls, sum(end_ns - start_ns) / 1e6 as ms,
               100.0 * sum(end_ns - start_ns) / sum(sum(end_ns - start_ns)) over (partition by source) as percent,
               min(end_ns - start_ns) / 1e3 as shortest_us, avg(end_ns - start_ns) / 1e3 as mean_us,
               max(end_ns - start_ns) / 1e3 as longest_us, stddev(end_ns - start_ns) / 1e3 as stddev_us
        from kernels join kernel_names using (name) group by source, rank, short order by ms desc
        """,
    ),
    "kernels": Query(
        "Kernels by short name: total, calls, mean, share of all kernel time",
        """
        select short as kernel, sum(end_ns - start_ns) / 1e6 as ms, count(*) as calls,
               avg(end_ns - start_ns) / 1e3 as mean_us, max(end_ns - start_ns) / 1e3 as longest_us,
               100.0 * sum(end_ns - start_ns) / sum(sum(end_ns - start_ns)) over () as percent
        from kernels join kernel_names using (name) group by short order by ms desc
        """,
    ),
    "launch_delays": Query(
        "From the launch call to the begin of the work, by op",
        """
        select op, count(*) as launches, median(delay_ns) / 1e3 as median_delay_us, max(delay_ns) / 1e3 as longest_us,
               avg(call_ns) / 1e3 as mean_call_us, sum(duration_ns) / 1e6 as work_ms
        from launches group by op order by launches desc
        """,
    ),
    "lines": Query(
        "Device time by source line",
        """
        select file, line, module, sum(device_ns) / 1e6 as device_ms, sum(host_ns) / 1e6 as host_ms, count(*) as calls
        from ops group by file, line, module order by device_ms desc
        """,
    ),
    "messages": Query(
        "Collectives as each rank saw them by operation, group and size; bandwidths are lower bounds: it may wait",
        """
        select rank, operation, description, group_size, message_bytes, dtype, algorithm, protocol, count(*) as calls,
               sum(duration_ns) / 1e6 as ms, min(duration_ns) / 1e3 as shortest_us,
               median(duration_ns) / 1e3 as median_us, max(message_bytes / nullif(duration_ns,
               0)) as best_algorithm_gb_per_s,
               max(bus_bytes / nullif(duration_ns, 0)) as best_bus_gb_per_s
        from messages group by source, rank, operation, description, group_size, message_bytes, dtype, algorithm,
        protocol
        order by ms desc
        """,
    ),
    "modules": Query(
        "Modules by their place in the module tree, with the device time launched inside their forward calls",
        """
        with recursive tree as (
          select source, row, regexp_replace(name, '^nn.Module: ', '') as path, name, host_ns, inner_device_ns,
                 inner_works
          from spans where name like 'nn.Module: %' and module_parent is null
          union all
          select s.source, s.row, t.path || '.' || regexp_replace(s.name, '^nn.Module: ', ''), s.name, s.host_ns,
                 s.inner_device_ns, s.inner_works
          from spans s join tree t on s.source = t.source and s.module_parent = t.row where s.name like 'nn.Module: %')
        select path, count(*) as calls, sum(inner_device_ns) / 1e6 as device_ms, sum(host_ns) / 1e6 as host_ms,
               sum(inner_works) as works
        from tree group by path order by device_ms desc, host_ms desc
        """,
    ),
    "op_flops": Query(
        "FLOPs and bytes of ops by hardware counters and by their shapes; null if a call lacks them",
        """
        select name as op, count(*) as calls, sum(kernels) as kernels,
               case when count(flops) = count(*) then sum(flops) end as flops,
               case when count(float16_flops) = count(*) then sum(float16_flops) end as float16_flops,
               case when count(modelled_flops) = count(*) then sum(modelled_flops) end as modelled_flops,
               case when count(dram_bytes) = count(*) then sum(dram_bytes) end as dram_bytes,
               case when count(modelled_bytes) = count(*) then sum(modelled_bytes) end as modelled_bytes,
               case when bool_or(tensor_cores) then 'yes' end as tensor_cores
        from counted_ops group by name order by flops desc nulls last, dram_bytes desc nulls last, op
        """,
    ),
    "op_kernels": Query(
        "Ops by the sequence of kernels that one call launches, with the delay from launch to begin",
        """
        with calls as (
          select l.source, k.op as row, any_value(l.op) as op, sum(l.duration_ns) as ns, avg(l.delay_ns) as delay_ns,
                 string_agg(coalesce(n.short, l.name), ' > ' order by l.launch_ns) as kernels
          from launches l join kernels k on l.work = 'kernels' and k.source = l.source and k.row = l.row
          left join kernel_names n on n.name = l.name
          where k.op is not null group by l.source, k.op)
        select op, kernels, count(*) as calls, sum(ns) / 1e6 as ms, avg(delay_ns) / 1e3 as mean_delay_us
        from calls group by op, kernels order by ms desc
        """,
    ),
    "op_profile": Query(
        "Instructions of XLA programs as a tree of program, kind and instruction; null columns are summed over",
        """
        with runs as (
          select module, regexp_replace(name, '([._][0-9]+)+$', '') as kind, name, end_ns - start_ns as ns
          from hlo_ops where not asynchronous and not encloses)
        select module as program, kind, name as instruction, count(*) as runs, sum(ns) / 1e6 as ms,
               100.0 * sum(ns) / (select sum(ns) from runs) as percent
        from runs group by rollup (module, kind, name) having count(*) > 0
        order by grouping(module) desc, max(sum(ns)) over (partition by module) desc, module, grouping(kind) desc,
                 max(sum(ns)) over (partition by module, kind) desc, kind, grouping(name) desc, ms desc, instruction
        """,
    ),
    "op_times": Query(
        "Ops by name: own and whole time on the host, and device time launched by them and inside them",
        """
        select name, count(*) as calls, sum(host_self_ns) / 1e6 as host_self_ms, sum(host_ns) / 1e6 as host_ms,
               sum(device_ns) / 1e6 as device_ms, sum(inner_device_ns) / 1e6 as inner_device_ms,
               sum(inner_works) as works
        from spans where kind = 'op' group by name order by inner_device_ms desc, host_self_ms desc
        """,
    ),
    "ops": Query(
        "Ops that launch device work, by name",
        """
        select name, sum(device_ns) / 1e6 as device_ms, sum(host_ns) / 1e6 as host_ms, count(*) as calls,
               sum(works) as works
        from ops group by name order by device_ms desc
        """,
    ),
    "percentiles": Query(
        "Percentiles of repeated calls: steps, annotations and outermost modules",
        """
        with calls as (
          select rank, 'step' as what, '(steps)' as name, end_ns - start_ns as ns from steps
          union all select rank, kind, name, host_ns from spans
          where kind = 'annotation' and name not like 'ProfilerStep#%'
          union all select rank, 'module', name, host_ns from spans
          where name like 'nn.Module: %' and module_parent is null)
        select rank, what, name, count(*) as calls, median(ns) / 1e6 as p50_ms, quantile_cont(ns, 0.9) / 1e6 as p90_ms,
               quantile_cont(ns, 0.95) / 1e6 as p95_ms, quantile_cont(ns, 0.99) / 1e6 as p99_ms,
               max(ns) / 1e6 as longest_ms
        from calls group by rank, what, name having count(*) > 1 order by rank, what, sum(ns) desc
        """,
    ),
    "queue": Query(
        "How many works were launched and not yet begun, seen at each launch: by device",
        """
        with events as (
          select source, rank, device, launch_ns as time_ns, 1 as change from launches
          union all select source, rank, device, launch_ns + delay_ns, -1 from launches),
        lengths as (
          select source, rank, device, change,
                 sum(change) over (partition by source, device order by time_ns, change) as waiting from events)
        select rank, device, count(*) as launches, median(waiting) as median_waiting, max(waiting) as most_waiting
        from lengths where change = 1 group by source, rank, device order by rank, device
        """,
    ),
    "sequences": Query(
        "Pairs of kernels that follow each other on a stream, by how often and by the time between them",
        """
        with ordered as (
          select short, end_ns - start_ns as own_ns, lead(short) over w as next,
                 lead(start_ns) over w - end_ns as gap_ns, lead(end_ns - start_ns) over w as next_ns
          from kernels join kernel_names using (name)
          window w as (partition by source, device, stream order by start_ns))
        select short as first, next as second, count(*) as times, sum(own_ns + next_ns) / 1e6 as ms,
               sum(greatest(gap_ns, 0)) / 1e6 as between_ms
        from ordered where next is not null group by short, next having count(*) > 1 order by times desc, ms desc
        """,
    ),
    "shapes": Query(
        "Ops by name and input shapes",
        """
        select name, shapes, count(*) as calls, sum(device_ns) / 1e6 as device_ms, avg(device_ns) / 1e3 as mean_us
        from ops group by name, shapes order by device_ms desc
        """,
    ),
    "short_kernels": Query(
        "Kernels by length: how many, and what share of all kernel time they take",
        """
        with lengths as (
          select end_ns - start_ns as ns, case when ns < 2000 then '1: below 2 us' when ns < 5000 then '2: 2 to 5 us'
                   when ns < 10000 then '3: 5 to 10 us' when ns < 50000 then '4: 10 to 50 us'
                   when ns < 500000 then '5: 50 to 500 us' else '6: 500 us and more' end as length
          from kernels)
        select length, count(*) as kernels, sum(ns) / 1e6 as ms, 100.0 * sum(ns) / sum(sum(ns)) over () as percent
        from lengths group by length order by length
        """,
    ),
    "step_breakdown": Query(
        "Each step of each device by what it was spent on; the parts sum to the step",
        """
        select rank, device, step,
               coalesce(sum(time_ns) filter (cause = 'input'), 0) / 1e6 as input_ms,
               coalesce(sum(time_ns) filter (cause = 'compilation'), 0) / 1e6 as compile_ms,
               coalesce(sum(time_ns) filter (cause = 'launch'), 0) / 1e6 as launch_ms,
               coalesce(sum(time_ns) filter (cause in ('sync', 'memory', 'collective_setup', 'garbage_collection',
                 'saving', 'other_ranks', 'sleeping', 'other_host', 'core_wait')), 0) / 1e6 as host_ms,
               coalesce(sum(time_ns) filter (cause = 'compute'), 0) / 1e6 as compute_ms,
               coalesce(sum(time_ns) filter (cause = 'exposed_communication'), 0) / 1e6 as communication_ms,
               coalesce(sum(time_ns) filter (cause = 'exposed_copy'), 0) / 1e6 as copy_ms,
               coalesce(sum(time_ns) filter (cause in ('dependency', 'unexplained')), 0) / 1e6 as other_idle_ms,
               sum(time_ns) / 1e6 as step_ms
        from accounts group by source, rank, device, step order by rank, device, step
        """,
    ),
    "stream_overlap": Query(
        "Time in which two streams of a device both ran a kernel or copy",
        """
        with work as (
          select source, rank, device, stream, start_ns, end_ns from kernels where end_ns > start_ns
          union all select source, rank, device, stream, start_ns, end_ns from copies where end_ns > start_ns),
        marked as (
          select *, case when start_ns <= max(end_ns) over (
            partition by source, device, stream order by start_ns,
            end_ns rows between unbounded preceding and 1 preceding) then 0 else 1 end as begins from work),
        numbered as (
          select *, sum(begins) over (partition by source, device, stream order by start_ns, end_ns
            rows unbounded preceding) as number from marked),
        busy as (
          select source, rank, device, stream, min(start_ns) as start_ns, max(end_ns) as end_ns
          from numbered group by source, rank, device, stream, number)
        select a.rank, a.device, a.stream as stream, b.stream as other,
               sum(least(a.end_ns, b.end_ns) - greatest(a.start_ns, b.start_ns)) / 1e6 as both_ms
        from busy a join busy b on a.source = b.source and a.device = b.device and a.stream <= b.stream
          and a.start_ns < b.end_ns and b.start_ns < a.end_ns
        group by a.source, a.rank, a.device, a.stream, b.stream order by a.rank, a.device, a.stream, b.stream
        """,
    ),
    "tensor_cores": Query(
        "Share of kernel time in kernels that use tensor (matrix) cores by their name, with the precision named",
        """
        select case tensor_cores when true then 'tensor cores' when false then 'plain float32' else 'not said' end
                 as by_name, precision, count(*) as kernels, sum(end_ns - start_ns) / 1e6 as ms,
               100.0 * sum(end_ns - start_ns) / sum(sum(end_ns - start_ns)) over () as percent
        from kernels join kernel_names using (name) group by tensor_cores, precision order by ms desc
        """,
    ),
    "waits": Query(
        "Calls in which the host waits for the device, by call and enclosing span",
        """
        select c.name as call, s.name as inside, count(*) as calls, sum(c.end_ns - c.start_ns) / 1e6 as ms
        from calls c left join slices s on s.source = c.source and s.row = c.parent
        where c.kind = 'sync' group by c.name, s.name order by ms desc
        """,
    ),
}
"""By name, in alphabetical order."""
