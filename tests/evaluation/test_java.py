import os
import shlex
import sys

import pytest
from pycocoevalcap.meteor.meteor import Meteor
from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

from captioner.evaluation import java as programs
from captioner.evaluation.java import JavaError, java_missing, meteor, ptb_tokenize, spice
from captioner.evaluation.metrics import score

REFERENCES = {
    7: ["A man's dog runs (quickly) in the grass .", "the brown dog is running, fast!"],
    3: ["Two children don't play - they sit...", 'a "café" in the T-shirt U.S. rain & 1 1/2 dogs'],
    5: ["A red ball", "There is a red  ball on the table", "ball; red: table?"],
}
CAPTIONS = {
    7: "a dog is running in the grass",
    3: "TWO CHILDREN aren't sitting in a café .",
    5: "",
}
SEPARATORS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"


@pytest.fixture(scope="module")
def standard(java):
    """Tokens and METEOR as pycocoevalcap's own wrappers give them."""
    tokenize = PTBTokenizer().tokenize
    gts = tokenize({i: [{"caption": text} for text in texts] for i, texts in REFERENCES.items()})
    res = tokenize({i: [{"caption": text}] for i, text in CAPTIONS.items()})
    return gts, res, Meteor().compute_score(gts, res)


def test_tokens_are_pycocoevalcaps(standard):
    gts, res, _ = standard
    sentences = [text for image in gts for text in (*REFERENCES[image], CAPTIONS[image])]
    expected = [line for image in gts for line in (*gts[image], *res[image])]
    assert ptb_tokenize(sentences) == expected
    assert expected[0] == "a man 's dog runs -lrb- quickly -rrb- in the grass"


def test_meteor_is_pycocoevalcaps_in_any_language_and_with_any_separator(standard, monkeypatch):
    _, _, (total, each) = standard
    # A machine that writes 0,5 for 0.5, on which pycocoevalcap's own wrapper fails.
    german = "-Duser.language=de -Duser.country=DE"
    formats = "-Duser.language.format=de -Duser.country.format=DE"
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"{german} {formats}")
    broken = {
        image: text.replace(" ", SEPARATORS[i % len(SEPARATORS)])
        for i, (image, text) in enumerate(CAPTIONS.items())
    }
    scores = score(REFERENCES, broken, metrics=["METEOR"])
    assert scores.skipped == {}
    assert scores.metrics == {"METEOR": total}
    assert list(scores.per_image["METEOR"].values()) == each
    assert 0.2 < total < 1 and each[2] == 0  # the empty caption


def test_a_separator_moves_no_words_to_the_next_caption(java):
    hostile = [f"a red{separator}dog" for separator in [*SEPARATORS, "\0", "\x07", "\ud800"]]
    lines = ptb_tokenize([text for red in hostile for text in (red, "two cats", "")])
    assert lines[1::3] == ["two cats"] * len(hostile)
    assert lines[2::3] == [""] * len(hostile)
    assert lines[: 3 * len(SEPARATORS) : 3] == ["a red dog"] * len(SEPARATORS)


def test_the_tokenizer_writes_no_file(fake_java, tmp_path):
    fake_java(f'echo "$@" > {tmp_path}/arguments; tee {tmp_path}/input')
    assert ptb_tokenize(["A dog.", "two\ncats"]) == ["A dog.", "two cats"]
    assert (tmp_path / "input").read_text() == "A dog.\ntwo cats\n"
    arguments = (tmp_path / "arguments").read_text().split()
    assert arguments[-2:] == ["-preserveLines", "-lowerCase"]
    assert [word for word in arguments if "/" in word] == [str(programs.TOKENIZER)]


def test_one_caption_in_one_out(fake_java):
    fake_java("cat > /dev/null; echo a dog; echo two cats; echo more")
    with pytest.raises(JavaError, match="3 lines of 2 captions"):
        ptb_tokenize(["a dog", "two cats"])


def test_java_missing_says_what_is_wrong(no_java):
    assert java_missing() == "Java is not installed: there is no `java` on the PATH"


def test_a_java_that_does_not_work_is_missing(fake_java):
    fake_java('echo "Unable to locate a Java Runtime." >&2; exit 1')
    assert java_missing() == ("the `java` on the PATH does not work: Unable to locate a Java Runtime.")


def test_a_java_that_hangs_is_waited_for_once(fake_java, tmp_path, monkeypatch):
    fake_java(f"echo asked >> {tmp_path}/asked; exec sleep 100")
    run, waits = programs.run_java, []
    monkeypatch.setattr(
        programs, "run_java", lambda arguments, seconds: waits.append(seconds) or run(arguments, seconds=0.5)
    )
    scores = score({1: ["a dog"]}, {1: "a dog"}, "python", ["METEOR", "SPICE"])
    hangs = "the `java` on the PATH does not work: no answer within 0.5 s"
    assert scores.skipped == {"METEOR": hangs, "SPICE": hangs}
    assert waits == [60] and (tmp_path / "asked").read_text() == "asked\n"


def test_java_that_works_is_not_missing(fake_java):
    fake_java('case "$*" in *" -version") exit 0;; esac; exit 1')
    assert java_missing() is None


def test_meteor_that_hangs_is_ended(fake_java, tmp_path):
    fake_java(f"echo $$ > {tmp_path}/pid; exec sleep 100")
    with pytest.raises(JavaError, match=r"METEOR did not answer within 3 s"):
        meteor([["a dog"]], [["a dog"]], seconds=3)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_tokenizer_that_hangs_is_ended(fake_java):
    fake_java("exec sleep 100")
    with pytest.raises(JavaError, match=r"no answer within 0.5 s"):
        ptb_tokenize(["a dog"], seconds=0.5)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'Picked up options\nException in x: no heap\n at y' >&2; exit 1", "in x: no heap"),
        ("exit 1", "it ended without a word|Broken pipe"),
        ("while read line; do printf 'what\\nwhat\\nwhat\\n'; done", "to float: 'what'"),
        ("read line; echo 1.0 2.0; exec <&-; echo OutOfMemoryError >&2", "OutOfMemoryError"),
    ],
)
def test_meteor_that_fails_says_why(fake_java, script, reason):
    fake_java(script)
    with pytest.raises(JavaError, match=f"METEOR failed: .*({reason})"):
        meteor([["a dog"], ["a cat"]], [["a dog", "a cat"]], seconds=30)


METEOR_PROGRAM = """
hear() { read -r line; echo "$line" >> ASKED; }
hear; echo s1; hear; echo s2; hear; printf '0.25\\n0.5\\n0.3\\n'
hear; echo t1; hear; echo t2; hear; printf '0\\n1\\n0.6\\n'
"""


def test_meteor_is_asked_for_each_caption_then_for_the_run(fake_java, tmp_path):
    fake_java(METEOR_PROGRAM.replace("ASKED", str(tmp_path / "asked")))
    scores = meteor([["a ||| dog", "b"], ["c"]], [["d|||e", "f"], ["g", ""]], seconds=30)
    assert scores == [(0.3, [0.25, 0.5]), (0.6, [0, 1])]
    assert (tmp_path / "asked").read_text().splitlines() == [
        "SCORE ||| a dog ||| b ||| de",
        "SCORE ||| c ||| f",
        "EVAL ||| s1 ||| s2",
        "SCORE ||| a dog ||| b ||| g",
        "SCORE ||| c |||",
        "EVAL ||| t1 ||| t2",
    ]


@pytest.fixture
def spice_models(tmp_path, monkeypatch):
    (tmp_path / "spice" / "lib").mkdir(parents=True)
    for name in programs.SPICE_MODELS:
        (tmp_path / "spice" / "lib" / name).touch()
    monkeypatch.setattr(programs, "SPICE", tmp_path / "spice" / "spice-1.0.jar")
    return tmp_path / "spice" / "lib"


@pytest.mark.parametrize("name", programs.SPICE_MODELS)
def test_missing_spice_models_are_named(spice_models, name):
    assert programs.spice_missing() is None
    (spice_models / name).unlink()
    reason = programs.spice_missing()
    assert reason.startswith(f"Stanford models are missing in pycocoevalcap/spice/lib: {name};")


SPICE_PROGRAM = """
import json, sys
asked = json.load(open(sys.argv[sys.argv.index("-jar") + 2]))
assert asked[1] == {"image_id": 1, "test": "two cats", "refs": ["cats", "a cat"]}, asked
answer = [{"image_id": i, "scores": {"All": {"f": f}}} for i, f in ((1, 0.5), (0, FIRST))]
json.dump(answer, open(sys.argv[sys.argv.index("-out") + 1], "w"))
"""


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("", "FileNotFoundError"),
        ('echo "[" > "$5"', "JSONDecodeError"),
        ('echo "[{}]" > "$5"', "KeyError"),
        ('echo "3" > "$5"', "TypeError"),
    ],
)
def test_spice_that_leaves_no_scores_is_an_error_of_java(fake_java, written, reason):
    fake_java(f'while [ "$1" != -jar ]; do shift; done; {written}')
    with pytest.raises(JavaError, match=rf"SPICE left no scores \({reason}"):
        spice([["a dog"]], ["a dog"])


@pytest.mark.parametrize(("first", "known"), [("0.25", True), ("None", False)])
def test_spice_is_the_mean_f_score(fake_java, first, known):
    program = shlex.quote(SPICE_PROGRAM.replace("FIRST", first))
    fake_java(f'exec {sys.executable} -c {program} "$@"')
    asked = ([["a dog"], ["cats", "a cat"]], ["a dog", "two cats"])
    if known:
        assert spice(*asked) == (0.375, [0.25, 0.5])
    else:
        with pytest.raises(JavaError, match="a score to 1 of 2 captions only"):
            spice(*asked)
