"""Which part of the house may import which, print or exit: read from the source, not from a run."""

import ast
import gc
import itertools
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

import covcal_cli
from covcal_cli.compare.runs import NUMERICAL
from covcal_cli.errors import one_line
from tests import REPOSITORY

ROOT = Path(covcal_cli.__file__).parent
UNKNOWN = "a name that is computed"
# Who may import by a name that is only known when the program runs.
COMPUTED = (
    "covcal_cli.api",  # the public names, by the table of their homes
    "covcal_cli.data.stores",  # a format's module, by the table of formats
    "covcal_cli.classifiers.torch.factory",  # a user's own code
    "covcal_cli.data.preprocessing.function",  # likewise
)
TERMINAL = {"typer", "rich", "click"}
# Who may import the heavy packages.
HOMES = {
    "torch": ("adapt", "classifiers.torch", "export"),
    "onnx": ("classifiers.onnx", "export"),
    "onnxruntime": ("classifiers.onnx", "export"),
}
# The parts from the ground up: one imports what lies below it, never its neighbours.
FLOORS = (
    ("errors", "progress"),
    ("arrays", "files", "multilabel"),
    ("maths", "records", "hdf5"),
    ("array_arguments", "formats"),
    ("classifiers", "data", "demo", "forecast"),
    ("estimators",),
    ("labels",),
    ("decide",),
    ("extract", "adapt", "calibrate", "evaluate", "apply", "export"),
    ("watch",),
    ("report",),
    ("run", "compare"),
    ("inspect", "api"),
    ("cli",),
    ("__main__",),
)
TARGET_LABELS = "covcal_cli.labels.target_labels"
ANY_LABELS = "covcal_cli.formats.features.read_labels"
MARKED_LABELS = "covcal_cli.labels.picked_labels"
# Who puts marked labels in, and who hands them on; and who was asked to use them.
MARKED_READERS = (
    "covcal_cli.labels.label",
    "covcal_cli.extract.merge",
    "covcal_cli.calibrate.labelled",
    "covcal_cli.decide.decide",
    "covcal_cli.watch.labels",
)
LABEL_READERS = (
    "covcal_cli.api",
    "covcal_cli.evaluate.evaluate",
    "covcal_cli.labels.label",
    "covcal_cli.labels.pick",
    "covcal_cli.watch.labels",
)


@dataclass
class Module:
    """What one source file imports and does."""

    name: str
    imports: set[str] = field(default_factory=set)
    acts: set[str] = field(default_factory=set)
    floating: list[int] = field(default_factory=list)

    @property
    def packages(self) -> set[str]:
        return {name.partition(".")[0] for name in self.imports}

    @property
    def part(self) -> str:
        """The file or folder below covcal_cli that it belongs to."""
        return part_of(self.name)


def part_of(name: str) -> str:
    return name.split(".")[1] if "." in name else ""


def parsed(name: str, source: str, package: str) -> Module:
    """Read a module's imports, also in functions, and its prints and exits."""
    return of_tree(name, ast.parse(source), package)


def of_tree(name: str, tree: ast.Module, package: str) -> Module:
    found = Module(name, floating=floating_strings(tree))
    waiting: list[ast.AST] = [tree]
    while waiting:
        for child in ast.iter_child_nodes(waiting.pop()):
            if isinstance(child, ast.If) and _names(child.test, "TYPE_CHECKING"):
                continue
            if isinstance(child, _TOLD):
                found.imports.update(_imported(child, package))
                found.acts.update(_acts(child))
            waiting.append(child)
    return found


# The nodes that tell of an import, a print or an exit.
_TOLD = (ast.Import, ast.ImportFrom, ast.Call, ast.Attribute, ast.Raise)


def _names(node: ast.AST, name: str) -> bool:
    return any(name in (getattr(n, "id", ""), getattr(n, "attr", "")) for n in ast.walk(node))


def _imported(node: ast.AST, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            parents = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*parents, base]).rstrip(".")
        yield base
        yield from (f"{base}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Call):
        called = getattr(node.func, "attr", getattr(node.func, "id", ""))
        for value in node.args if called == "import_module" else ():
            yield str(value.value) if isinstance(value, ast.Constant) else UNKNOWN


def _acts(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id in ("print", "exit", "quit", "input"):
            yield node.func.id
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        text = f"{node.value.id}.{node.attr}"
        if text in ("sys.stdout", "sys.stderr", "sys.stdin", "sys.exit", "os._exit"):
            yield text
    elif isinstance(node, ast.Raise) and _names(node, "SystemExit"):
        yield "SystemExit"


def trees(folder: Path) -> Iterator[tuple[Path, ast.Module]]:
    """Yield every source file with its tree.

    Meanwhile the collector waits: it would look at a million nodes, which takes most of the time.
    """
    gc.disable()
    try:
        for path in sorted(folder.rglob("*.py")):
            yield path, ast.parse(path.read_text(encoding="utf-8"))
    finally:
        gc.enable()


@cache
def all_modules() -> dict[str, Module]:
    """Read every module of covcal; when a test asks, not when tests are collected."""
    found = {}
    for path, tree in trees(ROOT):
        parts = ["covcal_cli", *path.relative_to(ROOT).with_suffix("").parts]
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        package = name if is_package else ".".join(parts[:-1])
        found[name] = of_tree(name, tree, package)
    return found


def edges(modules: Mapping[str, Module]) -> dict[str, set[str]]:
    """Return which modules of covcal each one imports; a package's face is passed through."""
    return {
        name: {other for other in module.imports if other in modules and other != name}
        for name, module in modules.items()
    }


def reachable(start: str, modules: Mapping[str, Module]) -> set[str]:
    """Return every covcal module that a module imports, directly or not, at any time."""
    arrows = edges(modules)
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        new = arrows[waiting.pop()] - seen
        seen |= new
        waiting += new
    return seen


def circle(modules: Mapping[str, Module]) -> list[str]:
    """Return a circle of imports, wherever they stand, or nothing."""
    arrows = edges(modules)
    done: set[str] = set()

    def search(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for imported in sorted(arrows[name]):
            found = search(imported, [*path, name])
            if found:
                return found
        done.add(name)
        return []

    return next((found for name in modules if (found := search(name, []))), [])


def in_cli(module: Module) -> bool:
    return module.part in ("cli", "__main__")


def offences(modules: Mapping[str, Module]) -> list[str]:
    """Return every breach of the layers' rules."""
    floor = {part: number for number, parts in enumerate(FLOORS) for part in parts}
    found = []
    for module in modules.values():
        if not in_cli(module):
            found += [f"{module.name} imports {name}" for name in module.packages & TERMINAL]
            found += [f"{module.name} uses {act}" for act in module.acts]
        if UNKNOWN in module.imports and module.name not in COMPUTED:
            found.append(f"{module.name} imports {UNKNOWN}")
        for package, homes in HOMES.items():
            home = tuple(f"covcal_cli.{home}" for home in homes)
            if package in module.packages and not f"{module.name}.".startswith(
                tuple(f"{name}." for name in home)
            ):
                found.append(f"{module.name} imports {package}")
        others = {part_of(name) for name in module.imports if name.startswith("covcal_cli.")}
        for other in sorted(others - {module.part, "__version__"}):
            if module.part and floor[other] >= floor[module.part]:
                found.append(f"{module.name} imports {other}/, which is not below it")
        # Labels of any domain leave the features file by `read_labels`; the one reader asks for it.
        reads = TARGET_LABELS in module.imports and module.name not in LABEL_READERS
        if MARKED_LABELS in module.imports and module.name not in MARKED_READERS:
            found.append(f"{module.name} reads marked labels")
        if reads or (ANY_LABELS in module.imports and module.name != TARGET_LABELS):
            found.append(f"{module.name} reads target labels")
    return found


def test_every_module_keeps_to_its_layer() -> None:
    """Only cli/ prints, exits and knows typer; torch and onnx stay where they belong."""
    assert offences(all_modules()) == []


def test_every_part_has_a_floor() -> None:
    """A new folder or loose module is given its place before it is used."""
    known = {part for parts in FLOORS for part in parts}
    assert {module.part for module in all_modules().values()} - {""} == known


@pytest.mark.parametrize(
    ("name", "source", "offence"),
    [
        ("covcal_cli.maths.weights", "import typer", "imports typer"),
        ("covcal_cli.maths.weights", "def f():\n    from rich.table import Table", "imports rich"),
        ("covcal_cli.maths.weights", "def f():\n    print(1)", "uses print"),
        ("covcal_cli.maths.weights", "import sys\nsys.stdout.write('')", "uses sys.stdout"),
        ("covcal_cli.maths.weights", "import sys\ndef f():\n    sys.exit(1)", "uses sys.exit"),
        ("covcal_cli.maths.weights", "raise SystemExit", "uses SystemExit"),
        ("covcal_cli.maths.weights", "def f():\n    import torch.nn", "imports torch"),
        ("covcal_cli.classifiers.open", "import torch", "imports torch"),
        ("covcal_cli.adapt.perceptrons", "import onnxruntime", "imports onnxruntime"),
        (
            "covcal_cli.maths.weights",
            "from importlib import import_module\nimport_module('onnx')",
            "imports onnx",
        ),
        (
            "covcal_cli.maths.weights",
            "from importlib import import_module\nimport_module(f'covcal_cli.{name}')",
            "imports a name that is computed",
        ),
        (
            "covcal_cli.maths.weights",
            "from covcal_cli.cli import console",
            "imports cli/, which is not below it",
        ),
        (
            "covcal_cli.evaluate.gates",
            "def f():\n    from covcal_cli.calibrate.auto import choose",
            "imports calibrate/, which is not below it",
        ),
        (
            "covcal_cli.calibrate.auto",
            "from covcal_cli.labels import target_labels",
            "reads target labels",
        ),
        (
            "covcal_cli.calibrate.problem",
            "import covcal_cli.labels.target_labels",
            "reads target labels",
        ),
        (
            "covcal_cli.calibrate.auto",
            "from ..labels.target_labels import target_labels",
            "reads target labels",
        ),
        (
            "covcal_cli.calibrate.auto",
            "from covcal_cli.formats.features import read_labels",
            "reads target labels",
        ),
        (
            "covcal_cli.labels.pick",
            "from covcal_cli.labels.picked_labels import labelled_draw",
            "reads marked labels",
        ),
        (
            "covcal_cli.adapt.training_rows",
            "def f():\n    from ..labels.target_labels import target_labels",
            "reads target labels",
        ),
    ],
)
def test_the_check_can_fail(name: str, source: str, offence: str) -> None:
    """A made offender is caught, so the rule above is not blind."""
    made = parsed(name, source, name.rpartition(".")[0])
    assert offences({name: made}) == [f"{name} {offence}"]


def test_imports_for_types_alone_are_allowed() -> None:
    """What is imported for a type checker alone is not loaded."""
    source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"
    name = "covcal_cli.maths.weights"
    assert offences({name: parsed(name, source, "covcal_cli.maths")}) == []


FITTING = (
    "labels",
    "calibrate",
    "extract",
    "apply",
    "export",
    "adapt",
    "estimators",
    "maths",
    "data",
)


@pytest.mark.parametrize("part", FITTING)
def test_target_labels_cannot_be_reached(part: str) -> None:
    """Nothing that trains or fits reaches the reader of target labels, however indirectly."""
    modules, readers = all_modules(), {TARGET_LABELS, *LABEL_READERS}
    starts = [n for n, one in modules.items() if one.part == part and n not in readers]
    assert starts
    for start in starts:
        assert not reachable(start, modules) & readers, start


def test_marked_labels_are_reached_by_those_who_were_asked_for_them() -> None:
    """Whatever draws, trains or applies cannot come by a label that `label` put in."""
    modules = all_modules()
    direct = {name for name, module in modules.items() if MARKED_LABELS in module.imports}
    assert direct == set(MARKED_READERS)
    parts = {one.part for name, one in modules.items() if MARKED_LABELS in reachable(name, modules)}
    assert {"calibrate", "labels", "report"} < parts
    assert MARKED_LABELS not in reachable("covcal_cli.labels.pick", modules)
    assert not parts & {"maths", "data", "estimators", "classifiers", "adapt", "apply", "export"}
    assert not {"extract", "apply", "export", "pick"} & {
        name.removeprefix("covcal_cli.cli.")
        for name, one in modules.items()
        if one.part == "cli" and MARKED_LABELS in reachable(name, modules)
    }


def test_the_reader_of_target_labels_is_reached_by_few_modules_alone() -> None:
    """The walk over imports finds every import."""
    direct = {name for name, module in all_modules().items() if TARGET_LABELS in module.imports}
    assert direct == set(LABEL_READERS)
    for name in LABEL_READERS:
        assert TARGET_LABELS in reachable(name, all_modules())
    assert TARGET_LABELS in reachable("covcal_cli.cli.calibrate", all_modules())
    assert TARGET_LABELS in reachable("covcal_cli.cli.evaluate", all_modules())


def test_adapt_needs_torch_alone() -> None:
    """Whatever it imports, inside functions too: no reader of models, images or tables."""
    modules = all_modules()
    names = {"covcal_cli.adapt.adapt", *reachable("covcal_cli.adapt.adapt", modules)}
    packages = {package for name in names for package in modules[name].packages}
    assert packages & {*HOMES, "PIL", "matplotlib", "pyarrow", "scipy", "sklearn"} == {"torch"}


def test_mathematics_knows_arrays_alone() -> None:
    """No file is read on the way to a number."""
    modules = all_modules()
    for start in (name for name, one in modules.items() if one.part == "maths"):
        parts = {modules[name].part for name in reachable(start, modules)}
        assert parts <= {"maths", "arrays", ""}, start


def test_a_calibration_is_read_without_the_methods() -> None:
    """cal.json is a file format: nothing that fits or estimates stands behind its reader."""
    parts = {
        all_modules()[name].part
        for name in reachable("covcal_cli.formats.calibration", all_modules())
    }
    assert "records" in parts
    assert not parts & {"calibrate", "estimators"}


def test_no_circles() -> None:
    """Arrows run down: no module is imported by one that it imports, inside functions neither."""
    assert circle(all_modules()) == []


@pytest.mark.parametrize("template", ["import {0}", "def f():\n    from {0} import g"])
def test_a_circle_would_be_found(template: str) -> None:
    """Three made modules in a circle are named, also where the imports wait for a call."""
    made = {
        name: parsed(name, template.format(imported), "")
        for name, imported in (("a", "b"), ("b", "c"), ("c", "a"))
    }
    assert circle(made) == ["a", "b", "c", "a"]


RUN_STEPS = tuple(
    f"covcal_cli.{name}"
    for name in ("adapt.adapt", "calibrate.calibrate", "calibrate.estimate", "evaluate.evaluate")
)
WITHOUT_NUMBERS = {"", "arguments", "errors", "files", "progress"}


def test_every_module_that_a_run_of_compare_rests_on_is_hashed() -> None:
    """Beside the steps there is the module that takes them."""
    modules = all_modules()
    used = {name for step in RUN_STEPS for name in (step, *reachable(step, modules))}
    assert {part_of(name) for name in used} - WITHOUT_NUMBERS == {
        part.removesuffix(".py") for part in NUMERICAL
    } - {"compare/runs"}


def floating_strings(tree: ast.Module) -> list[int]:
    """Return the lines of strings that stand for themselves and are no docstring."""
    found = []
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            waiting += getattr(node, block, ())
        found += [
            statement.lineno
            for statement in getattr(node, "body", ())[1:]
            if isinstance(statement, ast.Expr)
            and isinstance(statement.value, ast.Constant)
            and isinstance(statement.value.value, str)
        ]
    return found


def test_a_floating_string_would_be_found() -> None:
    """Also below an ``else``, an ``except`` and in a class; docstrings are none."""
    source = '"""A module."""\nX = 1\n"""Of X."""\ndef f():\n    """F."""'
    assert floating_strings(ast.parse(source)) == [3]
    deep = (
        "if X:\n    pass\nelse:\n    class A:\n        def f():\n            pass\n            'F'"
    )
    assert floating_strings(ast.parse(deep)) == [7]
    caught = "try:\n    pass\nexcept OSError:\n    pass\n    'A'"
    assert floating_strings(ast.parse(caught)) == [5]


def test_what_is_said_of_a_constant_is_a_comment_above() -> None:
    """Python knows docstrings of modules, classes and functions alone."""
    found = {name: module.floating for name, module in all_modules().items()}
    found |= {str(path): floating_strings(tree) for path, tree in trees(REPOSITORY / "examples")}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_the_tests_import_only_what_their_own_extra_installs() -> None:
    """A test that needs another package asks for it with `importorskip`, and skips without it.

    No string of theirs floats, either.
    """
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    needs = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    names = {re.split(r"[><=\[]", need)[0].lower().replace("-", "_") for need in needs}
    names |= {"sklearn", "PIL", "click", "packaging"}  # they come with the above
    names |= {"tests", "examples", "covcal_cli", *sys.stdlib_module_names}
    names |= {
        path.stem for path in (REPOSITORY / "examples").rglob("*") if path.suffix in ("", ".py")
    }
    checked = 0
    for path, tree in trees(REPOSITORY / "tests"):
        assert floating_strings(tree) == [], path
        for node in tree.body:
            if isinstance(node, ast.Import):
                packages = {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                packages = {str(node.module).partition(".")[0]}
            else:
                continue
            assert packages <= names, path
            checked += len(packages)
    assert checked > 1000


def undescribed_entries(docstring: str) -> list[str]:
    """Return the entries of numpydoc sections that have neither a type nor a description."""
    lines = [*docstring.splitlines(), ""]
    section, entries = "", []
    for line, after in itertools.pairwise(lines):
        if after and set(after) == {"-"}:
            section = line
        is_entry = line and line[0] not in " -" and line != section
        if section in ("Parameters", "Attributes", "Returns", "Yields", "Raises") and is_entry:
            entries += [] if " : " in line or after.startswith(" ") else [line]
    return entries


def test_every_entry_of_a_docstring_is_described() -> None:
    """An editor that joins lines would make one sentence of a name and its description."""
    joined = "Do.\n\nReturns\n-------\nReport The result.\n\nRaises\n------\nError\n    If."
    assert undescribed_entries(joined) == ["Report The result."]
    found = {
        f"{path}:{node.name}": entries
        for path, tree in trees(Path(covcal_cli.__file__).parent)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
        and (entries := undescribed_entries(ast.get_docstring(node) or ""))
    }
    assert found == {}


def test_no_message_quotes_a_system_error() -> None:
    """A message has the reason of a system error, but not "[Errno 2]": `errors.one_line`."""
    assert one_line(FileNotFoundError(2, "No such file", "x")) == "no such file"
    assert one_line(OSError("[Errno 5] Failed to\nopen")) == "Failed to open"
    quoted = []
    for path, tree in trees(ROOT):
        for node in ast.walk(tree):
            if isinstance(node, ast.ExceptHandler) and "OSError" in ast.dump(node.type or node):
                values = [v.value for v in ast.walk(node) if isinstance(v, ast.FormattedValue)]
                names = [value.id for value in values if isinstance(value, ast.Name)]
                quoted += [path.name for name in names if name == node.name]
    assert quoted == []
