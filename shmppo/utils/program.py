"""What a program has set in its modules and libraries, and the source of its modules.

Workers import modules again, so they do not see what the main block has changed. A resumed run may import other code.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
# Modules that are no part of the user's program. multiprocessing imports the script under the first name.
_OTHERS = {"__mp_main__", "shmppo", *sys.stdlib_module_names}
_INSTALLED = {"site-packages", "dist-packages"}
_left_by_inspections: dict[str, str] = {}
"""What inspected environments have changed in this process, as in `plain_values`."""


@contextmanager
def values_of_program(modules: Collection[str]) -> Iterator[dict[str, str]]:
    """Yield the `plain_values` that the program has set, before an inspection of the environment.

    What the inspection changes, such as a number of environments that the module counts, was not set by the program.
    So later runs leave it out.
    """
    before = plain_values(modules)
    try:
        yield {name: value for name, value in before.items() if _left_by_inspections.get(name) != value}
    finally:
        imported = {f"{module}.{name}": repr(value) for module in modules for name, value in _literals(module).items()}
        now, known = plain_values(modules), imported | before
        _left_by_inspections.update({name: value for name, value in now.items() if known.get(name, value) != value})


def plain_values(modules: Iterable[str]) -> dict[str, str]:
    """Return numbers and texts in modules that are imported, and settings of NumPy and torch.

    Only names count to which the source assigns a literal: others, such as the time, may differ in each process.

    Returns:
        The repr of each value by the name MODULE.NAME.
    """
    values = {
        f"{module}.{name}": repr(value)
        for module in modules
        for name in _literals(module)
        if is_plain(value := getattr(sys.modules[module], name, None))
    }
    values["numpy.geterr()"] = repr(np.geterr())
    if torch := sys.modules.get("torch"):
        values["torch.get_default_dtype()"] = repr(torch.get_default_dtype())
    return values


def _literals(module: str) -> dict[str, Any]:
    """Return the literals that the source of an imported module assigns outside of functions and blocks, by name."""
    literals = {}
    with suppress(KeyError, OSError, SyntaxError, ValueError):  # it is not imported, or has no source
        for node in ast.parse(Path(str(getattr(sys.modules[module], "__file__", ""))).read_text()).body:
            match node:
                case (
                    ast.Assign(targets=[ast.Name(id=name)], value=ast.expr() as value)
                    | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                ):
                    with suppress(ValueError):
                        literals[name] = ast.literal_eval(value)
    return literals


def is_plain(value: Any) -> bool:
    """Whether a value is a number, a text, None, or a tuple of such values."""
    return isinstance(value, _PLAIN) or (isinstance(value, tuple) and all(map(is_plain, value)))


def changed_value(before: Mapping[str, str], modules: Iterable[str]) -> str | None:
    """Return a sentence about the first value of `before` that is another one in this process, or None.

    Args:
        before: from `plain_values`, in the program that has started the run.
        modules: see `plain_values`.
    """
    for name, value in plain_values(modules).items():
        if before.get(name, value) != value:
            return f"{name} is {before[name]} in the program that started the run, but {value} in workers"
    return None


def source_digests(modules: Iterable[str]) -> dict[str, str]:
    """Return what identifies the code of a program: a digest of each of its modules, and versions of packages.

    Args:
        modules: those that the configuration names.

    Returns:
        By name: the digest of each module of `modules`, of what these import, directly or not, and of each imported
        module that belongs to their packages or lies below the current directory or that of the script; and the version
        of each installed package to which a module of `modules` belongs. Installed modules have no digest.
    """
    todo, files = [*modules], dict[str, str]()
    packages = {module.partition(".")[0] for module in todo}
    while todo:
        name = todo.pop()
        if name not in files and (file := _own_file(name)) is not None:
            files[name] = file
            todo += _imports(file, name)
    script = getattr(sys.modules["__main__"], "__file__", None)
    folders = [Path.cwd(), *([Path(script).resolve().parent] if script else [])]
    roots = tuple(os.path.join(folder, "") for folder in folders)
    for name in sorted({*sys.modules} - {"__main__"}):  # the script counts only if it is named or imported
        file = _own_file(name)
        if file is not None and (name.partition(".")[0] in packages or file.startswith(roots)):
            files[name] = file
    digests = {}
    for name, file in files.items():
        with suppress(OSError):
            digests[name] = hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16]
    for package in packages:
        with suppress(metadata.PackageNotFoundError):
            digests[package] = metadata.version(package)
    return digests


def _own_file(name: str) -> str | None:
    """Return the file of a module of the user, which need not be imported yet, or None."""
    top, parent, file = name.partition(".")[0], name.rpartition(".")[0], None
    if top in _OTHERS:
        return None
    if name in sys.modules:
        file = getattr(sys.modules[name], "__file__", None)
    elif not parent or parent in sys.modules:  # otherwise, `find_spec` would import the parent
        with suppress(ImportError, ValueError):
            file = getattr(importlib.util.find_spec(name), "origin", None)
    if isinstance(file, str) and not _INSTALLED.intersection(file.split(os.sep)):
        return os.path.abspath(file)
    return None


def _imports(file: str, name: str) -> list[str]:
    """Return the names of what a module imports, also in its functions: of modules, and of parts of them."""
    names = []
    package = name if file.endswith("__init__.py") else name.rpartition(".")[0]
    with suppress(ImportError, OSError, SyntaxError, ValueError):  # it is no Python
        for node in ast.walk(ast.parse(Path(file).read_bytes())):
            if isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                module = importlib.util.resolve_name("." * node.level + (node.module or ""), package or None)
                names += [module, *(f"{module}.{alias.name}" for alias in node.names)]
    return names
