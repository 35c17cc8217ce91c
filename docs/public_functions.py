"""Extension of Griffe, which reads the docstrings: `shmppo.train` is the function, and not the package of that name."""

from typing import Any

import griffe


class PublicFunctions(griffe.Extension):
    """Restores a function of `shmppo` that a package of the same name has replaced."""

    def __init__(self) -> None:
        self._functions: dict[str, griffe.Function] = {}

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        """Remember the functions of the root package."""
        if func.parent is not None and func.parent.path == "shmppo":
            self._functions[func.name] = func

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Let the names of these functions mean the functions."""
        for name, function in self._functions.items():
            pkg.set_member(name, function)
