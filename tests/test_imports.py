"""Imports point one way, and importing the package costs little."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "captioner"

# From the bottom up: a part imports from its own layer or from lower ones.
LAYERS = (
    ("errors", "bounds", "files", "geometry", "text", "attention"),
    ("caption", "data", "model"),
    ("decoding",),
    ("captioner",),
    ("training", "evaluation", "visualization"),
    ("serving", "cli"),
)
HEIGHT = {part: height for height, layer in enumerate(LAYERS) for part in layer}
BOTTOM_ALONE = {
    "geometry": {"errors"},
    "text": {"errors", "files"},
    "attention": {"errors", "bounds"},
    "errors": set(),
    "bounds": {"errors"},
    "files": {"errors"},
}
# The picture of a caption is a method of the caption, for the user's sake.
DEFERRED_UPWARD = {("caption.py", "visualization")}


def modules() -> list[Path]:
    """All modules within a part; the package's own two files on top import what they like, late."""
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path.parent != PACKAGE or path.stem in HEIGHT]


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_parts(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """The parts of captioner that a module imports, and whether only inside a function."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    deferred = {inner for node in ast.walk(tree) if isinstance(node, functions) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            package, _, rest = name.partition(".")
            if package == "captioner" and rest.partition(".")[0] in HEIGHT:
                yield rest.partition(".")[0], node in deferred


def offences(path: Path) -> list[str]:
    part = part_of(path)
    found = []
    for other, deferred in imported_parts(ast.parse(path.read_text())):
        upward = HEIGHT[other] > HEIGHT[part]
        sideways = other != part and other not in BOTTOM_ALONE.get(part, {other})
        exempt = deferred and (str(path.relative_to(PACKAGE)), other) in DEFERRED_UPWARD
        if (upward or sideways) and not exempt:
            found.append(f"{path.relative_to(PACKAGE)} imports captioner.{other}")
    return found


def test_every_part_has_a_layer():
    parts = {part_of(path) for path in PACKAGE.rglob("*.py")} - {"__init__", "__main__"}
    assert parts <= set(HEIGHT)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path):
    assert offences(path) == []


@pytest.mark.parametrize(
    ("place", "code", "wrong"),
    [
        ("attention/x.py", "import captioner.model.encoder", True),
        ("attention/x.py", "from captioner.text import vocabulary", True),
        ("attention/x.py", "from captioner import errors", False),
        ("data/x.py", "def f():\n    from captioner.training import module", True),
        ("caption.py", "from captioner.visualization.overlay import draw_strip", True),
        (
            "caption.py",
            "def f():\n    from captioner.visualization.overlay import draw_strip",
            False,
        ),
        ("training/x.py", "from captioner.model.decoder import Decoder", False),
    ],
)
def test_the_check_sees_what_is_wrong(place, code, wrong, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path)
    path = tmp_path / place
    path.parent.mkdir(exist_ok=True)
    path.write_text(code)
    assert bool(offences(path)) is wrong


def loaded_after(code: str) -> set[str]:
    """The top-level modules that a fresh interpreter has loaded after some code."""
    program = f"import json, sys\n{code}\nprint(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in json.loads(done.stderr)}


HEAVY = {"torch", "torchvision", "timm", "lightning", "numpy", "PIL", "matplotlib", "rich"}


def test_importing_captioner_is_light():
    assert loaded_after("import captioner; captioner.UserError; dir(captioner)") & HEAVY == set()


def test_help_is_light():
    code = "from captioner.cli import main; assert main(['--help']) == 0"
    assert loaded_after(code) & HEAVY == set()


def test_public_names():
    import captioner
    from captioner.caption import Caption
    from captioner.captioner import Captioner
    from captioner.errors import UserError

    assert (captioner.Caption, captioner.Captioner, captioner.UserError) == (
        Caption,
        Captioner,
        UserError,
    )
    assert set(captioner.__all__) <= set(dir(captioner))
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = captioner.Nothing
