"""Which module may import, print or exit: read from the source, not from a run."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

import covcal_cli

ROOT = Path(covcal_cli.__file__).parent
TERMINAL = {"typer", "rich", "click"}
TRAINING, RUNTIME = {"torch"}, {"onnx", "onnxruntime"}
TARGET_LABELS = "covcal_cli.formats.target_labels"
LABEL_READERS = ("covcal_cli.evaluate.evaluate", "covcal_cli.calibrate.labelled")


@dataclass
class Module:
    """What one source file imports and does."""

    name: str
    imports: set[str] = field(default_factory=set)
    top_imports: set[str] = field(default_factory=set)
    acts: set[str] = field(default_factory=set)

    @property
    def packages(self) -> set[str]:
        return {name.partition(".")[0] for name in self.imports}

    @property
    def part(self) -> str:
        """The file or folder below covcal_cli that it belongs to."""
        return self.name.split(".")[1] if "." in self.name else ""


def parsed(name: str, source: str, package: str) -> Module:
    """Read a module's imports (all, and those when it is loaded) and its prints and exits."""
    found = Module(name)

    def visit(node: ast.AST, *, top: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            names = set(_imported(child, package))
            found.imports |= names
            if top:
                found.top_imports |= names
            found.acts |= set(_acts(child))
            inner = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            visit(child, top=top and not inner)

    visit(ast.parse(source), top=True)
    return found


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
    elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
        yield from (str(value.value) for value in node.args if isinstance(value, ast.Constant))


def _acts(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id in ("print", "exit", "quit", "input"):
            yield node.func.id
    elif isinstance(node, ast.Attribute):
        text = ast.unparse(node)
        if text in ("sys.stdout", "sys.stderr", "sys.stdin", "sys.exit", "os._exit"):
            yield text
    elif isinstance(node, ast.Raise) and "SystemExit" in ast.unparse(node):
        yield "SystemExit"


@cache
def all_modules() -> dict[str, Module]:
    """Read every module of covcal; when a test asks, not when tests are collected."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = ["covcal_cli", *path.relative_to(ROOT).with_suffix("").parts]
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        package = name if is_package else ".".join(parts[:-1])
        found[name] = parsed(name, path.read_text(encoding="utf-8"), package)
    return found


def reachable(start: str, modules: dict[str, Module]) -> set[str]:
    """Return every covcal module that a module imports, directly or not, at any time."""
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        name = waiting.pop()
        for imported in modules[name].imports:
            if imported in modules and imported not in seen:
                seen.add(imported)
                waiting.append(imported)
    return seen


def cycle(modules: dict[str, Module]) -> list[str]:
    """Return a cycle of imports at load time, or nothing."""
    done: set[str] = set()

    def search(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for imported in sorted(modules[name].top_imports):
            if imported in modules and imported != name:
                found = search(imported, [*path, name])
                if found:
                    return found
        done.add(name)
        return []

    for name in modules:
        found = search(name, [])
        if found:
            return found
    return []


def in_cli(module: Module) -> bool:
    return module.part in ("cli", "__main__")


def offences(modules: dict[str, Module]) -> list[str]:
    """Return every breach of the layers' rules."""
    found = []
    for module in modules.values():
        if not in_cli(module):
            found += [f"{module.name} imports {name}" for name in module.packages & TERMINAL]
            found += [f"{module.name} uses {act}" for act in module.acts]
            if any(name.split(".")[:2] == ["covcal_cli", "cli"] for name in module.imports):
                found.append(f"{module.name} imports the command line")
        if module.part not in ("adapt", "models", "export"):
            found += [f"{module.name} imports {name}" for name in module.packages & TRAINING]
        if module.part not in ("models", "export"):
            found += [f"{module.name} imports {name}" for name in module.packages & RUNTIME]
        if module.name not in LABEL_READERS and TARGET_LABELS in module.imports:
            found.append(f"{module.name} reads target labels")
    return found


def test_every_module_keeps_to_its_layer() -> None:
    """Only cli/ prints, exits and knows typer; torch and onnx stay where they belong."""
    assert offences(all_modules()) == []


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
        ("covcal_cli.adapt.networks", "import onnxruntime", "imports onnxruntime"),
        (
            "covcal_cli.maths.weights",
            "from importlib import import_module\nimport_module('onnx')",
            "imports onnx",
        ),
        (
            "covcal_cli.maths.weights",
            "from covcal_cli.cli import console",
            "imports the command line",
        ),
        (
            "covcal_cli.calibrate.calibrate",
            "from covcal_cli import target_labels",
            "reads target labels",
        ),
        (
            "covcal_cli.calibrate.problem",
            "import covcal_cli.formats.target_labels",
            "reads target labels",
        ),
        (
            "covcal_cli.calibrate.calibrate",
            "from .target_labels import target_labels",
            "reads target labels",
        ),
        (
            "covcal_cli.adapt.rows",
            "def f():\n    from ..target_labels import target_labels",
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
    assert (
        offences(
            {"covcal_cli.maths.weights": parsed("covcal_cli.maths.weights", source, "covcal_cli")}
        )
        == []
    )


@pytest.mark.parametrize(
    "name",
    [
        "fitting",
        "auto",
        "estimation",
        "expected",
        "methods",
        "on_source",
        "on_target",
        "problem",
        "extract.extraction",
        "extract.merging",
        "apply.applying",
        "export.exporting",
        "adapt.adaptation",
        "temperature",
        "weights",
    ],
)
def test_target_labels_cannot_be_reached(name: str) -> None:
    """Nothing that trains or fits reaches the reader of target labels, however indirectly."""
    start = f"covcal_cli.{name}"
    parts = {start} | {module for module in all_modules() if module.startswith("covcal_cli.adapt")}
    within = parts if name.startswith("adapt") else {start}
    for module in within:
        assert not reachable(module, all_modules()) & {TARGET_LABELS, *LABEL_READERS}


def test_the_reader_of_target_labels_is_reached_by_two_modules_alone() -> None:
    """The walk over imports finds what is there."""
    direct = {name for name, module in all_modules().items() if TARGET_LABELS in module.imports}
    assert direct == set(LABEL_READERS)
    for name in LABEL_READERS:
        assert TARGET_LABELS in reachable(name, all_modules())
    assert TARGET_LABELS in reachable("covcal_cli.cli.calibrate_labelled", all_modules())
    assert TARGET_LABELS in reachable("covcal_cli.cli.evaluate", all_modules())


MATHEMATICS = ("softmax", "temperature", "weights", "bound", "logistic", "networks")


@pytest.mark.parametrize("name", MATHEMATICS)
def test_mathematics_knows_arrays_alone(name: str) -> None:
    """No file is read on the way to a number."""
    known = {f"covcal_cli.{part}" for part in (*MATHEMATICS, "arrays")}
    assert reachable(f"covcal_cli.{name}", all_modules()) <= known | {"covcal_cli"}


def test_reading_a_calibration_reaches_no_method() -> None:
    """cal.json says whose logits it scales: nobody need know how its temperature was fitted."""
    fits = {f"covcal_cli.{name}" for name in ("fitting", "on_source", "on_target", "problem")}
    assert not reachable("covcal_cli.formats.calibration", all_modules()) & (
        fits | {"covcal_cli.calibrate.methods"}
    )
    assert reachable("covcal_cli.calibrate.calibrate", all_modules()) >= fits - {
        "covcal_cli.calibrate.calibrate"
    }


def test_no_cycles() -> None:
    """Arrays flow down: no module is imported by one that it imports."""
    assert cycle(all_modules()) == []


def test_a_cycle_would_be_found() -> None:
    """Three made modules in a circle are named."""
    made = {
        name: parsed(name, f"def f():\n    pass\nimport {imported}", "")
        for name, imported in (("a", "b"), ("b", "c"), ("c", "a"))
    }
    assert cycle(made) == ["a", "b", "c", "a"]
