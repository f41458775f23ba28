"""Queries that are ready, by name. Each is plain SQL over the documented tables: a start for one of your own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Query:
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
    "collectives": Query(
        "Collectives of a job: how long each rank waited for the last one",
        """
        select operation, members, rank, count(*) as calls, sum(duration_ns) / 1e6 as ms, sum(wait_ns) / 1e6 as wait_ms,
               sum(core_ns) / 1e6 as transfer_ms, max(message_bytes) as largest_bytes
        from collective_sides group by operation, members, rank order by wait_ms desc
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
    "critical_path": Query(
        "What the critical path of the steps is made of",
        """
        select what, coalesce(short, c.name) as name, count(*) as pieces, sum(duration_ns) / 1e6 as ms,
               100.0 * sum(duration_ns) / sum(sum(duration_ns)) over () as percent
        from critical_path c left join kernel_names k on c.name = k.name
        group by what, coalesce(short, c.name) order by ms desc
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
    "ops": Query(
        "Ops that launch device work, by name",
        """
        select name, sum(device_ns) / 1e6 as device_ms, sum(host_ns) / 1e6 as host_ms, count(*) as calls,
               sum(works) as works
        from ops group by name order by device_ms desc
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
