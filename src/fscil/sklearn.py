"""scikit-learn estimators: images to features, and a nearest-mean classifier that learns new classes at any time.

>>> from sklearn.pipeline import make_pipeline
>>> from fscil.sklearn import FeatureExtractor, NearestMeanClassifier
>>> model = make_pipeline(FeatureExtractor("birds.fscil"), NearestMeanClassifier())
>>> model = model.fit(["garden.jpg", "pond.jpg"], ["robin", "blue tit"])
>>> model.predict(["garden.jpg"])
array(['robin'], dtype='<U8')

A pipeline has no partial_fit. To add classes later, call that of its last step, on features:

>>> extractor, nearest = model
>>> nearest = nearest.partial_fit(extractor.transform(["panda1.jpg", "panda2.jpg"]), ["red panda", "red panda"])
>>> model.predict(["panda3.jpg"])
array(['red panda'], dtype='<U9')
"""

from collections.abc import Sequence
from functools import cache
from os import PathLike
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.preprocessing import normalize
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import check_is_fitted, validate_data

if TYPE_CHECKING:
    from fscil.classifier import Classifier
    from fscil.classifier.feature_memory import FeatureMemory

Floats: TypeAlias = NDArray[np.float64]


class NearestMeanClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Predicts the class whose mean feature is nearest by cosine. A class may be added at any time.

    Parameters
    ----------
    scale : float
        Of the cosines in `predict_proba`: the larger, the more the nearest mean is preferred. It changes no prediction.

    Attributes
    ----------
    classes_ : array of shape (C,)
        Labels, sorted.
    class_count_ : array of shape (C,)
        Number of samples each class has had.
    means_ : array of shape (C, d)
        Mean of each class's raw features; NaN for a class without samples.
    n_features_in_ : int
        Length of a feature.

    Examples
    --------
    >>> model = NearestMeanClassifier().fit([[1, 0], [0, 1]], ["robin", "wren"])
    >>> model.predict([[2, 1]])
    array(['robin'], dtype='<U5')
    >>> model.partial_fit([[-1, 0]], ["blue tit"]).classes_
    array(['blue tit', 'robin', 'wren'], dtype='<U8')
    """

    classes_: NDArray[Any]
    class_count_: NDArray[np.int64]
    _sums: Floats  # (C, d) of raw features

    def __init__(self, scale: float = 16.0) -> None:
        self.scale = scale

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn classes from features, and forget what was learned before.

        Parameters
        ----------
        X : array of shape (n, d)
            Raw features.
        y : array of shape (n,)
            Labels.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If X, y or `scale` is invalid.

        Examples
        --------
        >>> NearestMeanClassifier().fit([[1, 0], [3, 2]], [7, 7]).means_
        array([[2., 1.]])
        """
        return self._learn(X, y, None, first=True)

    def partial_fit(self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None) -> Self:
        """Learn from more features, in any order and grouping. Labels never seen before become new classes.

        Parameters
        ----------
        X : array of shape (n, d)
            Raw features.
        y : array of shape (n,)
            Labels.
        classes : array, optional
            Labels to expect. Not needed; a class is never predicted before it has a sample.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If X, y or `scale` is invalid, or labels are partly text and partly numbers. Then nothing is learned.

        Examples
        --------
        >>> model = NearestMeanClassifier().partial_fit([[1, 0]], [0]).partial_fit([[0, 1]], [1])
        >>> model.predict([[1, 3]])
        array([1])
        """
        return self._learn(X, y, classes, first=not hasattr(self, "classes_"))

    def _learn(self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None, first: bool) -> Self:
        if not 0 < self.scale < np.inf:
            raise ValueError(f"NearestMeanClassifier: scale must be above 0 and finite, not {self.scale!r}")
        features, labels = validate_data(self, X, y, dtype=np.float64, reset=first)
        check_classification_targets(labels)
        given = [labels] if classes is None else [labels, classes]
        before = [] if first else [self.classes_]
        all_classes = unique_labels(*before, *given)  # sorted; raises where text and numbers are mixed
        if first or len(all_classes) > len(self.classes_):
            counts, sums = np.zeros(len(all_classes), np.int64), np.zeros((len(all_classes), features.shape[1]))
            if not first:
                rows = np.searchsorted(all_classes, self.classes_)
                counts[rows], sums[rows] = self.class_count_, self._sums
            self.classes_, self.class_count_, self._sums = all_classes, counts, sums
        rows = np.searchsorted(self.classes_, labels)
        np.add.at(self._sums, rows, features)
        np.add.at(self.class_count_, rows, 1)
        return self

    @property
    def means_(self) -> Floats:
        """(C, d) mean of each class's raw features; NaN for a class without samples."""
        with np.errstate(invalid="ignore"):
            means: Floats = self._sums / self.class_count_[:, None]
        return means

    def _cosines(self, X: ArrayLike) -> Floats:
        """(n, C); minus infinity for a class without samples."""
        check_is_fitted(self)
        features = validate_data(self, X, dtype=np.float64, reset=False)
        # The sum of a class has the direction of its mean.
        cosines: Floats = normalize(features) @ normalize(self._sums).T
        cosines[:, self.class_count_ == 0] = -np.inf
        return cosines

    def decision_function(self, X: ArrayLike) -> Floats:
        """Cosines to the class means.

        Parameters
        ----------
        X : array of shape (n, d)
            Raw features.

        Returns
        -------
        array of shape (n, C)
            With two classes (n,): the cosine to the second less that to the first.

        Raises
        ------
        NotFittedError
            Before `fit` or `partial_fit`.
        ValueError
            If X is invalid.

        Examples
        --------
        >>> model = NearestMeanClassifier().fit([[1, 0], [0, 1], [-1, 0]], [0, 1, 2])
        >>> model.decision_function([[0, 2]])
        array([[0., 1., 0.]])
        """
        cosines = self._cosines(X)
        return cosines[:, 1] - cosines[:, 0] if len(self.classes_) == 2 else cosines

    def predict_proba(self, X: ArrayLike) -> Floats:
        """Softmax of `scale` times the cosines. Not calibrated: use it for ranking.

        Parameters
        ----------
        X : array of shape (n, d)
            As for `decision_function`.

        Returns
        -------
        array of shape (n, C)
            Each row sums to 1.

        Raises
        ------
        NotFittedError, ValueError
            As `decision_function`.

        Examples
        --------
        >>> model = NearestMeanClassifier(scale=1).fit([[1, 0], [0, 1]], ["robin", "wren"])
        >>> model.predict_proba([[1, 1]])
        array([[0.5, 0.5]])
        """
        found: Floats = softmax(self.scale * self._cosines(X), axis=1)
        return found

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The label of the nearest mean.

        Parameters
        ----------
        X : array of shape (n, d)
            As for `decision_function`.

        Returns
        -------
        array of shape (n,)

        Raises
        ------
        NotFittedError, ValueError
            As `decision_function`.

        Examples
        --------
        >>> NearestMeanClassifier().fit([[1, 0], [0, 1]], ["robin", "wren"]).predict([[5, 1]])
        array(['robin'], dtype='<U5')
        """
        nearest = self._cosines(X).argmax(axis=1)
        found: NDArray[Any] = self.classes_[nearest]
        return found


@cache
def _memory() -> "FeatureMemory":
    """Of this process: scikit-learn copies estimators for every fold, and sends them to other processes."""
    from fscil.classifier.feature_memory import FeatureMemory

    return FeatureMemory()


class FeatureExtractor(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Images to features of a frozen network. There is nothing to learn: `fit` only loads the network.

    Parameters
    ----------
    model : Classifier or path, optional
        A classifier, or a model folder; by default the pretrained network.
    device : str
        "auto", "cpu", "cuda" or "cuda:N"; not used where `model` is a classifier.
    cache_size : int
        How many features every process keeps, of all networks together, so that the folds of a cross-validation
        compute each once. A file is known by its path, size and time. 0: none.

    Attributes
    ----------
    classifier_ : Classifier
        The one whose network is used.

    Examples
    --------
    >>> FeatureExtractor("birds.fscil").fit_transform(["garden.jpg", "pond.jpg"]).shape[0]
    2
    """

    def __init__(
        self,
        model: "Classifier | str | PathLike[str] | None" = None,
        device: str = "auto",
        cache_size: int = 10_000,
    ) -> None:
        self.model = model
        self.device = device
        self.cache_size = cache_size

    def fit(self, X: Sequence[Any], y: Any = None) -> Self:
        """Load the network.

        Parameters
        ----------
        X, y
            Not used.

        Returns
        -------
        self

        Raises
        ------
        StoreError
            If there is no model folder at the path.
        ConfigError
            If the pretrained extra is needed and not installed.

        Examples
        --------
        >>> extractor = FeatureExtractor("birds.fscil").fit([])
        >>> len(extractor.classifier_.classes())
        3
        """
        from fscil.classifier import Classifier
        from fscil.classifier.feature_memory import network_digest

        if self.model is None:
            self.classifier_ = Classifier.pretrained(device=self.device)
        elif isinstance(self.model, (str, PathLike)):
            self.classifier_ = Classifier.load(self.model, device=self.device)
        else:
            self.classifier_ = self.model
        self._network = network_digest(self.classifier_.encoder)
        return self

    def transform(self, X: Sequence[Any]) -> NDArray[np.float32]:
        """Compute features; loads the network if `fit` has not.

        Parameters
        ----------
        X : image or sequence of images
            Paths, Pillow images, or uint8 arrays of shape (height, width, 3). A single one gives one row.

        Returns
        -------
        array of shape (n, d)
            Raw features, float32, in the order of the images.

        Raises
        ------
        DataError
            If an image cannot be read.
        StoreError, ConfigError
            As `fit`.

        Examples
        --------
        >>> FeatureExtractor("birds.fscil").transform(["garden.jpg"]).dtype
        dtype('float32')
        """
        from fscil.data.photos import as_list

        if not hasattr(self, "classifier_"):
            self.fit(X)

        def compute(sources: list[Any]) -> NDArray[np.float32]:
            found: NDArray[np.float32] = self.classifier_.features(sources).numpy()
            return found

        found = _memory().features(self._network, as_list(X), self.cache_size, compute)
        return np.stack(found) if found else compute([])

    def __sklearn_clone__(self) -> "FeatureExtractor":
        # The network is frozen, so the folds of a cross-validation can share it.
        return FeatureExtractor(self.model, self.device, self.cache_size)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.no_validation = True
        tags.input_tags.two_d_array = False
        return tags
