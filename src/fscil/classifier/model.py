"""The classifier for people with photos: fit, enroll, forget, predict, say "unknown", save and load."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fscil import __version__
from fscil.classifier.changes import ChangeablePredictor
from fscil.classifier.decision import Decision
from fscil.classifier.predictor import PathLike
from fscil.errors import ConfigError
from fscil.training.context import Context

if TYPE_CHECKING:
    from fscil.classifier.finetuning import Say
    from fscil.classifier.fit_check import FitCheck
    from fscil.classifier.fitting import FitResult


class Classifier(ChangeablePredictor):
    """A frozen network, a gallery of classes and a decision rule. Several threads may use it at once.

    Make one with `fit`, `pretrained`, `from_run` or `load`. Wherever photos are expected, give one or a list of them:
    paths, the contents of files as bytes, Pillow images, or uint8 arrays of shape (height, width, 3).

    Parameters
    ----------
    encoder : PhotoEncoder
        Computes the feature of a photo.
    gallery : Gallery, optional
        The classes and the rule by which photos are compared with them; by default none, and the cosine rule.
    decision : Decision, optional
        When to call a photo unknown, and probabilities; by default never, and none.
    made : mapping, optional
        How the classifier was made, for the record.

    Examples
    --------
    >>> classifier = Classifier.load("birds.fscil")
    >>> classifier.enroll("red panda", ["panda1.jpg", "panda2.jpg"])
    2
    >>> classifier.predict("panda3.jpg")[0].label
    'red panda'
    """

    fit_check: "FitCheck | None" = None  # what held-out photos said when it was fitted; not part of a model folder

    @classmethod
    def fit(
        cls,
        folder: PathLike,
        *,
        finetune: bool = False,
        minutes: float | None = None,
        from_scratch: bool = False,
        unknown_prior: float | None = None,
        backbone: str | None = None,
        check: bool = True,
        settings: Sequence[str] = (),
        device: str = "auto",
        quiet: bool = False,
        say: "Say | None" = None,
        work: PathLike | None = None,
    ) -> "Classifier":
        """Enroll all photos of a folder of class folders, and estimate how photos of one class differ from each other.

        No training: every photo passes the pretrained network once. With fewer than two classes of two photos or more
        nothing can be estimated, and photos are compared with class means by cosine.

        Parameters
        ----------
        folder : path
            Photos in one folder per class: folder/class/photo. If it has a train part, only that is used.
        finetune : bool
            Train the network on the classes with at least 5 photos, except for a fifth of their photos. The result is
            used only if it does better on those.
        minutes : float, optional
            Train so that all is done by then, on fewer photos if need be; 0: no training.
        from_scratch : bool
            Train a small network from random weights, instead of the pretrained one. Its result is always used.
        unknown_prior : float, optional
            How probable it is, before a photo is seen, that it shows none of the classes.
        backbone : str, optional
            The pretrained network: "efficientnet_lite0" (the default), "efficientnet_lite1", "efficientnet_lite2" or
            "timm:NAME"; `fscil backbones` lists them.
        check : bool
            Hold out every photo once, and say how well the others name it; see `fit_check`.
        settings : sequence of str
            Changes of the recipe "folder", such as "train.lr=0.01".
        device : str
            "auto", "cpu", "cuda" or "cuda:N".
        quiet : bool
            Show no progress.
        say : callable, optional
            Is given each message, such as how long training will take; by default print, or nothing if quiet.
        work : path, optional
            A folder for checkpoints: a training that was stopped is continued by the same call.

        Returns
        -------
        Classifier

        Raises
        ------
        ConfigError
            If an argument or a setting is invalid.
        DataError
            If the folder has no photos in class folders, or too few to train from scratch.
        StoreError
            If `work` holds a training that was started with other arguments.

        Examples
        --------
        >>> classifier = Classifier.fit("photos/birds", quiet=True)  # finetune=True, minutes=20 also trains
        >>> [info.name for info in classifier.classes()]
        ['blue tit', 'robin', 'wren']
        """
        from fscil.classifier.backbones import backbone_settings
        from fscil.classifier.fitting import Training, fit_folder, folder_recipe

        training = Training.asked(finetune, minutes, from_scratch)
        if from_scratch and backbone:
            raise ConfigError(f"{backbone} is a pretrained network: leave out from_scratch (--from-scratch).")
        decision = Decision() if unknown_prior is None else Decision(unknown_prior=unknown_prior)
        context = Context.on(device, quiet)
        recipe = folder_recipe(training, [*backbone_settings(backbone), *settings])
        root, workplace = Path(folder).expanduser(), Path(work) if work else None
        said, prior = say or _default_say(quiet), decision.unknown_prior
        return cls._from(fit_folder(root, recipe, training, context, said, workplace, prior, check))

    @classmethod
    def pretrained(cls, device: str = "auto", backbone: str | None = None) -> "Classifier":
        """The pretrained network as it is, with no class yet.

        Parameters
        ----------
        device : str
            "auto", "cpu", "cuda" or "cuda:N".
        backbone : str, optional
            Which network, as in `fit`.

        Returns
        -------
        Classifier

        Raises
        ------
        ConfigError
            If the pretrained extra is not installed.

        Examples
        --------
        >>> classifier = Classifier.pretrained()
        >>> classifier.enroll("robin", "garden.jpg")
        1
        """
        from fscil.classifier.backbones import backbone_settings
        from fscil.classifier.fitting import from_pretrained

        return cls._from(from_pretrained(Context.on(device), backbone_settings(backbone)))

    @classmethod
    def from_run(
        cls, run: PathLike, data: PathLike | None = None, shots: int = 5, device: str = "auto", quiet: bool = False
    ) -> "Classifier":
        """The network of a finished `fscil train` run, and its base classes.

        Parameters
        ----------
        run : path
            The run folder.
        data : path, optional
            The folder of its data set; by default where it was when the run was trained.
        shots : int
            A class is the mean of this many photos, those nearest to the mean of all.
        device : str
            "auto", "cpu", "cuda" or "cuda:N".
        quiet : bool
            Show no progress.

        Returns
        -------
        Classifier

        Raises
        ------
        ConfigError
            If `shots` is less than 1.
        StoreError
            If the folder is not a run, or its training is not finished.
        DataError
            If its data set is not there.

        Examples
        --------
        >>> classifier = Classifier.from_run("runs/birds", shots=3, quiet=True)
        >>> [(info.name, info.photos) for info in classifier.classes()]
        [('blue tit', 3), ('robin', 3)]
        """
        from fscil.classifier.fitting import from_run
        from fscil.training.run_folder import Run

        _check_shots(shots)
        root = Path(data).expanduser() if data else None
        return cls._from(from_run(Run.open(Path(run)), root, shots, Context.on(device, quiet)))

    @classmethod
    def _from(cls, result: "FitResult") -> "Classifier":
        made = cls(result.encoder, result.gallery, result.decision, {**result.made, "fscil": __version__})
        made.fit_check = result.check
        return made


def _check_shots(shots: int) -> None:
    if shots < 1:
        raise ConfigError(f"shots = {shots}: must be at least 1.")


def _default_say(quiet: bool) -> "Say":
    return (lambda text: None) if quiet else print
