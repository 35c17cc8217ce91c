"""What a program has set in its modules and libraries, and the source of its modules.

Workers import modules again, so they do not see what the main block has changed. A resumed run may import other code.
"""

from __future__ import annotations

import ast
import hashlib
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_SCRIPT = ("__main__", "__mp_main__")  # multiprocessing imports the script under the second name
_OTHERS = {*_SCRIPT, "shmppo", *sys.stdlib_module_names}  # modules that are no part of the user's program
_INSTALLED = {"site-packages", "dist-packages"}


_changed_by_runs: set[str] = set()  # names as in `plain_values`


@contextmanager
def values_of_program(modules: Collection[str]) -> Iterator[dict[str, str]]:
    """Yield the `plain_values` that the program has set, for the time of a run.

    What environments change in this process, such as the number of them, is left out in later runs.
    """
    before = plain_values(modules)
    try:
        yield {name: value for name, value in before.items() if name not in _changed_by_runs}
    finally:
        imported = {f"{module}.{name}": repr(value) for module in modules for name, value in _literals(module).items()}
        now, known = plain_values(modules), imported | before
        _changed_by_runs.update(name for name, value in now.items() if known.get(name, value) != value)


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
        values["torch.backends.mkldnn.enabled"] = repr(torch.backends.mkldnn.enabled)
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
        The digest of each imported module that is not installed, by name, and the version of each installed package to
        which a module of `modules` belongs.
    """
    named = {*modules}
    digests = {}
    for name, module in [*sys.modules.items()]:
        file = getattr(module, "__file__", None)
        own = name.partition(".")[0] not in _OTHERS or (name == "__main__" and name in named)
        if own and isinstance(file, str) and not _INSTALLED.intersection(file.split(os.sep)):
            with suppress(OSError):
                digests[name] = hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16]
    for package in {module.partition(".")[0] for module in named}:
        with suppress(metadata.PackageNotFoundError):
            digests[package] = metadata.version(package)
    return digests
