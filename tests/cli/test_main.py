"""The program: finding the command, exit codes, and what goes to standard error."""

import subprocess
import sys

import pytest

import captioner
from captioner import cli
from captioner.cli import main


def test_help_lists_every_command_with_its_summary(process):
    from captioner.cli import caption, compare, evaluate, fit, prepare

    done = process("--help")
    assert done.returncode == 0
    for module in (caption, prepare, fit, evaluate, compare):
        command = module.__name__.rpartition(".")[2]
        assert f"  {command:8}  {module.SUMMARY}\n" in done.stdout


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"captioner {captioner.__version__}\n"


def test_no_command_shows_the_help_and_fails(capsys):
    assert main([]) == 2
    assert capsys.readouterr().err.startswith("usage: captioner COMMAND")


def test_unknown_command(refused):
    assert refused("captoin") == (
        "unknown command 'captoin': choose one of caption, prepare, fit, evaluate, compare"
    )


def test_wrong_option_is_one_line_that_says_where_to_look(refused):
    complaint = refused("caption", "a.jpg", "--beem-size", 3)
    assert "--beem-size" in complaint
    assert complaint.endswith("see `captioner caption --help`")


def test_one_line_whatever_the_message(refused, monkeypatch):
    def fail(_):
        raise captioner.UserError("two\nlines")

    monkeypatch.setattr(cli, "dispatch", fail)
    assert refused("caption") == "two lines"


def test_trouble_with_a_file_is_named(refused, monkeypatch, tmp_path):
    monkeypatch.setattr(cli, "dispatch", lambda _: (tmp_path / "none").read_text())
    assert refused("caption") == f"{tmp_path / 'none'}: No such file or directory"


def test_a_bug_is_not_hidden(monkeypatch):
    monkeypatch.setattr(cli, "dispatch", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["caption"])


def test_interrupted(capsys, monkeypatch):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "dispatch", interrupt)
    assert main(["caption"]) == 130
    assert capsys.readouterr().err == "captioner: interrupted\n"


def test_a_closed_pipe_is_no_error():
    process = subprocess.Popen(
        [sys.executable, "-m", "captioner", "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdout.close()
    complaint = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), complaint) == (141, "")
