"""Finds the framework of a program from its imports, without importing or running anything."""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.metadata
import importlib.util
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

from perfscope.model.errors import NotStartedError
from perfscope.plugins.ahead.request import Framework, Request

MAX_SOURCE_FILES = 500
"""Most modules of the program that are read."""
MAX_SOURCE_BYTES = 4 << 20
"""Most bytes of a source file; larger ones are data."""
FRAMEWORK_PACKAGES: dict[str, Framework] = {
    "chex": "jax", "equinox": "jax", "flax": "jax", "haiku": "jax", "jax": "jax", "optax": "jax", "orbax": "jax",
    "accelerate": "torch", "deepspeed": "torch", "lightning": "torch", "pytorch_lightning": "torch", "torch": "torch",
    "torchvision": "torch", "transformers": "torch",
}  # fmt: skip
"""Packages that belong to one framework. For other packages their requirements decide."""
MAX_DISTRIBUTIONS = 500
"""Most installed packages whose requirements are read."""
_REQUIREMENT = re.compile(r"[\w.-]+")


def frameworks_of(arguments: tuple[str, ...], *, module: bool) -> tuple[Framework, ...]:
    """``("jax",)``, ``("torch",)``, both or none, sorted.

    ``NotStartedError`` if the program does not exist, or is not Python.
    """
    path = [str(Path.cwd()) if module else str(Path(arguments[0]).resolve().parent), *sys.path]
    first = _module_file(arguments[0], path) if module else Path(arguments[0])
    if first is None or not first.is_file():
        raise NotStartedError(f"{arguments[0]}: no such {'module' if module else 'file'}")
    _must_parse(first, arguments[0])
    own = arguments[0].partition(".")[0] if module else ""
    frameworks: set[Framework] = set()
    others: set[str] = set()
    seen: set[Path] = set()
    left = [first]
    while left and len(seen) < MAX_SOURCE_FILES:
        file = left.pop()
        if file in seen:
            continue
        seen.add(file)
        for name in _imports(file):
            top = name.partition(".")[0]
            if top in FRAMEWORK_PACKAGES:
                frameworks.add(FRAMEWORK_PACKAGES[top])
            elif top not in sys.stdlib_module_names:
                home = _module_file(name, path) or _module_file(name.rpartition(".")[0], path)
                if home is not None and (top == own or "site-packages" not in home.parts):
                    left.append(home)
                else:
                    others.add(top)
    return tuple(sorted(frameworks or _required_by(others)))


def _required_by(packages: set[str]) -> set[Framework]:
    """Frameworks that installed packages require, directly or through others; extras do not count."""
    distributions = importlib.metadata.packages_distributions() if packages else {}
    left = [name for package in packages for name in distributions.get(package, ())]
    frameworks: set[Framework] = set()
    seen: set[str] = set()
    while left and len(seen) < MAX_DISTRIBUTIONS:
        name = left.pop()
        if name.lower() in FRAMEWORK_PACKAGES:
            frameworks.add(FRAMEWORK_PACKAGES[name.lower()])
        elif name not in seen:
            seen.add(name)
            try:
                required = importlib.metadata.requires(name) or ()
            except importlib.metadata.PackageNotFoundError:
                continue
            found = (_REQUIREMENT.match(text) for text in required if "extra ==" not in text)
            left += [match[0] for match in found if match is not None]
    return frameworks


def _must_parse(file: Path, shown: str) -> None:
    try:
        if file.stat().st_size <= MAX_SOURCE_BYTES:
            ast.parse(file.read_bytes())
    except SyntaxError as error:
        raise NotStartedError(f"{shown}:{error.lineno}: {error.msg}") from error
    except (OSError, ValueError, RecursionError):
        return  # the child reports it, if it matters


def _imports(file: Path) -> Iterator[str]:
    """Dotted names that a file imports, also within functions; for relative imports only siblings."""
    try:
        if file.stat().st_size > MAX_SOURCE_BYTES:
            return
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 1:
            package = _package_of(file)
            if package:
                inner = f"{package}.{node.module}" if node.module else package
                yield inner
                yield from (f"{inner}.{alias.name}" for alias in node.names)


def _package_of(file: Path) -> str:
    names: list[str] = []
    folder = file.resolve().parent
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    return ".".join(names)


def _module_file(name: str, path: list[str]) -> Path | None:
    """The file of a module, found without importing its packages."""
    where: list[str] | None = path
    spec: importlib.machinery.ModuleSpec | None = None
    if not name:
        return None
    for part in name.split("."):
        if where is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(part, where)
        if spec is None:
            return _editable_module_file(name) if where is path else None
        where = None if spec.submodule_search_locations is None else list(spec.submodule_search_locations)
    if spec is None:
        return None
    if where is not None:
        main = Path(where[0]) / "__main__.py" if where else None
        origin = None if spec.origin is None else Path(spec.origin)
        return origin if main is None or not main.is_file() else main
    return None if spec.origin is None else Path(spec.origin)


def _editable_module_file(name: str) -> Path | None:
    """A module found by an editable installation's finder: mostly ours."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    return None if spec is None or spec.origin in (None, "built-in", "frozen") else Path(str(spec.origin))


# Runs the user's program in this process as plain Python would: its arguments, its path, its ``__main__``.


def run_program(request: Request) -> None:
    """Run it to its end. Exceptions are its own; leaving with code 0 counts as its end."""
    sys.argv = [*request.arguments]
    try:
        if request.module:
            _first_on_path(str(Path.cwd()))
            runpy.run_module(request.arguments[0], run_name="__main__", alter_sys=True)
        else:
            script = Path(request.arguments[0])
            _first_on_path(str(script.resolve().parent))
            runpy.run_path(str(script), run_name="__main__")
    except SystemExit as left:
        if left.code not in (None, 0):
            raise


def _first_on_path(folder: str) -> None:
    if not sys.flags.safe_path and sys.path[:1] != [folder]:
        sys.path.insert(0, folder)
