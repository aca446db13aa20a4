"""A folder with a user's files that have the names of fedping's packages and modules; fedping must not import them."""

from pathlib import Path

ROOMS = (
    "analysis",
    "browser",
    "client_sim",
    "dashboard",
    "experiments",
    "model_store",
    "protocol",
    "server_jobs",
    "tests",
    "benchmarks",
)

SPRUNG = "a user's module was imported"


def traps(folder: Path) -> Path:
    """Make and return a folder with a module or package for each name of fedping's packages; importing one raises."""
    folder.mkdir(parents=True)
    for at, name in enumerate(ROOMS):
        file = folder / name / "__init__.py" if at % 2 else folder / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"raise RuntimeError({SPRUNG!r} ': ' + __name__)\n")
    return folder
