"""Write the API reference, made from docstrings, as a folder of HTML pages.

    python -m docs.api.build [OUT [MODULE ...]]

OUT is ``build/docs/api`` unless given. Each MODULE gets a page; without MODULE, each public module does. Public modules
are the packages with an ``__all__``, whose pages have the names in it, and all modules of :mod:`fedping.protocol`.
Modules that only the command line and the dashboard use are left out.
"""

import importlib
import pkgutil
import shutil
import sys
import warnings
from collections.abc import Container, Iterator
from pathlib import Path

import pdoc

import fedping

LEFT_OUT = ("fedping.analysis.notebooks", "fedping.browser", "fedping.commands", "fedping.dashboard")
TEMPLATES = Path(__file__).parent


def public_modules() -> Iterator[str]:
    """Yield the name of each module that has a page."""
    yield fedping.__name__
    for found in pkgutil.walk_packages(fedping.__path__, "fedping.", onerror=_raise):
        if not found.name.startswith(LEFT_OUT) and (_is_of_protocol(found.name) or _is_public_package(found)):
            yield found.name


def _is_of_protocol(name: str) -> bool:
    return name.startswith("fedping.protocol.")


def _is_public_package(found: pkgutil.ModuleInfo) -> bool:
    return found.ispkg and hasattr(importlib.import_module(found.name), "__all__")


def _raise(name: str) -> None:
    """Raise an error for a package that cannot be imported, instead of leaving it out."""
    raise ImportError(f"{name} cannot be imported")


def described(name: str) -> pdoc.doc.Module:
    """Return a module for its page, after loading the public names that are otherwise loaded at first use."""
    module = importlib.import_module(name)
    for public in getattr(module, "__all__", ()):
        getattr(module, public)
    return pdoc.doc.Module(module)


def build(out: Path, only: Container[str] = ()) -> None:
    """Write the reference of all public modules, or of those in ``only``, and replace the previous one."""
    # pdoc also runs imports for type checkers; this package must be imported before its own imports of that kind
    importlib.import_module("obstore.store")
    pdoc.render.configure(
        docformat="google", footer_text=f"fedping {fedping.__version__}", template_directory=TEMPLATES, show_source=True
    )
    # Annotations of named tuples are texts; names that are imported only for type checkers cannot be resolved.
    warnings.filterwarnings("ignore", message=r"Error parsing type annotation ForwardRef")
    modules = {name: described(name) for name in public_modules() if not only or name in only}
    pages = {f"{name.replace('.', '/')}.html": pdoc.render.html_module(modules[name], modules) for name in modules}
    pages["index.html"] = pdoc.render.html_index(modules)
    pages["search.js"] = pdoc.render.search_index(modules)
    shutil.rmtree(out, ignore_errors=True)
    for path, text in pages.items():
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        (out / path).write_text(text)


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("build/docs/api")
    build(folder, sys.argv[2:])
    print(folder / "index.html")
