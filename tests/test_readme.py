"""The README's two commands are all the set-up there is, and CI runs the one that tests."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_readme_sets_up_with_the_two_scripts_alone():
    scripts = re.findall(r"\bbash \S+", (ROOT / "README.md").read_text())
    assert set(scripts) == {"bash scripts/quickstart.sh", "bash scripts/test.sh"}
    for script in scripts:
        assert (ROOT / script.removeprefix("bash ")).is_file()


def test_ci_runs_the_readmes_tests():
    commands = [
        line
        for line in (ROOT / ".ci" / "run").read_text().splitlines()
        if line and not line.startswith(("#", "set ", "cd "))
    ]
    assert commands == ["bash scripts/test.sh"]
