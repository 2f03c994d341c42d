"""antiphon: a server for multi-stage models, and the same thing as a library.

In: nothing. Out: `Engine` and `say`, imported when first used, so that `import antiphon` costs nothing.
Does not know: how a request is served.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from antiphon.engine import Engine, say

__all__ = ["Engine", "__version__", "say"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name not in ("Engine", "say"):
        raise AttributeError(f"module 'antiphon' has no attribute {name!r}")
    from antiphon import engine

    exports = {"Engine": engine.Engine, "say": engine.say}
    globals().update(exports)
    return exports[name]
