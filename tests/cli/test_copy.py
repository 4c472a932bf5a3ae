"""fscil copy, and the other commands on a gallery in PostgreSQL."""

from PIL import Image

from fscil import Classifier
from helpers import call, picture
from serving import tiny_classifier


def test_a_gallery_goes_into_a_database_and_back(database, tmp_path, capsys):
    made = tiny_classifier()
    for label in range(3):
        made.enroll(f"class {label}", [picture(label, seed) for seed in range(3)])
    made.estimate()
    model, back = tmp_path / "model.fscil", tmp_path / "back.fscil"
    made.save(model)
    photo = tmp_path / "new.png"
    Image.fromarray(picture(5, 0)).save(photo)
    query = [picture(label, 9) for label in range(6)]

    assert call("copy", model, database) == 0
    assert "3 classes, 9 photos" in capsys.readouterr().out
    assert Classifier.load(database).predict(query, top=3) == made.predict(query, top=3)
    assert call("copy", model, database) == 1
    assert "already holds a model" in capsys.readouterr().err
    assert call("copy", database, database) == 1
    assert "the model itself" in capsys.readouterr().err
    assert call("copy", model, database, "--force") == 0

    assert call("enroll", database, "new", photo) == 0
    assert call("forget", database, "class 1") == 0
    assert call("predict", database, photo, "--quiet") == 0
    assert call("classes", database) == 0
    printed = capsys.readouterr().out
    assert "new: 1 new photo, 1 in all" in printed
    assert "class 1: forgotten" in printed
    assert "3 classes" in printed

    assert call("copy", database, back) == 0
    there, here = Classifier.load(database), Classifier.load(back)
    assert there.classes() == here.classes()
    assert there.predict(query, top=3) == here.predict(query, top=3)
    assert there.decision == here.decision
    assert call("copy", back, model, "--force") == 0
    assert Classifier.load(model).classes() == here.classes()


def test_negative_examples_go_with_their_class(database, tmp_path, capsys):
    made = tiny_classifier()
    for label in range(3):
        made.enroll(f"class {label}", [picture(label, seed) for seed in range(3)])
    model, back, photo, other = (tmp_path / name for name in ("model.fscil", "back.fscil", "a.png", "b.png"))
    Image.fromarray(picture(5, 0)).save(photo)
    Image.fromarray(picture(6, 0)).save(other)
    made.reject("class 0", [photo, other])
    made.reject("class 1", photo)
    made.save(model)

    def negatives(place):
        gallery = Classifier.load(place).gallery
        return {name: [(each.digest, each.source) for each in gallery.negatives(name)] for name in gallery.names}

    assert call("copy", model, database) == 0
    assert call("copy", database, back) == 0
    assert capsys.readouterr().err == ""
    assert [len(each) for each in negatives(model).values()] == [2, 1, 0]
    assert negatives(database) == negatives(model) == negatives(back)
    assert call("reject", database, "class 2", other) == 0
    assert call("reject", database, "class 0", photo, "--undo") == 0
    assert call("enroll", database, "class 1", photo) == 0
    assert call("classes", database, "class 2") == 0
    printed = capsys.readouterr().out
    assert "class 2: 1 new negative example, 1 in all" in printed
    assert "3 photos, 1 negative example" in printed
    assert [len(each) for each in negatives(database).values()] == [1, 0, 1]
    assert call("copy", database, back, "--force") == 0
    assert negatives(back) == negatives(database)


def test_mistakes(database, postgres, tmp_path, capsys):
    assert call("classes", database) == 1
    assert "holds no model. Put one there with: fscil copy" in capsys.readouterr().err
    assert call("classes", "postgresql://user:secret@/db?host=/nowhere&connect_timeout=1") == 1
    error = capsys.readouterr().err
    assert "cannot be reached" in error
    assert "secret" not in error
    assert call("classes", "postgresql://user:secret@localhost/db?no_such_option=1") == 2
    error = capsys.readouterr().err
    assert "not the address of a database" in error
    assert "secret" not in error
    assert call("copy", tmp_path / "nothing", database) == 1
    assert "is not a model" in capsys.readouterr().err
