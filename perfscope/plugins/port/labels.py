"""The layer of every piece of a step, by the weights that it reads and the values that it computes from.

The same rules hold for both frameworks, because only one of them has names of modules for every op:

* a piece that reads a weight belongs to the layer of that weight, and so do statistics that only a norm reads;
* any other piece of the forward pass belongs to the last layer before it. A product without a weight begins the core
  of that layer (scores of attention), which lasts until the next weight;
* a piece of the backward pass belongs to the layer of the forward op that it differentiates (PyTorch records it), of
  the weight whose gradient it computes, or of the forward pieces of its line. Among several layers of one line it is
  the last one that the backward pass has not left.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from msgspec import Struct

from perfscope.plugins.port.pieces import Piece, Program


class Layer(Struct, frozen=True, kw_only=True):
    """Weights that are used together: a linear layer with its bias, a norm."""

    name: str
    weights: tuple[int, ...]
    elements: int
    """Elements of its weights, of one layer if it is stacked."""
    stacked: int
    flops: int
    """FLOPs of the products with its weights in the forward pass, of one layer."""
    first: int
    """First piece of the forward pass that uses it."""


class Label(Struct, frozen=True, order=True):
    """Place of a piece: the rank of its layer in the order of the forward pass."""

    rank: float
    layer: int
    core: bool = False

    @property
    def key(self) -> tuple[float, bool]:
        """Order among labels."""
        return self.rank, self.core


def labels_of(program: Program, layers: Sequence[Layer], ranks: Sequence[float]) -> list[Label | None]:
    """The label of each piece; ``None`` for the optimizer, and where nothing leads to a layer."""
    return _Labels(program, layers, ranks).found


class _Labels:
    def __init__(self, program: Program, layers: Sequence[Layer], ranks: Sequence[float]) -> None:
        self.pieces, self.layers, self.ranks = program.pieces, layers, ranks
        self.layer_of = {weight: number for number, layer in enumerate(layers) for weight in layer.weights}
        self.users: dict[int, list[int]] = defaultdict(list)
        for number, piece in enumerate(self.pieces):
            for one in piece.reads:
                self.users[one].append(number)
        self.found: list[Label | None] = [None] * len(self.pieces)
        self.lines: dict[tuple[str, str | None, int | None], set[Label]] = defaultdict(set)
        """Labels of the forward pass by scope and line: libraries name scopes, and their lines are not the user's."""
        self.saved = self._saved()
        self.pulled = self._norms()
        for number, piece in enumerate(self.pieces):
            if piece.phase == "forward":
                self.found[number] = self._forward(number, piece)
        self._from_users("forward")
        for label, piece in zip(self.found, self.pieces, strict=True):
            if label is not None and piece.line is not None and piece.kind not in ("move", "cast", "repeat"):
                self.lines[piece.scope, piece.file, piece.line].add(label)
        for number, piece in enumerate(self.pieces):
            if piece.phase == "backward":
                self.found[number] = self._backward(number, piece)
        self._from_users("backward")

    def _label(self, layer: int, *, core: bool = False) -> Label:
        return Label(self.ranks[layer], layer, core)

    def _own(self, piece: Piece) -> Label | None:
        """The layer of the weights that a piece reads, the last one of several."""
        layers = [self._label(self.layer_of[one]) for one in piece.weights if one in self.layer_of]
        return max(layers, key=lambda label: label.key, default=None)

    def _is_gradient(self, number: int) -> bool:
        piece = self.pieces[number]
        gradient = piece.phase == "backward" and piece.data and not piece.recompute
        return gradient and not piece.carries and number not in self.saved

    def _saved(self) -> set[int]:
        """Pieces of the backward pass that only move values of the forward pass: slices of what a loop kept."""
        saved: set[int] = set()
        for number, piece in enumerate(self.pieces):
            inputs = [one for one in piece.reads if self.pieces[one].data]
            kept = inputs and all(
                self.pieces[one].phase == "forward" or self.pieces[one].recompute or one in saved for one in inputs
            )
            if kept and piece.phase == "backward" and piece.kind in ("move", "cast", "repeat"):
                saved.add(number)
        return saved

    def _norms(self) -> list[int | None]:
        """By piece: the layer without a product that alone reads its value."""
        products = {self.layer_of.get(one) for piece in self.pieces if piece.kind == "product" for one in piece.weights}
        mixed = -1
        pulled: list[int | None] = [None] * len(self.pieces)
        for number in range(len(self.pieces) - 1, -1, -1):
            piece = self.pieces[number]
            if piece.phase != "forward":
                continue
            own = self._own(piece)
            if own is not None and not piece.carries:
                pulled[number] = own.layer if own.layer not in products and piece.reads else mixed
            elif piece.kind in ("product", "attention"):
                pulled[number] = mixed
            else:
                targets = {pulled[user] for user in self.users[number] if self.pieces[user].phase == "forward"} - {None}
                pulled[number] = targets.pop() if len(targets) == 1 else mixed if targets else None
        for number, piece in enumerate(self.pieces):
            if pulled[number] == mixed or piece.kind in ("product", "attention"):
                pulled[number] = None
        return pulled

    def _forward(self, number: int, piece: Piece) -> Label | None:
        own = self._own(piece)
        if own is not None:
            return own
        pulled = self.pulled[number]
        if pulled is not None and piece.reads:
            return self._label(pulled)
        return self._after(piece, [one for one in piece.reads if self.pieces[one].phase == "forward"])

    def _after(self, piece: Piece, inputs: Sequence[int]) -> Label | None:
        """The last layer that the inputs come from; its core from a product on."""
        known = [one for one in inputs if self.pieces[one].data and not self.pieces[one].carries]
        before = [label for one in known if (label := self.found[one]) is not None]
        if not before:
            return None
        last = max(before, key=lambda label: label.key)
        return self._label(last.layer, core=last.core or piece.kind in ("product", "attention"))

    def _backward(self, number: int, piece: Piece) -> Label | None:
        own = self._own(piece)
        if own is not None:
            return own
        if piece.origin is not None and self.found[piece.origin] is not None:
            return self.found[piece.origin]
        behind = [label for one in piece.reads if self._is_gradient(one) and (label := self.found[one]) is not None]
        if piece.recompute:
            label = self._after(piece, piece.reads)
            if label is not None:
                return label
        moves = piece.kind in ("move", "cast", "repeat")
        if not moves:
            updated = self._updated(number)
            if updated is not None:
                return self._label(updated)
        bound = min((label.key for label in behind), default=None)
        choices = () if moves else self.lines.get((piece.scope, piece.file, piece.line), ())
        chosen = [label for label in choices if bound is None or label.key <= bound]
        if chosen:
            return max(chosen, key=lambda label: label.key)
        if behind:
            return min(behind, key=lambda label: label.key)
        saved = [label for one in piece.reads if self.pieces[one].data and (label := self.found[one]) is not None]
        return max(saved, key=lambda label: label.key, default=None)

    def _updated(self, number: int) -> int | None:
        """The layer whose weights the optimizer updates by this value; ``None`` for none or several."""
        size = self.pieces[number].size
        layers: set[int] = set()
        waiting, seen = [number], {number}
        while waiting:
            for user in self.users[waiting.pop()]:
                piece = self.pieces[user]
                follows = piece.phase == "optimizer" or piece.kind in ("move", "cast") or piece.added
                if user in seen or not follows or piece.size < size:
                    continue
                seen.add(user)
                waiting.append(user)
                layers.update(self.layer_of[one] for one in piece.updates if one in self.layer_of)
        return layers.pop() if len(layers) == 1 else None

    def _from_users(self, phase: str) -> None:
        """Give a piece that reads nothing, such as a mask, the first label among its readers."""
        for number in range(len(self.pieces) - 1, -1, -1):
            if self.found[number] is None and self.pieces[number].phase == phase:
                known = [label for user in self.users[number] if (label := self.found[user]) is not None]
                self.found[number] = min(known, key=lambda label: label.key, default=None)
