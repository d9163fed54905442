"""The program: finding the command, exit codes, and what goes to standard error."""

import os
import signal
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
    assert complaint.endswith("(`captioner caption --help` says more)")


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


def test_sigterm_clears_away_what_is_half_written(tmp_path):
    script = f"""
import sys, time
from captioner import cli
from captioner.files import replacing
def work(_):
    with replacing({str(tmp_path / "scores.json")!r}) as partial:
        partial.write_text("half")
        print("writing", flush=True)
        time.sleep(60)
cli.dispatch = work
sys.exit(cli.main(["caption"]))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "writing\n"
    assert len(list(tmp_path.iterdir())) == 1
    process.send_signal(signal.SIGTERM)
    assert process.communicate()[1] == "captioner: terminated\n"
    assert process.returncode == 143
    assert list(tmp_path.iterdir()) == []


def test_standard_output_may_be_closed(tmp_path):
    command = f"{sys.executable} -m captioner --help >&-"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, cwd=os.getcwd())
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "after"),
    [
        (("caption", ""), "caption"),
        (("caption", "a.jpg", "--overlay", ""), "--overlay"),
        (("caption", "a.jpg", "--json="), "--json"),
        (("prepare", "shapes", "--out", ""), "--out"),
        (("evaluate", "--data", ""), "--data"),
        (("fit", "--config", ""), "--config"),
    ],
)
def test_an_empty_path_is_not_this_folder(refused, arguments, after, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refused(*arguments) == f"there is nothing after {after}: give it a value"
    assert list(tmp_path.iterdir()) == []


def test_a_message_does_not_steer_the_terminal(refused):
    assert refused("caption", "\x1b[31mred.jpg") == r"no picture at \x1b[31mred.jpg: check the path"
    assert r"unknown command '\x1b" in refused("\x1b[31m")
