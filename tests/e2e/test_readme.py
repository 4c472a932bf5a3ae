"""README's commands run as written, in their order, in one empty folder, on small data made for the names they use.

Every line of a ```sh fence counts, and every ```python fence as a whole. How a line is treated:

- `fscil data NAME --root DIR` and `fscil train RECIPE --data DIR`: a small data set of that kind is put into DIR first,
  unless something is there. It is complete, so that `--download` finds nothing to fetch.
- `fscil train`, `bench`, `study`: as written, plus SHORTER, because the paper's recipes take days; `--resume` included.
- `fscil fit DIR`, `fscil check MODEL DIR`: a small folder of photos is put into DIR first; a photo that a later command
  names is made too. `fit` as written, plus FITTED, because fine-tuning takes minutes.
- `fscil serve`: in a process of its own, until it answers; then it is stopped as by Ctrl-C and must end well.
- `fscil demo`: only its options are checked here, because `make demo` runs it whole. A later command that uses its
  folder finds a run of the same recipe there, shortened in the same way.
- any other `fscil` command: as written.
- lines that begin with one of ELSEWHERE set up a machine and are not run. Any other line is an error: a command nobody
  tests does not belong in a sh fence, nor does a line with placeholders (a synopsis goes into a ```text fence).
"""

import os
import re
import shlex
import signal
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from helpers import call, picture, start, write_images

README = Path(__file__).parents[2] / "README.md"
ELSEWHERE = ("git ", "cd ", "make", "pip install", "python -m venv", "python3 -m venv", "source ", ". ", "export ")
SHORTER = {
    "cifar100": ["train.epochs=1", "train.batch=512", "mixing.repeats=0", "model.projection=4", "model.width=1"],
    "glyphs": ["train.epochs=0", "model.width=1"],
}
FITTED = ["model.backbone=resnet20", "model.init=scratch", "views.size=32", "data.resize=36", "train.epochs=1"]
for name in ("cub200", "mini_imagenet", "folder"):
    SHORTER[name] = [*SHORTER["cifar100"], "views.size=32", "data.resize=40", "protocol.shots=[5,1]"]


def fences(text, language):
    """The content of each fence of this language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def commands(text):
    """Every command of the sh fences, as a list of words; continued lines are joined, comments dropped."""
    found = []
    for fence in fences(text, "(?:sh|bash|shell|console)"):
        for line in fence.replace("\\\n", " ").splitlines():
            words = line.strip().removeprefix("$ ").strip()
            if words and not words.startswith("#") and not words.startswith(ELSEWHERE):
                found.append(shlex.split(words, comments=True))
    return found


def option(words, name):
    return next((words[place + 1] for place, word in enumerate(words[:-1]) if word == name), None)


def settings_of(words):
    return [words[place + 1] for place, word in enumerate(words[:-1]) if word == "--set"]


# Small data


def make_folder(root, words=()):
    ordered = [name for item in settings_of(words) for name in re.findall(r'"([^"]+)"', item) if "order=" in item]
    write_images(root, train=8, test=2, names=tuple(ordered) or tuple(f"class {label:02}" for label in range(30)))


def make_cifar100(root, words=()):
    root.mkdir(parents=True, exist_ok=True)
    pixels = np.stack([np.kron(picture(label, 0), np.ones((2, 2, 1), np.uint8)) for label in range(100)])
    train, test = np.repeat(pixels, 6, 0), pixels
    labels = np.arange(100)
    np.savez(root / "cifar100.npz", train_x=train, train_y=np.repeat(labels, 6), test_x=test, test_y=labels)


def make_cub200(root, words=()):
    home = root / "CUB_200_2011"
    lines = {"images.txt": [], "image_class_labels.txt": [], "train_test_split.txt": []}
    for label in range(1, 201):
        folder = f"{label:03}.Bird_{label}"
        (home / "images" / folder).mkdir(parents=True)
        for place in range(7):
            number = len(lines["images.txt"]) + 1
            Image.fromarray(picture(label, place)).save(home / "images" / folder / f"{place}.jpg")
            lines["images.txt"].append(f"{number} {folder}/{place}.jpg")
            lines["image_class_labels.txt"].append(f"{number} {label}")
            lines["train_test_split.txt"].append(f"{number} {int(place < 6)}")
    for name, content in lines.items():
        (home / name).write_text("\n".join(content) + "\n")


def make_mini_imagenet(root, words=()):
    (root / "images").mkdir(parents=True)
    for part, places in (("train", range(6)), ("test", range(6, 7))):
        rows = ["filename,label"]
        for label in range(100):
            for place in places:
                name = f"n{label:08}{place:08}.jpg"
                Image.fromarray(picture(label, place)).save(root / "images" / name)
                rows.append(f"{name},n{label:08}")
        (root / f"{part}.csv").write_text("\n".join(rows) + "\n")


MAKERS = {
    "folder": make_folder,
    "cifar100": make_cifar100,
    "cub200": make_cub200,
    "mini_imagenet": make_mini_imagenet,
}


def provide(kind, root, words=()):
    """Put a data set of this kind where a command expects it, unless something is there."""
    path = Path(root).expanduser()
    if kind in MAKERS and not (path.exists() and any(path.iterdir())):
        MAKERS[kind](path, words)


# Running


def run_command(words):
    """One command of the README in the current folder; see the module's docstring."""
    line = shlex.join(words)
    variables, words = leading_variables(words)
    assert words[:1] == ["fscil"], f"README: {line}: neither an fscil command nor one of {ELSEWHERE}"
    assert not re.search(r"…|\.\.\.|\[--|<\w+>", line), f"README: {line}: a synopsis, not a command"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables:
            patch.setenv(name, value)
        run_fscil(words[1:])


def leading_variables(words):
    """VARIABLE=value … before a command, and the command."""
    first = next((place for place, word in enumerate(words) if not re.match(r"[A-Z_]+=", word)), len(words))
    return [word.split("=", 1) for word in words[:first]], words[first:]


def run_fscil(words):
    verb, *rest = words
    if verb == "demo":
        assert call(verb, *rest, "--help") == 0
        return
    if verb == "data" and option(rest, "--root"):
        provide(rest[0], option(rest, "--root"), rest)
    if verb == "evaluate" and rest[0] == "runs/demo" and not Path("runs/demo/run.json").exists():
        run_train("train", ["glyphs", "--out", "runs/demo"])
    if verb in ("train", "bench", "study"):
        run_train(verb, rest)
    elif verb == "fit":
        run_fit(rest)
    elif verb == "serve":
        run_serve(rest)
    else:
        if verb == "check":
            provide("folder", rest[1])
        for word in rest:
            make_photo(word)
        assert call(verb, *rest) == 0, shlex.join(["fscil", *words])


def make_photo(word):
    """A photo, or a folder of them, where a command names one that is not there."""
    path = Path(word)
    if path.suffix == ".jpg" and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture(len(word) % 12, len(word))).save(path)
    elif path.parts[:1] == ("photos",) and not path.suffix and not path.exists():
        for place in range(8):
            make_photo(f"{word}/{place:0{place + 1}}.jpg")


def run_fit(rest):
    provide("folder", rest[0])
    shorter = [word for item in FITTED for word in ("--set", item)]
    assert call("fit", *rest, *shorter, "--quiet") == 0, shlex.join(["fscil", "fit", *rest])


def run_serve(rest):
    server = start(["serve", *rest, "--port", "0"], Path(os.environ["FSCIL_CACHE"]))
    try:
        address = next(found.group() for line in server.stdout if (found := re.search(r"http://[\d.:]+", line)))
        with urllib.request.urlopen(f"{address}/health") as answer:
            assert answer.status == 200
    finally:
        server.send_signal(signal.SIGINT)
        _, errors = server.communicate()
    assert server.returncode in (0, 130), errors


def run_train(verb, rest):
    recipe, data = rest[verb == "study"].removesuffix("_cpu"), option(rest, "--data")
    kind = recipe if recipe in SHORTER else "folder"
    if data:
        provide(kind, data, rest)
    shorter = [word for item in SHORTER[kind] for word in ("--set", item)]
    if verb != "train":
        shorter += ["--set", "incremental.steps=1"]
    assert call(verb, *rest, *shorter, "--quiet") == 0, shlex.join(["fscil", verb, *rest])


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The folder all commands run in, one after the other; also the home of whoever writes ~."""
    folder = tmp_path_factory.mktemp("readme")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("HOME", str(folder))
        yield folder


def ids(words):
    return shlex.join(words) if isinstance(words, list) else "python"


@pytest.mark.parametrize("words", commands(README.read_text(encoding="utf-8")), ids=ids)
def test_a_command(place, words):
    run_command(words)


@pytest.mark.parametrize("code", fences(README.read_text(encoding="utf-8"), "python"), ids=ids)
def test_a_program(place, code):
    for kind, root in re.findall(r"""load\(\s*["'](\w+)["']\s*,\s*["']([^"']+)["']""", code):
        provide(kind, root)
    exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})


# The reading itself, which must not overlook a command

SAMPLE = """
# Title
```sh
git clone somewhere   # not run
$ fscil recipes
fscil train folder --data 'my photos' \\
  --out runs/a --set train.lr=0.1  # a comment

# only a comment
FSCIL_CACHE=/tmp fscil demo
```
```text
fscil train RECIPE [--set key=value …]
```
```python
import fscil
```
"""


def test_all_commands_of_a_text_are_found():
    assert commands(SAMPLE) == [
        ["fscil", "recipes"],
        ["fscil", "train", "folder", "--data", "my photos", "--out", "runs/a", "--set", "train.lr=0.1"],
        ["FSCIL_CACHE=/tmp", "fscil", "demo"],
    ]
    assert fences(SAMPLE, "python") == ["import fscil\n"]


@pytest.mark.parametrize("line", ["curl example.org", "fscil train RECIPE [--set key=value]", "fscil train … --resume"])
def test_what_cannot_be_tested_is_refused(line):
    with pytest.raises(AssertionError, match="README"):
        run_command(shlex.split(line))


def test_a_wrong_command_fails(place):
    with pytest.raises(AssertionError, match="fscil evaluate runs/none"):
        run_command(["fscil", "evaluate", "runs/none"])


@pytest.mark.parametrize("kind", MAKERS)
def test_the_small_data_sets_are_what_they_claim(place, kind):
    run_command(["fscil", "data", kind, "--root", f"small/{kind}"])


def test_train_evaluate_and_resume_run_shortened(place):
    train = ["fscil", "train", "folder", "--data", "small/photos", "--out", "runs/pictures"]
    small = ["--set", "model.backbone=resnet18", "--set", "model.init=scratch"]
    run_command([*train, *small])
    run_command([*train, *small, "--resume"])
    run_command(["fscil", "evaluate", "runs/pictures", "--draws", "2"])
    assert (place / "runs" / "pictures" / "table.md").is_file()
