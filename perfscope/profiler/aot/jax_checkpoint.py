"""``--checkpoint POLICY``: the layers of a JAX program under another checkpoint policy, without editing the program.

What is differentiated (``jax.grad``, ``jax.value_and_grad``, ``jax.vjp``) is written down as a jaxpr first. There a
checkpoint of the program's layers gets the policy, or is taken out; where layers have none, the body of their scan, or
the function that a Python loop calls, gets what ``jax.checkpoint(layer, policy=...)`` would have put around it. The
result is differentiated as jax does. Nothing else of the program is touched, and what was done is told line by line.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from perfscope.profiler.aot import jax_abstract_compat as compat
from perfscope.profiler.aot.checkpoint_asked import CheckpointAsked
from perfscope.profiler.aot.jax_checkpoint_apply import Edit
from perfscope.profiler.aot.jax_checkpoint_edit import is_call, is_checkpoint
from perfscope.profiler.aot.jax_checkpoint_sites import Kind, Site, inner_of, sites_of
from perfscope.profiler.aot.jax_seen_lines import Line, line_of_user
from perfscope.profiler.errors import DataError

_AD = "jax._src.interpreters.ad"
NEEDED = (
    ("jax._src.ad_checkpoint", "remat_p"),
    ("jax._src.api_util", "debug_info"),
    ("jax._src.core", "DropVar"),
    ("jax._src.core", "Jaxpr"),
    ("jax._src.core", "Literal"),
    ("jax._src.core", "Var"),
    ("jax._src.core", "eqn_effects"),
    ("jax._src.core", "eval_jaxpr"),
    ("jax._src.core", "join_effects"),
    ("jax._src.core", "new_jaxpr_eqn"),
    ("jax._src.interpreters.partial_eval", "convert_constvars_jaxpr"),
    ("jax._src.interpreters.partial_eval", "trace_to_jaxpr"),
    ("jax._src.lax.control_flow.loops", "scan_p"),
    ("jax._src.source_info_util", "is_user_filename"),
    ("jax._src.source_info_util", "raw_frame_to_frame"),
    ("jax._src.source_info_util", "user_frames"),
    ("jax._src.tree_util", "FlatTree"),
)
"""What is used of jax besides `jax_abstract_compat.NEEDED`, each where jax 0.10.2 has it."""
How = Literal["wrapped", "replaced", "removed", "left"]
MOST_TOLD = 4
"""Places that an error names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What became of one place."""

    kind: Kind
    how: How
    at: Line | None
    written: Line | None
    count: int
    why: str = ""
    """Why it was left."""

    def words(self) -> str:
        """``the scan at train.py:35 (12 turns)``."""
        place = "" if self.at is None else f" at {self.at}"
        if self.kind == "scan":
            return f"the scan{place} ({self.count:,} turns)"
        if self.kind == "calls":
            return f"the function{_of(self.written)} that is called {self.count:,} times alike{place}"
        return f"the checkpoint{place}"


@dataclass(slots=True, kw_only=True)
class Checkpoints:
    """What one request makes of a program."""

    asked: CheckpointAsked
    told: dict[Told, None] = field(default_factory=dict)
    """In the order they were met."""
    differentiated: int = 0
    """Functions that were looked at."""
    unseen: list[str] = field(default_factory=list)
    """Why functions could not be looked at."""
    nameless: bool = False
    """``names`` was asked for where the program names nothing, or not that."""
    _here: threading.local = field(default_factory=threading.local)
    _made: dict[int, tuple[Any, Any]] = field(default_factory=dict)

    @property
    def changed(self) -> list[Told]:
        """Where something was done."""
        return [one for one in self.told if one.how != "left"]

    @property
    def left(self) -> list[Told]:
        """Loops and checkpoints that are no layers, or were not named."""
        return [one for one in self.told if one.how == "left"]

    def notes(self) -> list[str]:
        """What a reader of the compiled program must know. ``DataError`` where nothing could be done."""
        option = f"--checkpoint {self.asked}"
        if not self.changed and (self.asked.word != "none" or self.asked.spots or self.unseen):
            raise DataError(f"{option}: nothing could be checkpointed: {self._why()}")
        verbs = {"wrapped": "checkpointed", "replaced": "under this policy", "removed": "taken out"}
        notes = [f"{option}: {one.words()}: {verbs[one.how]}" for one in self.changed]
        if not self.changed:
            notes = [f"{option}: its layers have no checkpoint; compiled as it is"]
        notes += [f"{option}: left as it is: {one.words()}: {one.why}" for one in self.left]
        return [*notes, *(f"{option}: not looked at: {why}" for why in self.unseen)]

    def linearize(self, real: Any) -> Any:
        """``jax._src.interpreters.ad.linearize``, through which every reverse pass goes."""

        def linearize(fun: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
            if compat.is_real() or getattr(self._here, "within", False):
                return real(fun, *arguments, **named)
            self._here.within = True
            try:
                return real(self._staged(fun), *arguments, **named)
            finally:
                self._here.within = False

        return linearize

    def _staged(self, fun: Callable[..., Any]) -> Callable[..., Any]:
        """The function by way of its jaxpr."""
        import jax

        flat_tree, typeof = compat.get("jax._src.tree_util", "FlatTree"), compat.get("jax._src.core", "typeof")

        @functools.wraps(fun)
        def run(*arguments: Any) -> Any:
            self.differentiated += 1
            given = flat_tree.flatten((arguments, {}))
            others: list[Any] = []

            def traced(*inner: Any) -> list[Any]:
                leaves, tree = jax.tree.flatten(fun(*inner))
                tracers = [isinstance(leaf, jax.core.Tracer) for leaf in leaves]
                others[:] = [tree, [None if one else leaf for leaf, one in zip(leaves, tracers, strict=True)], tracers]
                return [leaf for leaf, one in zip(leaves, tracers, strict=True) if one]

            info = compat.get("jax._src.api_util", "debug_info")("linearize", fun, arguments, {})
            try:
                closed, _ = compat.get("jax._src.interpreters.partial_eval", "trace_to_jaxpr")(
                    traced, given.map(typeof), info
                )
            except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError) as error:
                where = line_of_user()
                self.unseen.append(f"what is differentiated{_at(where)} reads values ({type(error).__name__})")
                return fun(*arguments)
            changed = self.rewritten(closed.jaxpr)
            found = iter(compat.get("jax._src.core", "eval_jaxpr")(changed, closed.consts, *given.vals))
            tree, leaves, tracers = others
            return tree.unflatten([next(found) if one else leaf for leaf, one in zip(leaves, tracers, strict=True)])

        return run

    def rewritten(self, jaxpr: Any) -> Any:
        """A function's jaxpr with the policy; the same object where nothing changes."""
        sites = sites_of(jaxpr)
        chosen = self._chosen(sites)
        policy = self._policy(jaxpr)
        if policy is _NAMELESS:
            self.nameless, chosen = True, []
        removes = self.asked.word == "none"
        picked = {id(site.eqn) for site in chosen if site.kind == "checkpoint"}
        loops: set[int] = set()
        for site in sites:
            how: How = "left"
            if site.kind == "checkpoint" and site in chosen:
                how = "removed" if removes else "replaced"
            elif site in chosen and not removes and not (site.kind == "scan" and _holds(site, picked)):
                how = "wrapped"
            elif site in chosen:
                continue  # the checkpoints in it are told, or it has none to take out
            if how == "wrapped" and site.kind == "scan":
                loops.add(id(site.eqn))
            why = "" if how != "left" else site.why or "not named" if not self.nameless else "nothing is named"
            self.told[Told(kind=site.kind, how=how, at=site.at, written=site.written, count=site.count, why=why)] = None
        groups = [site for site in chosen if site.kind == "calls" and not removes]
        if not picked and not loops and not groups:
            return jaxpr
        edit = Edit(policy=None if removes else policy, removes=removes, picked=picked, loops=loops, groups=groups)
        return edit.of(jaxpr)

    def _chosen(self, sites: list[Site]) -> list[Site]:
        """The layers, or what is at the lines that were named."""
        if not self.asked.spots:
            return [site for site in sites if site.layer]
        named = [site for site in sites if any(_is_at(site, spot) for spot in self.asked.spots)]
        direct = {id(one) for site in named if site.kind == "scan" for one in _checkpoints_in(inner_of(site.eqn))}
        return [site for site in sites if site in named or id(site.eqn) in direct]

    def _policy(self, jaxpr: Any) -> Any:
        """What ``jax.checkpoint`` gets; `_NAMELESS` where there is no such name."""
        from jax import checkpoint_policies as policies

        word = self.asked.word
        if word == "dots":
            return policies.dots_with_no_batch_dims_saveable
        if word == "all_dots":
            return policies.dots_saveable
        if word != "names":
            return None
        named = _names(jaxpr)
        wanted = self.asked.names or tuple(sorted(named))
        return policies.save_only_these_names(*wanted) if wanted and named.issuperset(wanted) else _NAMELESS

    def _why(self) -> str:
        """Why nothing was done, in words."""
        if not self.differentiated:
            return "the program differentiates nothing (jax.grad, jax.vjp) as far as it was followed"
        if self.nameless:
            wanted = f" any of {', '.join(self.asked.names)}" if self.asked.names else " anything"
            return f"the program does not name{wanted} (jax.ad_checkpoint.checkpoint_name)"
        if self.unseen and not self.told:
            return self.unseen[0]
        if self.asked.spots:
            spots = ", ".join(map(str, self.asked.spots))
            there = [one.words() for one in self.told][:MOST_TOLD]
            return f"nothing at {spots}; there is {'; '.join(there) or 'no scan and no checkpoint'}"
        there = [f"{one.words()}{f' ({one.why})' if one.why else ''}" for one in self.told][:MOST_TOLD]
        if there:
            return f"nothing of it is a layer: {'; '.join(there)}; POLICY@FILE:LINE names one all the same"
        return (
            "what it differentiates has no loop over layers (jax.lax.scan), no jax.checkpoint, and no function that is "
            "called several times alike"
        )


class _Nameless:
    """No policy: the names are not there."""


_NAMELESS = _Nameless()


@contextlib.contextmanager
def checkpointed(asked: CheckpointAsked | None) -> Iterator[Checkpoints | None]:
    """Inside, what the program differentiates has the policy; None: the program as it is."""
    if asked is None:
        yield None
        return
    _check()
    book = Checkpoints(asked=asked)
    with compat.replaced(importlib.import_module(_AD), "linearize", book.linearize):
        yield book


def _check() -> None:
    """``DataError`` with one line where this jax is not one that we know."""
    import jax

    linearize = getattr(importlib.import_module(_AD), "linearize", None)
    taken = tuple(inspect.signature(linearize).parameters)[:2] if linearize is not None else ()
    missing = compat.missing(NEEDED) or ([] if taken == ("traceable", "primals_ft") else [f"{_AD}.linearize"])
    if missing:
        raise DataError(
            f"this jax ({jax.__version__}) is not one that --checkpoint can be used with: it has no {missing[0]} as "
            "jax 0.10.2 has it"
        )


def _is_at(site: Site, spot: Any) -> bool:
    return any(place is not None and spot.is_at(place.file, place.line) for place in (site.at, site.written))


def _checkpoints_in(jaxpr: Any) -> Iterator[Any]:
    """Checkpoints of a loop's body that are in no loop of it."""
    for eqn in jaxpr.eqns:
        if is_checkpoint(eqn):
            yield eqn
        if is_checkpoint(eqn) or is_call(eqn) or eqn.primitive.name == "shard_map":
            yield from _checkpoints_in(inner_of(eqn))


def _holds(site: Site, picked: set[int]) -> bool:
    return any(id(one) in picked for one in _checkpoints_in(inner_of(site.eqn)))


def _names(jaxpr: Any) -> set[str]:
    """What ``checkpoint_name`` names in a jaxpr and all inside of it."""
    found = {str(eqn.params["name"]) for eqn in jaxpr.eqns if eqn.primitive.name == "name"}
    inside = compat.get("jax._src.core", "jaxprs_in_params")
    return found.union(*(_names(inner) for eqn in jaxpr.eqns for inner in inside(eqn.params)))


def _at(line: Line | None) -> str:
    return "" if line is None else f" at {line}"


def _of(line: Line | None) -> str:
    return "" if line is None else f" of {line}"
