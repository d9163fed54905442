"""The Java programs of pycocoevalcap, run so that nothing hangs, shifts or is left behind.

pycocoevalcap's own wrappers write into their package, wait for ever for a program that has died,
and take one caption for two where it holds a line separator. The programs, their options and so
the numbers are the same here.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from functools import cache
from importlib.metadata import distribution
from pathlib import Path

from pycocoevalcap.tokenizer.ptbtokenizer import PUNCTUATIONS

PACKAGE = Path(str(distribution("pycocoevalcap").locate_file("pycocoevalcap")))
TOKENIZER = PACKAGE / "tokenizer" / "stanford-corenlp-3.4.1.jar"
METEOR = PACKAGE / "meteor" / "meteor-1.5.jar"
SPICE = PACKAGE / "spice" / "spice-1.0.jar"
SPICE_MODELS = ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar")

# Numbers with a decimal point and text in UTF-8, whatever the machine's language.
LOCALE = (
    "-Duser.language=en",
    "-Duser.country=US",
    "-Duser.language.format=en",
    "-Duser.country.format=US",
    "-Dfile.encoding=UTF-8",
)


class JavaError(RuntimeError):
    """A Java program is missing, failed, or did not answer in time; the message says which."""


def java_missing() -> str | None:
    """Why Java cannot be used here, None if it can."""
    program = shutil.which("java")
    return "Java is not installed: there is no `java` on the PATH" if program is None else fault_of(program)


@cache
def fault_of(program: str) -> str | None:
    """Why this `java` does not work; asked once, as one that hangs is waited for."""
    try:
        run_java(["-version"], seconds=60)
    except JavaError as error:
        return f"the `java` on the PATH does not work: {error}"
    return None


def spice_missing() -> str | None:
    """Why SPICE cannot be computed with the files that are here, None if they are complete."""
    missing = [name for name in SPICE_MODELS if not (SPICE.parent / "lib" / name).is_file()]
    if missing:
        return (
            f"Stanford models are missing in pycocoevalcap/spice/lib: {', '.join(missing)}; "
            "pycocoevalcap.spice.get_stanford_models fetches them"
        )
    return None


def ptb_tokenize(sentences: Sequence[str], seconds: float = 600) -> list[str]:
    """Each sentence's Penn Treebank tokens, lower-cased, without punctuation, joined by spaces.

    Args:
        sentences: any text; separators within a sentence count as spaces.
        seconds: the longest wait.

    Raises:
        JavaError: the tokenizer failed, or gave another number of lines.
    """
    clean = [" ".join(sentence.split()) for sentence in sentences]
    program = ["-cp", str(TOKENIZER), "edu.stanford.nlp.process.PTBTokenizer"]
    text = "".join(f"{line}\n" for line in clean)
    answer = run_java([*program, "-preserveLines", "-lowerCase"], text, seconds)
    lines = answer.split("\n")[:-1]
    if len(lines) != len(clean):
        raise JavaError(f"the PTB tokenizer made {len(lines)} lines of {len(clean)} captions")
    tokens = [line.rstrip().split(" ") for line in lines]
    return [" ".join(word for word in words if word not in PUNCTUATIONS) for words in tokens]


def meteor(
    references: Sequence[Sequence[str]], runs: Sequence[Sequence[str]], seconds: float = 300
) -> list[tuple[float, list[float]]]:
    """METEOR 1.5 of tokenized captions: for each run that of the whole, which is no mean, and of each.

    The program takes long to start, so it starts once for all runs.

    Args:
        references: for each image, its references.
        runs: in each run a caption for each image; one line of text each.
        seconds: the longest wait for one answer of the program.

    Raises:
        JavaError: the program died, answered nonsense, or not in time.
    """
    options = ["-", "-", "-stdio", "-l", "en", "-norm"]
    with tempfile.TemporaryFile() as complaints:
        try:
            process = subprocess.Popen(
                ["java", *LOCALE, "-Xmx2G", "-jar", str(METEOR), *options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
            )
        except OSError as error:
            raise JavaError(f"METEOR did not start: {error}") from None
        try:
            scores = []
            for captions in runs:
                statistics: list[str] = []
                for refs, text in zip(references, captions, strict=True):
                    statistics += ask(process, ["SCORE", *refs, text], 1, seconds)
                answers = ask(process, ["EVAL", *statistics], len(captions) + 1, seconds)
                *each, total = map(float, answers)
                scores.append((total, each))
        except TimeoutError:
            raise JavaError(f"METEOR did not answer within {seconds:g} s") from None
        except (OSError, ValueError) as error:  # a broken pipe, or an answer that is no number
            process.kill()
            process.wait()
            complaints.seek(0)
            reason = complaint(complaints.read()) or str(error)
            raise JavaError(f"METEOR failed: {reason}") from None
        finally:
            process.kill()
            process.communicate()
    return scores


def ask(process: subprocess.Popen[bytes], fields: Sequence[str], answers: int, seconds: float) -> list[str]:
    """Write one line to METEOR and read its answers.

    Raises:
        TimeoutError: it did not answer in time, and is dead now.
        OSError: it had died.
    """
    assert process.stdin and process.stdout
    line = " ||| ".join(field.replace("|||", "").replace("  ", " ") for field in fields)
    watchdog = threading.Timer(seconds, process.kill)
    started = time.monotonic()
    watchdog.start()
    try:
        process.stdin.write(line.encode(errors="replace") + b"\n")
        process.stdin.flush()
        lines = [process.stdout.readline().decode().strip() for _ in range(answers)]
        if not all(lines):
            raise BrokenPipeError("it ended without a word")
        return lines
    finally:
        watchdog.cancel()
        if time.monotonic() - started >= seconds:
            raise TimeoutError


def spice(
    references: Sequence[Sequence[str]], captions: Sequence[str], seconds: float = 3600
) -> tuple[float, list[float]]:
    """SPICE of tokenized captions: the mean F-score, and that of each caption.

    Raises:
        JavaError: the program failed, as it may on Java newer than 11, or left out a caption.
    """
    items = [
        {"image_id": i, "test": text, "refs": list(refs)}
        for i, (refs, text) in enumerate(zip(references, captions, strict=True))
    ]
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder, "captions.json"), Path(folder, "scores.json")
        asked.write_text(json.dumps(items))
        program = ["-Xmx8G", "-jar", str(SPICE), str(asked)]
        run_java([*program, "-out", str(answered), "-subset", "-silent"], seconds=seconds)
        try:
            scored = json.loads(answered.read_text())
            found = {item["image_id"]: item["scores"]["All"]["f"] for item in scored}
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise JavaError(f"SPICE left no scores ({type(error).__name__}: {error})") from None
    each = [float(found[i]) for i in range(len(items)) if found.get(i) is not None]
    if len(each) < len(items) or any(map(math.isnan, each)):
        raise JavaError(f"SPICE gave a score to {len(each)} of {len(items)} captions only")
    return math.fsum(each) / len(each), each


def run_java(arguments: Sequence[str], text: str = "", seconds: float = 600) -> str:
    """What a Java program prints, given text on its standard input.

    Raises:
        JavaError: it failed, or took longer than `seconds`.
    """
    try:
        done = subprocess.run(
            ["java", *LOCALE, *arguments],
            input=text.encode(errors="replace"),
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise JavaError(f"no answer within {seconds:g} s") from None
    except OSError as error:
        raise JavaError(str(error)) from None
    if done.returncode != 0:
        raise JavaError(complaint(done.stderr) or f"it ended with exit code {done.returncode}")
    return done.stdout.decode(errors="replace")


def complaint(stderr: bytes) -> str:
    """The one line that says what went wrong, empty if there is none."""
    lines = [line.strip() for line in stderr.decode(errors="replace").splitlines() if line.strip()]
    telling = [line for line in lines if "Exception" in line or "Error" in line] or lines[-1:]
    return telling[0] if telling else ""
