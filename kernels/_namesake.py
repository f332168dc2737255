"""What `import kernels` gives where this checkout's root is on the path: never this package.

The name belongs to other people, and libraries ask for it: transformers imports it to read its version. So
the package of that name is looked for on the rest of the path. Where there is none, an empty module answers,
of a version too old for anyone to use; an ImportError instead would end `import transformers`.
"""

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def _find(name):
    elsewhere = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]
    for finder in sys.meta_path:
        spec = finder.find_spec(name, elsewhere) if hasattr(finder, "find_spec") else None
        if spec is not None and spec.loader is not None:  # folders without an `__init__.py` have no loader
            return spec
    return None


def _refuse(attribute):
    raise AttributeError(f"the package of this checkout is `infinicore.kernels`: import `{attribute}` from there")


def give_way(module):
    """Replace `module` by the package that is installed under its name, or empty it."""
    name = module.__name__
    spec = _find(name)
    if spec is None:
        module.__version__, module.__path__, module.__getattr__ = "0", [], _refuse
        return
    found = sys.modules[name] = importlib.util.module_from_spec(spec)  # the import statement reads this entry again
    spec.loader.exec_module(found)
