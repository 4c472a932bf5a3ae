import fcntl
import hashlib
import json
import os
import subprocess
import sys
import warnings

import pytest
import torch

from fscil.classifier.model_folder import Changed, ModelFolder
from fscil.errors import FscilWarning, StoreError
from fscil.runtime.files import pack_tensors

WEIGHTS = {"weight": torch.arange(6.0).reshape(2, 3), "steps": torch.tensor(7)}
ABOUT = {"name": "鹿", "shots": [5, 1], "threshold": None, "nested": {"false_accept": 0.05}}
SNAPSHOT = {"features": torch.full((2, 3), 0.5), "classes": torch.tensor([1, 2], dtype=torch.uint8)}
RECORDS = [{"name": f"class {number}", "values": [number, number / 3]} for number in range(4)]


@pytest.fixture
def path(tmp_path):
    """A model with four records in its journal."""
    folder = ModelFolder(tmp_path / "model")
    folder.create(WEIGHTS, ABOUT, SNAPSHOT)
    for record in RECORDS:
        folder.append(record)
    return tmp_path / "model"


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def listing(folder):
    return sorted(each.name for each in folder.iterdir())


def only(path, pattern):
    (found,) = path.glob(pattern)
    return found


def counted(contents):
    """A compaction that writes down how many records there were."""
    return Changed({**contents.about, "records": len(contents.records)}, contents.snapshot)


def sign(content):
    """The checksum of a model.json, written out."""
    rest = {key: value for key, value in content.items() if key != "sha256"}
    return {**rest, "sha256": hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()}


# What is on disk


def test_everything_comes_back(path):
    found = ModelFolder(path).read()
    assert same(found.weights, WEIGHTS)
    assert same(found.snapshot, SNAPSHOT)
    assert found.about == ABOUT
    assert found.records == RECORDS


def test_the_files_are_as_documented(path):
    weights = only(path, "weights-*.safetensors")
    sha256 = hashlib.sha256(weights.read_bytes()).hexdigest()
    assert weights.name == f"weights-{sha256[:8]}.safetensors"
    names = [".lock", ".server", "gallery-1.safetensors", "journal-1.jsonl", "model.json", weights.name]
    assert listing(path) == sorted(names)
    content = json.loads((path / "model.json").read_text(encoding="utf-8"))
    assert content == sign(content)
    assert (content["schema"], content["generation"], content["journal"]) == (1, 1, "journal-1.jsonl")
    assert content["about"] == ABOUT
    for file in content["files"].values():
        data = (path / file["name"]).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (file["size"], file["sha256"])


def test_the_journal_is_a_chain(path):
    previous = json.loads((path / "model.json").read_text(encoding="utf-8"))["sha256"]
    lines = (path / "journal-1.jsonl").read_bytes().split(b"\n")
    assert lines.pop() == b""
    for line, record in zip(lines, RECORDS, strict=True):
        digest, payload = line.decode().split(" ", 1)
        assert digest == hashlib.sha256((previous + payload).encode()).hexdigest()
        assert json.loads(payload) == record
        previous = digest


def test_records_of_any_text(path):
    records = [{"text": text} for text in ("鹿", "line\u2028break\n", "caf\udce9", "\0", " ")]
    folder = ModelFolder(path)
    for record in records:
        folder.append(record)
    assert ModelFolder(path).read().records == RECORDS + records


def test_a_record_that_is_no_json_is_not_written(path):
    before = ModelFolder(path).version()
    with pytest.raises(ValueError, match="Out of range"):
        ModelFolder(path).append({"value": float("nan")})
    assert ModelFolder(path).version() == before
    assert ModelFolder(path).read().records == RECORDS


def test_about_comes_back_as_json_makes_it(tmp_path):
    folder = ModelFolder(str(tmp_path / "deep" / "model"))
    folder.create({}, {"pair": (1, 2), "text": "caf\udce9", 3: 1e300}, {})
    found = folder.read()
    assert found.about == {"pair": [1, 2], "text": "caf\udce9", "3": 1e300}
    assert found.weights == found.snapshot == {}


# Versions


def test_a_version_changes_with_the_model_and_only_then(tmp_path):
    folder, other = ModelFolder(tmp_path / "model"), ModelFolder(tmp_path / "model")
    versions = [folder.create(WEIGHTS, ABOUT, SNAPSHOT)]
    versions.append(folder.append(RECORDS[0]))
    versions.append(other.append(RECORDS[0]))
    versions.append(folder.compact(counted))
    versions.append(other.append(RECORDS[0]))
    versions.append(other.create(WEIGHTS, ABOUT, SNAPSHOT))
    assert len(set(versions)) == len(versions)
    assert folder.version() == other.version() == ModelFolder(folder.path).version() == versions[-1]
    assert folder.version() == folder.read().version


def test_each_step_gives_the_version_that_others_read(tmp_path):
    folder = ModelFolder(tmp_path / "model")
    for step in (
        lambda: folder.create(WEIGHTS, ABOUT, SNAPSHOT),
        lambda: folder.append(RECORDS[0]),
        lambda: folder.append(RECORDS[1]),
        lambda: folder.compact(counted),
        lambda: folder.append(RECORDS[2]),
    ):
        assert step() == ModelFolder(folder.path).version() == ModelFolder(folder.path).read().version


def test_a_model_made_anew_in_the_same_place_is_another(tmp_path):
    """Also where generation and length of the journal are the same."""
    versions = []
    for number in range(2):
        folder = ModelFolder(tmp_path / str(number))
        folder.create(WEIGHTS, {"number": number}, SNAPSHOT)
        versions.append(folder.append(RECORDS[0]))
    (tmp_path / "0").rename(tmp_path / "old")
    (tmp_path / "1").rename(tmp_path / "0")
    assert ModelFolder(tmp_path / "0").version() != versions[0]
    assert ModelFolder(tmp_path / "0").records_since(versions[0]) is None


def test_records_since(path):
    folder, other = ModelFolder(path), ModelFolder(path)
    start = folder.version()
    assert folder.records_since(start) == []
    middle = other.append({"new": 1})
    other.append({"new": 2})
    assert folder.records_since(start) == [{"new": 1}, {"new": 2}]
    assert folder.records_since(middle) == [{"new": 2}]
    other.compact(counted)
    assert folder.records_since(middle) is None
    assert folder.records_since(folder.version()) == []


def test_an_older_copy_of_the_journal_put_back(path):
    """By hand, under a process that knows more: it reads again instead of going on from nowhere."""
    journal = path / "journal-1.jsonl"
    old = journal.read_bytes()
    folder = ModelFolder(path)
    version = folder.append({"new": 1})
    journal.write_bytes(old)
    assert folder.records_since(version) is None
    assert folder.version() != version
    folder.append({"other": "x" * 100})
    journal.write_bytes(old)
    ModelFolder(path).append({"quite": "another" * 100})
    folder.append({"last": 1})
    assert ModelFolder(path).read().records == [*RECORDS, {"quite": "another" * 100}, {"last": 1}]


# Compaction and replacement


def test_compaction(path):
    folder = ModelFolder(path)
    weights = only(path, "weights-*")
    before = weights.stat().st_ino
    new = {"features": torch.ones(5)}
    folder.compact(lambda contents: Changed({"seen": contents.records, "was": contents.about}, new))
    found = folder.read()
    assert found.about == {"seen": RECORDS, "was": ABOUT}
    assert same(found.snapshot, new)
    assert same(found.weights, WEIGHTS)
    assert found.records == []
    assert weights.stat().st_ino == before
    names = [".lock", ".server", "gallery-2.safetensors", "journal-2.jsonl", "model.json", weights.name]
    assert listing(path) == sorted(names)
    ModelFolder(path).append({"new": 1})
    assert folder.read().records == [{"new": 1}]


def test_a_compaction_that_fails_changes_nothing(path):
    folder = ModelFolder(path)
    before = folder.version(), listing(path)
    with pytest.raises(RuntimeError, match="no idea"):
        folder.compact(lambda contents: (_ for _ in ()).throw(RuntimeError("no idea")))
    with pytest.raises(ValueError, match="Out of range"):
        folder.compact(lambda contents: Changed({"threshold": float("nan")}, {}))
    assert ModelFolder(path).version() == before[0]
    assert ModelFolder(path).read().records == RECORDS
    folder.append({"new": 1})
    assert listing(path) == before[1]


def test_replacing_a_whole_model(path):
    (path / "notes.txt").write_text("mine")
    folder = ModelFolder(path)
    folder.create({"other": torch.zeros(3)}, {"new": True}, {})
    found = ModelFolder(path).read()
    assert same(found.weights, {"other": torch.zeros(3)})
    assert (found.about, found.snapshot, found.records) == ({"new": True}, {}, [])
    assert len(list(path.glob("weights-*"))) == 1
    assert (path / "notes.txt").read_text() == "mine"


def test_replacing_only_what_was_expected(path):
    folder = ModelFolder(path)
    known = folder.version()
    ModelFolder(path).append({"new": 1})
    with pytest.raises(StoreError, match="has changed since it was read"):
        folder.create({}, {}, {}, expected=known)
    assert len(folder.read().records) == 5
    folder.create({}, {}, {}, expected=folder.version())
    assert folder.read().records == []


def test_a_folder_of_somebody_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(StoreError, match=r"something else \(thesis\.tex\)"):
        ModelFolder(tmp_path).create(WEIGHTS, ABOUT, SNAPSHOT)
    assert listing(tmp_path) == ["thesis.tex"]
    with pytest.raises(StoreError, match="cannot be written"):
        ModelFolder(tmp_path / "thesis.tex").create(WEIGHTS, ABOUT, SNAPSHOT)
    assert (tmp_path / "thesis.tex").read_text() == "mine"


def test_a_model_json_of_another_program_is_not_overwritten(tmp_path):
    (tmp_path / "model.json").write_text('{"schema": 1, "mine": true}')
    with pytest.raises(StoreError, match="of another program"):
        ModelFolder(tmp_path).create(WEIGHTS, ABOUT, SNAPSHOT)
    assert json.loads((tmp_path / "model.json").read_text()) == {"schema": 1, "mine": True}


def test_leftovers_go_with_the_next_write(path):
    before = listing(path)
    leftovers = ("gallery-2.safetensors", "journal-2.jsonl", "weights-00000000.safetensors", ".model.json.x1.part")
    for name in leftovers:
        (path / name).write_text("half")
    ModelFolder(path).read()
    assert len(listing(path)) == len(before) + 4
    ModelFolder(path).append({"new": 1})
    assert listing(path) == before
    assert ModelFolder(path).read().records == [*RECORDS, {"new": 1}]


# Torn and damaged

LINE = b"0" * 64 + b' {"name": "class"}'


@pytest.mark.parametrize(
    "tail",
    [b"0", LINE, LINE[:30], b"\0" * 500, LINE[:70] + b"\0" * 30, b"\0" * 4096 + b'"}\n', b"\xff\xfe", b"{"],
    ids=["a byte", "all but the newline", "half", "zeros", "half zeros", "first half zeros", "rubbish", "brace"],
)
def test_a_torn_tail_is_dropped_and_then_cut_off(path, tail):
    whole = ModelFolder(path).version()
    with (path / "journal-1.jsonl").open("ab") as file:
        file.write(tail)
    folder = ModelFolder(path)
    with pytest.warns(FscilWarning, match=r"journal-1\.jsonl: the last line is torn.* The 4 records before it"):
        found = folder.read()
    assert found.records == RECORDS
    assert found.version == whole == ModelFolder(path).version()
    assert folder.records_since(whole) == []
    ModelFolder(path).append({"new": 1})
    assert ModelFolder(path).read().records == [*RECORDS, {"new": 1}]


def test_a_torn_tail_does_not_outlive_compaction(path):
    with (path / "journal-1.jsonl").open("ab") as file:
        file.write(LINE)
    folder = ModelFolder(path)
    folder.compact(counted)
    assert folder.read().about["records"] == 4


def test_a_line_that_is_being_written_is_not_torn(path):
    with (path / "journal-1.jsonl").open("ab") as file, (path / ".lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        file.write(LINE)
        file.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert ModelFolder(path).read().records == RECORDS


def test_a_damaged_line_is_refused_with_the_way_out(path):
    journal = path / "journal-1.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:2], lines[2].replace(b"class 2", b"class 9"), lines[3]]))
    place = len(lines[0]) + len(lines[1])
    for use in (lambda folder: folder.read(), lambda folder: folder.version(), lambda folder: folder.append({})):
        with pytest.raises(StoreError, match=rf"journal-1\.jsonl: the line at byte {place} has a wrong checksum"):
            use(ModelFolder(path))
    with journal.open("r+b") as file:
        file.truncate(place)
    assert ModelFolder(path).read().records == RECORDS[:2]


@pytest.mark.parametrize("order", [[0, 1, 3, 2], [0, 2, 3], [1, 2, 3], [0, 0, 1, 2, 3], [0, 1, 2, 3, 3]])
def test_lines_taken_out_moved_or_doubled_are_refused(path, order):
    journal = path / "journal-1.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[number] for number in order))
    with pytest.raises(StoreError, match="wrong checksum"):
        ModelFolder(path).read()


@pytest.mark.parametrize("pattern", ["weights-*", "gallery-*", "journal-*"])
def test_a_file_that_is_missing_or_of_another_model(path, tmp_path, pattern):
    other = ModelFolder(tmp_path / "other")
    other.create({**WEIGHTS, "steps": torch.tensor(8)}, ABOUT, {"features": torch.zeros(1)})
    other.append(RECORDS[0])
    file = only(path, pattern)
    file.write_bytes(only(other.path, pattern).read_bytes())
    with pytest.raises(StoreError, match=file.name):
        ModelFolder(path).read()
    file.unlink()
    with pytest.raises(StoreError, match=file.name):
        ModelFolder(path).read()


def damaged(content, step):
    """Truncations and flipped bits, all over a file."""
    for place in range(0, len(content), step):
        yield place, content[:place]
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        yield place, bytes(changed)


@pytest.mark.parametrize(("pattern", "step"), [("model.json", 3), ("weights-*", 7), ("gallery-*", 7)])
def test_damage_anywhere_is_refused(path, pattern, step):
    file = only(path, pattern)
    content = file.read_bytes()
    whole = ModelFolder(path).read()
    tried = 0
    for place, bad in damaged(content, step):
        file.write_bytes(bad)
        try:
            found = ModelFolder(path).read()
        except StoreError:
            tried += 1
        else:  # a blank between two values is worth as much as a line break
            assert pattern == "model.json"
            assert content[place : place + 1].isspace()
            assert (found.about, found.version) == (whole.about, whole.version)
    assert tried > len(content) / step


def test_damage_anywhere_in_the_journal_costs_at_most_the_last_record(path):
    """What is cut off looks like a torn tail; a changed byte is refused, but in the last line's end."""
    journal = path / "journal-1.jsonl"
    content = journal.read_bytes()
    ends = [place + 1 for place, byte in enumerate(content) if byte == ord("\n")]
    refused = 0
    for place, bad in damaged(content, 1):
        journal.write_bytes(bad)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                found = ModelFolder(path).read().records
            except StoreError:
                refused += 1
                assert len(bad) == len(content)
                continue
        whole = sum(end <= place for end in ends)
        assert found == RECORDS[:whole]
        if len(bad) == len(content):
            assert whole == 3
        assert [each.category for each in said] == ([] if place in (0, *ends) else [FscilWarning])
    assert refused >= len(content) - len(content) / 8 - 1


def test_a_newer_model_is_refused_with_advice(path):
    file = path / "model.json"
    file.write_text(json.dumps(sign({**json.loads(file.read_text(encoding="utf-8")), "schema": 4})))
    for use in (ModelFolder.read, ModelFolder.version, lambda folder: folder.create({}, {}, {})):
        with pytest.raises(StoreError, match=r"newer fscil \(schema 4\)\. Upgrade"):
            use(ModelFolder(path))


@pytest.mark.parametrize(
    "name", ["../secret.safetensors", "/etc/passwd", "weights-x/../../y", "model.txt", ".x/../../y.part"]
)
def test_a_model_that_points_elsewhere_is_refused(path, name):
    content = json.loads((path / "model.json").read_text(encoding="utf-8"))
    data = pack_tensors(WEIGHTS)
    content["files"]["weights"] = {"name": name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (path / "model.json").write_text(json.dumps(sign(content)))
    with pytest.raises(StoreError, match="names files that are not a model's"):
        ModelFolder(path).read()


def test_what_is_no_model(tmp_path):
    (tmp_path / "file").write_text("text")
    for place in (tmp_path, tmp_path / "nothing", tmp_path / "file"):
        folder = ModelFolder(place)
        assert not folder.exists()
        for use in (folder.read, folder.version, lambda f=folder: f.append({}), lambda f=folder: f.compact(counted)):
            with pytest.raises(StoreError, match=r"is not a model: .* fscil fit"):
                use()
        with pytest.raises(StoreError, match="is not a model"), folder.serving():
            pass
    assert listing(tmp_path) == ["file"]


# A server


def run(program, path):
    return subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False)


GUEST = """
import sys
from fscil.errors import StoreError
from fscil.classifier.model_folder import Changed, ModelFolder
folder = ModelFolder(sys.argv[1])
for use in (
    lambda: folder.append({"guest": 1}),
    lambda: folder.compact(lambda contents: Changed(contents.about, contents.snapshot)),
    lambda: folder.create({}, {}, {}),
    lambda: folder.serving().__enter__(),
    lambda: folder.read().about["records"],
):
    try:
        print(use())
    except StoreError as error:
        print(error)
"""


def test_while_a_server_lives_others_only_read(path):
    folder = ModelFolder(path)
    with folder.serving():
        folder.append({"own": 1})
        ModelFolder(path).append({"own": 2})
        folder.compact(counted)
        before = folder.version()
        *refused, read = run(GUEST, path).stdout.splitlines()
        assert len(refused) == 4
        for answer in refused:
            assert answer.startswith(f"{path}: a server is using this model (pid {os.getpid()}, since 20")
        assert read == "6"
        assert folder.version() == before
        with pytest.raises(StoreError, match="a server is using this model"), ModelFolder(path).serving():
            pass
        folder.append({"own": 3})


def test_when_a_server_is_gone_others_write_again(path):
    with ModelFolder(path).serving():
        pass
    done = run(
        "import sys; from fscil.classifier.model_folder import ModelFolder; ModelFolder(sys.argv[1]).append({})", path
    )
    assert done.returncode == 0, done.stderr
    assert ModelFolder(path).read().records == [*RECORDS, {}]


def test_a_server_that_fails_gives_its_lock_back(path):
    folder = ModelFolder(path)
    with pytest.raises(RuntimeError), folder.serving():
        raise RuntimeError
    with folder.serving():
        folder.append({"own": 1})


# No space


LITTLE_ROOM = """
import resource, signal, sys
from fscil.errors import StoreError
from fscil.classifier.model_folder import ModelFolder
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    ModelFolder(sys.argv[1]).append({"big": "x" * 100_000})
except StoreError as error:
    print(error)
"""


def test_a_record_that_finds_no_room_leaves_no_trace(path):
    """A real refusal in the middle of a line: the process may write no more than 4096 bytes to a file."""
    before = (path / "journal-1.jsonl").read_bytes()
    assert "journal-1.jsonl: cannot be written: " in run(LITTLE_ROOM, path).stdout
    assert (path / "journal-1.jsonl").read_bytes() == before
    ModelFolder(path).append({"new": 1})
    assert ModelFolder(path).read().records == [*RECORDS, {"new": 1}]


def test_a_decision_rule_makes_it_schema_2(tmp_path):
    folder = ModelFolder(tmp_path / "model")
    rule = {"psi": torch.arange(3.0)}
    folder.create(WEIGHTS, ABOUT, SNAPSHOT, decision=rule)
    assert json.loads((folder.path / "model.json").read_text(encoding="utf-8"))["schema"] == 2
    file = only(folder.path, "decision-*")
    assert same(folder.read().decision, rule)
    folder.append({"number": 1})
    folder.compact(lambda contents: Changed(contents.about, contents.snapshot))
    assert only(folder.path, "decision-*") == file
    other = {"psi": torch.arange(4.0)}
    folder.compact(lambda contents: Changed(contents.about, contents.snapshot, other))
    assert same(folder.read().decision, other)
    assert only(folder.path, "decision-*") != file  # and the old one is gone
    folder.create(WEIGHTS, ABOUT, SNAPSHOT)
    assert json.loads((folder.path / "model.json").read_text(encoding="utf-8"))["schema"] == 1
    assert list(folder.path.glob("decision-*")) == []
    assert folder.read().decision == {}
