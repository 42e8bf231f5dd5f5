"""Torch models that covcal cannot use are refused in one line, with the reason and the remedy."""

import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from covcal_cli.classifiers.torch.classifier import open_program
from covcal_cli.classifiers.torch.program import cause
from covcal_cli.errors import OUTPUTS_AS_TABLE, CovcalError
from tests.classifiers.opening import open_classifier, open_torch
from tests.classifiers.torch import torch_modules
from tests.classifiers.torch.torch_modules import D_IN, rows, save

ZOO = torch_modules.__name__

# name -> what the message says after "MODULE:NAME"
REFUSED = {
    "convolved_relu_pooled": (
        ": covcal does not know how the output is computed from the logits of conv2d head "
        "(relu_, mean "
        "follow it): pass --phi NAME or --phi input to choose the "
        "features, or --phi none to keep only the logits"
    ),
    "wide": (
        ": conv2d body.0, the last layer before the output, is not a 1x1 convolution: pass --phi"
    ),
    "with_square": ": covcal does not know how the output is computed from the logits of",
    "multiplied": (
        ": the output combines 2 layers (linear head, linear second) in an unknown way: pass"
    ),
    "two_answers": " has 2 outputs that could hold the classes (left (from linear head), right",
    "one_relu": ": covcal does not know how the output is computed from the logits of linear",
    "dice": (" gives different outputs for the same rows (relative difference "),
    "no_layer": ": the first layer does not show the shape of the input: set ",
    "recurrent": ": the first layer does not show the shape of the input: set ",
    "two_unknown_inputs": ": forward takes 2 inputs (left, right): set module.example_input_array",
    "odd_sides": " does not run on inputs of [4, 3, 224, 224]: RuntimeError: mat1 and mat2 ",
    "lazy": ": 0.weight is a lazy layer without a shape: run the module once inside the function",
    "meta": ": its parameters have no values (NotImplementedError: ",
    "needs_arguments": " needs arguments (classes): name a function without arguments",
    "raises": ": calling it fails (ValueError: no weights at torch_modules.py line ",
    "exits": ": calling it fails (SystemExit: bye at torch_modules.py line ",
    "gives_a_dict": " returns dict, not a torch.nn.Module: return a module",
    "not_a_function": " is not a function (int): give a function without arguments that returns a",
}


@pytest.mark.parametrize("name", REFUSED)
def test_modules_that_are_refused(name: str) -> None:
    """The message begins with the reference and is one line."""
    with pytest.raises(CovcalError) as error:
        open_torch(f"{ZOO}:{name}")
    assert str(error.value).startswith(f"{ZOO}:{name}{REFUSED[name]}")
    assert "\n" not in str(error.value)


def test_a_size_that_is_not_guessed_can_be_declared() -> None:
    """The usual sides alone are tried; the message says where to write another."""
    with pytest.raises(CovcalError) as error:
        open_torch(f"{ZOO}:odd_sides")
    assert str(error.value).endswith(
        " (or of 8 other shapes): set module.example_input_array to a tensor that the module "
        "accepts (or a tuple of tensors for several inputs)"
    )
    assert open_torch(f"{ZOO}:declared_sides").inputs[0].shape == (None, 3, 20, 20)


def test_what_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing module, a mistake in it, a missing function: each with its cause."""
    monkeypatch.chdir(tmp_path)
    Path("broken_zoo_a.py").write_text("import torch\n\nraise RuntimeError('bad day')\n")
    Path("half_zoo_a.py").write_text("def net():\n    pass\n\n\ndef other():\n    pass\n")
    for reference, message in (
        (
            "no_such_zoo:net",
            "importing no_such_zoo fails (ModuleNotFoundError: No module named 'no_such_zoo')",
        ),
        (
            "broken_zoo_a:net",
            "importing broken_zoo_a fails (RuntimeError: bad day at broken_zoo_a.py line 3)",
        ),
        ("half_zoo_a:nets", "half_zoo_a has no nets (it has net, other): give the name of a"),
    ):
        path = list(sys.path)
        with pytest.raises(CovcalError) as error:
            open_classifier(reference)
        assert str(error.value).startswith(f"{reference}: {message}")
        assert sys.path == path


def test_the_current_folder_can_be_imported_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``python -m`` does, also by what the function imports when it is called."""
    monkeypatch.chdir(tmp_path)
    Path("helping_zoo_b.py").write_text("from torch import nn\n\n\nwidth = 4\n")
    Path("user_zoo_b.py").write_text(
        "from torch import nn\n\n\ndef net():\n    import helping_zoo_b\n\n"
        "    return nn.Linear(helping_zoo_b.width, 3)\n"
    )
    classifier = open_classifier("user_zoo_b:net")
    assert [value.shape for value in classifier.inputs] == [(None, 4)]
    assert classifier.n_classes == 3
    assert classifier.name == "user_zoo_b:net"


def test_files_without_a_program(tmp_path: Path) -> None:
    """Pickled modules and weights are never opened; damaged and foreign files are named."""
    module = torch_modules.mlp()
    files = {name: tmp_path / name for name in ("whole.pt", "state.pth", "old.pt")}
    torch.save(torch.nn.Linear(2, 2), files["whole.pt"])
    torch.save(module.state_dict(), files["state.pth"])
    torch.save(module.state_dict(), files["old.pt"], _use_new_zipfile_serialization=False)
    (tmp_path / "w.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    for path in [*files.values(), tmp_path / "w.safetensors"]:
        with pytest.raises(CovcalError) as error:
            open_classifier(path)
        assert str(error.value) == (
            f"{path} holds weights or a pickled object, not a program: pass module:function with "
            f"--weights {path}, or {OUTPUTS_AS_TABLE}"
        )
    traced = save(torch_modules.mlp(), "traced", tmp_path / "traced.pt", rows((D_IN,)))
    whole = traced.read_bytes()
    odd = tmp_path / "odd.pt"
    for content, message in (
        (b"", "is empty (0 bytes)"),
        (whole[: len(whole) // 2], "is not a readable torch file (it is cut short): copy it again"),
        (b"hello", "is not a readable torch file: copy it again, or save it again with"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer (43 bytes)"),
    ):
        odd.write_bytes(content)
        with pytest.raises(CovcalError) as error:
            open_classifier(odd)
        assert str(error.value).startswith(f"{odd} {message}")
    with pytest.raises(CovcalError, match=r"gone.pt does not exist: give a TorchScript or"):
        open_classifier(tmp_path / "gone.pt")


def test_zip_files_that_torch_cannot_run(tmp_path: Path) -> None:
    """A foreign zip file, a compiled model, a TorchScript file whose code is damaged."""
    foreign, compiled, damaged = (tmp_path / name for name in ("a.pt", "b.pt2", "c.pt"))
    with zipfile.ZipFile(foreign, "w") as archive:
        archive.writestr("a/readme.txt", "hello")
    with zipfile.ZipFile(compiled, "w") as archive:
        archive.writestr("b/archive_format", "pt2")
        archive.writestr("b/data/aotinductor/model/x.so", "")
    with zipfile.ZipFile(damaged, "w") as archive:
        archive.writestr("c/constants.pkl", b"\x80\x02).")
        archive.writestr("c/code/__torch__.py", "nonsense")
    for path, message in (
        (foreign, "is a zip file without a torch program"),
        (compiled, "is a compiled program without visible layers (AOTInductor)"),
        (damaged, f"is a TorchScript file that torch {torch.__version__} cannot load (RuntimeErr"),
    ):
        with pytest.raises(CovcalError) as error:
            open_classifier(path, trusted=True)
        assert str(error.value).startswith(f"{path} {message}")
        assert "\n" not in str(error.value)


def test_rows_that_do_not_fit() -> None:
    """A wrong shape or type is told from what the module was found to take."""
    classifier = open_torch(f"{ZOO}:mlp")
    with pytest.raises(CovcalError) as error:
        classifier.prove({"x": rows((4,)).numpy()})
    assert str(error.value) == (
        f"{ZOO}:mlp expects float32 [N, 6] as x, but the data has float32 [N, 4]: change the "
        "preprocessing or the array"
    )
    with pytest.raises(CovcalError, match=r"the data has float64 \[N, 6\]"):
        classifier.prove({"x": rows((D_IN,)).double().numpy()})
    images = open_torch(f"{ZOO}:convolved_over_all", phi="none")
    assert images.inputs[0].shape == (None, 3, 8, 8)


def test_a_run_that_fails_on_the_data() -> None:
    """A module whose input size is free may still fail on the data's: the cause is in the line."""
    classifier = open_torch(f"{ZOO}:images")
    with pytest.raises(CovcalError) as error:
        classifier.prove({"x": rows((3, 0, 4)).numpy()})
    text = str(error.value)
    assert text.startswith(f"{ZOO}:images cannot run on [7, 3, 0, 4] (")
    assert "pass --size with the image size of training, or change the preprocessing" in text
    assert text.endswith("pass --batch 1")
    assert "\n" not in text


def test_the_cause_of_a_torchscript_error_without_a_message() -> None:
    """From the second run on, torch gives no message, but the line of code that failed."""
    text = "The following operation failed in the TorchScript interpreter.\n  File x\n"
    failed = "    return F.linear(x)\n           ~~~~~~~~ <--- HERE\n"
    assert cause(RuntimeError(f"{text}{failed}RuntimeError: \n")) == (
        "RuntimeError in return F.linear(x)"
    )
    assert cause(RuntimeError(f"{text}{failed}RuntimeError: bad\n")) == "RuntimeError: bad"


def test_unknown_phi_lists_what_there_is() -> None:
    """The error of ``--phi`` names the candidates."""
    with pytest.raises(CovcalError) as error:
        open_torch(f"{ZOO}:mlp", phi="hidden")
    assert str(error.value) == (
        f"{ZOO}:mlp has no module hidden for --phi: choose input, none, or one of body, head. To "
        "select the input of a module, add .input to the name"
    )
    with pytest.raises(
        CovcalError, match=r"mix.output has shape \[4, 4, 6\] for 4 rows, but features need one"
    ):
        open_torch(f"{ZOO}:first_token", phi="mix")


def test_exported_programs_that_hide_their_head(tmp_path: Path) -> None:
    """One row cannot tell an added constant; inputs by keyword cannot be fed in order."""
    one = save(torch_modules.by_hand(), "static", tmp_path / "one.pt2", rows((D_IN,), 1))
    with pytest.raises(CovcalError, match=r" on 1 random row: export the model with a dyn"):
        open_classifier(one, trusted=True)
    exporter: Any = torch.export
    named = exporter.export(torch_modules.mlp().eval(), (), {"x": rows((D_IN,))})
    exporter.save(named, tmp_path / "named.pt2")
    with pytest.raises(CovcalError, match=r"named.pt2 takes inputs by keyword \(x\): export the"):
        open_classifier(tmp_path / "named.pt2", trusted=True)


def test_a_damaged_exported_program_is_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Torch logs a traceback of every way in which it tried to read the file."""
    path = save(torch_modules.mlp(), "dynamic", tmp_path / "model.pt2", rows((D_IN,), 3))
    damaged = tmp_path / "damaged.pt2"
    with zipfile.ZipFile(path) as whole, zipfile.ZipFile(damaged, "w") as archive:
        for name in whole.namelist():
            content = whole.read(name)
            archive.writestr(name, content[:40] if name.endswith(".json") else content)
    caplog.clear()
    with pytest.raises(CovcalError, match=r"damaged.pt2 is a torch.export file that .*: copy it"):
        open_classifier(damaged, trusted=True)
    assert caplog.records == []


@pytest.mark.parametrize("kind", ["model.pt", "model.pt2", "weights.pth"])
def test_a_number_changed_on_the_way(kind: str, tmp_path: Path) -> None:
    """Torch looks at no checksum, and would run the model with that number."""
    path, module = tmp_path / kind, torch_modules.mlp()
    if kind == "weights.pth":
        torch.save(module.state_dict(), path)
    else:
        way = "traced" if kind == "model.pt" else "dynamic"
        save(module, way, path, rows((D_IN,), 3))
    content = path.read_bytes()
    weight = module.state_dict()["head.weight"].numpy().tobytes()
    assert weight in content
    path.write_bytes(content.replace(weight, weight[:-1] + bytes([weight[-1] ^ 1])))
    source = f"{torch_modules.__name__}:mlp" if kind == "weights.pth" else str(path)
    weights = path if kind == "weights.pth" else None
    with pytest.raises(CovcalError, match=rf"{kind}: the checksum of \S+ is wrong: copy it again"):
        open_classifier(source, weights=weights, trusted=True)


@pytest.mark.parametrize(
    ("member", "size"), [("data/0", 0.5), ("data/3", 0.0), ("data/3", 2.0), ("constants/0", 0.5)]
)
def test_a_storage_of_another_size(member: str, size: float, tmp_path: Path) -> None:
    """Torch would read past its end, or take the first numbers, and say nothing.

    The archive itself is whole: every member has its right checksum.
    """
    whole, torn = tmp_path / "whole.pt", tmp_path / "torn.pt"
    way = "frozen" if member.startswith("constants") else "traced"
    save(torch_modules.mlp(), way, whole, rows((D_IN,), 3))
    with zipfile.ZipFile(whole) as archive, zipfile.ZipFile(torn, "w") as copy:
        names = [name for name in archive.namelist() if name.endswith(member)]
        assert len(names) == 1
        for name in archive.namelist():
            content = archive.read(name)
            if name in names:
                content = (content * 2)[: int(len(content) * size)]
            copy.writestr(name, content)
    open_program(whole, None, trusted=True)
    with pytest.raises(CovcalError, match=rf"torn.pt is damaged: \S+{member} has \d+ bytes but n"):
        open_program(torn, None, trusted=True)


@pytest.mark.parametrize("kind", ["model.pt", "weights.pth"])
def test_an_archive_that_says_it_has_several_disks(kind: str, tmp_path: Path) -> None:
    """Python's zipfile raises where it only looks for an archive."""
    path, module = tmp_path / kind, torch_modules.mlp()
    if kind == "model.pt":
        save(module, "traced", path, rows((D_IN,), 3))
    else:
        torch.save(module.state_dict(), path)
    content = bytearray(path.read_bytes())
    place = content.rindex(b"PK\x06\x07")  # the locator of a zip64 directory
    content[place + 4] = content[place + 16] = 7
    path.write_bytes(content)
    source = str(path) if kind == "model.pt" else f"{ZOO}:mlp"
    weights = path if kind == "weights.pth" else None
    with pytest.raises(CovcalError, match=rf"{kind} is not a readable torch file \(.*disks"):
        open_classifier(source, weights=weights, trusted=True)


@pytest.mark.parametrize("kind", [torch.uint8, torch.int8])
def test_quantised_scores_are_called_so(kind: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    def bytes_of() -> torch.nn.Module:
        return torch_modules.Made(lambda z: (z * 20).to(kind))

    monkeypatch.setattr(torch_modules, "bytes_of", bytes_of, raising=False)
    with pytest.raises(
        CovcalError, match=r"gives output u?int8 \[4, 3\] for 4 rows, but output holds qu"
    ):
        open_torch(f"{ZOO}:bytes_of")


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("tail", ["logits", "softmax"])
def test_an_output_with_an_axis_of_one(
    axis: int, tail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[1, N, K], [N, 1, K] and [N, K, 1] give what [N, K] gives."""

    def end(z: torch.Tensor) -> torch.Tensor:
        return (z if tail == "logits" else z.softmax(dim=1)).unsqueeze(axis)

    monkeypatch.setattr(
        torch_modules,
        "with_axis",
        torch_modules.seeded(lambda: torch_modules.Made(end)),
        raising=False,
    )
    batch = {"x": rows((D_IN,), 7).numpy()}
    found = [open_torch(f"{ZOO}:{name}").prove(batch).run(batch) for name in ("with_axis", "mlp")]
    for odd, usual in zip(*found, strict=True):
        assert np.array_equal(odd, usual)
